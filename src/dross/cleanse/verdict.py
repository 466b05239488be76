"""What a judgement says: the numbers of before, after and the control, whether they prove anything, and that in words."""

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .edits import Change

_SURE = 0.05


@dataclass(frozen=True)
class Measured:
    """One measure, seed by seed."""

    before: list[float]
    after: list[float]
    random: list[float]
    difference: float
    interval: tuple[float, float]
    p_t: float
    p_signs: float
    random_difference: float
    random_interval: tuple[float, float]
    seeds_error: float  # standard error from the seeds
    test_error: float  # standard error from the choice of the test part

    @property
    def sure(self) -> bool:
        return (
            self.p_t < _SURE
            and self.p_signs < _SURE
            and (self.interval[0] > 0 or self.interval[1] < 0)
        )


@dataclass(frozen=True)
class Verdict:
    made: str
    what: str
    removed: int
    relabelled: int
    seeds: int
    metrics: dict[str, Measured]
    per_class: list[dict[str, Any]]
    recorded: dict[str, dict[str, float]]
    verdict: str
    sentence: str
    settle: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        return f"<Verdict: {self.verdict}. {self.sentence}>"

    def _repr_html_(self) -> str:
        from ..support.html import render

        return render("verdict.html", verdict=self.to_json())


def measured(values: np.ndarray) -> Measured:
    """values: [seeds, 3 (before, after, random), test instances]"""
    from scipy.stats import t, ttest_1samp

    before, after, control = (values[:, k].mean(1) for k in range(3))

    def compared(place: int) -> tuple[float, tuple[float, float], float, float]:
        by_instance = (values[:, place] - values[:, 0]).mean(0)
        by_seed = (values[:, place] - values[:, 0]).mean(1)
        seeds_error = float(by_seed.std(ddof=1) / np.sqrt(len(by_seed)))
        test_error = float(by_instance.std(ddof=1) / np.sqrt(len(by_instance)))
        reach = np.hypot(float(t.ppf(0.975, len(by_seed) - 1)) * seeds_error, 1.96 * test_error)
        middle = float(by_seed.mean())
        return middle, (middle - float(reach), middle + float(reach)), seeds_error, test_error

    difference, interval, seeds_error, test_error = compared(1)
    random_difference, random_interval, _, _ = compared(2)
    by_seed = after - before
    same = bool(np.allclose(by_seed, by_seed[0]))
    p_t = (
        float(ttest_1samp(by_seed, 0.0)[1])
        if not same
        else (1.0 if abs(by_seed[0]) < 1e-15 else 0.0)
    )  # type: ignore[arg-type]
    return Measured(
        before.tolist(),
        after.tolist(),
        control.tolist(),
        difference,
        interval,
        p_t,
        sign_flips(by_seed),
        random_difference,
        random_interval,
        seeds_error,
        test_error,
    )


def sign_flips(differences: np.ndarray) -> float:
    """If removal did nothing, each seed's difference could as well have the other sign: how often would their mean be as far from 0?"""
    count = len(differences)
    if count <= 12:
        signs = np.array(list(itertools.product((-1, 1), repeat=count)))
    else:
        signs = np.random.default_rng(0).choice((-1, 1), size=(20_000, count))
        signs[0] = 1
    means = np.abs(signs @ differences)
    return float((means >= abs(differences.sum()) * (1 - 1e-12)).mean())


def decided(measures: dict[str, Measured]) -> str:
    """Improved: some measure is surely better and none surely worse. Worse: the other way round. Everything else cannot be told."""
    better = any(m.sure and m.difference < 0 for m in measures.values())
    worse = any(m.sure and m.difference > 0 for m in measures.values())
    return (
        "improved" if better and not worse else "worse" if worse and not better else "cannot tell"
    )


def sentence(verdict: str, measures: dict[str, Measured], change: Change, seeds: int) -> str:
    done = " and ".join(
        [f"{len(change.removed)} instances removed"] * bool(len(change.removed))
        + [f"{len(change.relabelled)} relabelled"] * bool(change.relabelled)
    )
    parts = []
    for name, m in measures.items():
        digits = (lambda v: f"{100 * v:.2f} %") if name == "error" else (lambda v: f"{v:.4g}")
        parts.append(
            f"the test {name} went from {digits(np.mean(m.before))} to {digits(np.mean(m.after))} (as many at random: {digits(np.mean(m.random))})"
        )
    opening = {
        "improved": "The model improved",
        "worse": "The model got worse",
        "cannot tell": "It cannot be told whether the model changed",
    }[verdict]
    return f"{opening}: with {done}, over {seeds} fresh seeds, {' and '.join(parts)}."


def settle(verdict: str, measures: dict[str, Measured], seeds: int, tested: int) -> str:
    """What it would take to know, if the change that was seen is the true one."""
    if verdict != "cannot tell":
        return ""
    name, m = min(
        measures.items(),
        key=lambda item: (
            np.hypot(item[1].seeds_error, item[1].test_error) / max(abs(item[1].difference), 1e-12)
        ),
    )
    reach = (m.interval[1] - m.interval[0]) / 2
    if m.p_t < _SURE and m.p_signs < _SURE:
        agree = f"The seeds agree about the {name} (p = {m.p_t:.2g}), but the interval, which also counts the luck of having these {tested:,} test instances, includes 0. "
    else:
        agree = ""
    if abs(m.difference) < reach / 4:
        limit = f"{100 * reach:.2f} points" if name == "error" else f"{reach:.4g}"
        return f"{agree}If there is a change of the {name} at all, it is probably smaller than {limit}. More seeds and a larger test part narrow that."
    wanted, seen = (
        abs(m.difference) / 2.3,
        f"{100 * m.difference:+.2f} points" if name == "error" else f"{m.difference:+.3g}",
    )
    by_test = m.test_error / wanted
    by_seeds = m.seeds_error / wanted
    if by_test > 0.9:
        return f"{agree}If the {name} really changes by {seen}, it takes about {_round(tested * max(by_test, 1.0) ** 2 * 1.3)} test instances to show it (there are {tested:,})."
    more = seeds * by_seeds**2 / max(1 - by_test**2, 0.05)
    return f"{agree}If the {name} really changes by {seen}, about {_round(max(more, seeds + 2))} seeds would show it (--seeds)."


def looked(times: int) -> str:
    """Every look at the same test part makes the next one worth less."""
    if times < 3:
        return ""
    return f"This is verdict number {times + 1} on the same test part: what is chosen by its verdicts is no longer judged by it. Keep fresh test data for the last word."


def _round(value: float) -> str:
    size = 10 ** max(0, int(np.log10(max(value, 1))) - 1)
    return f"{int(np.ceil(value / size) * size):,}"
