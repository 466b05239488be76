"""What a judgement says: before, after and the control, in numbers and in words."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..support.messages.option_names import name_option
from .edits import Edits
from .findings import TOO_MANY, name_some

WITHOUT_CHANCES = "only its errors are compared, and no test label is doubted"
_SIGNIFICANT = 0.05
_MAX_SEEDS_FOR_ALL_SIGNS = 12
_SAMPLED_SIGNS = 20_000
_VERDICTS_BEFORE_WARNING = 3
_FEWEST_TO_COMPARE = 2  # test instances, for a standard error
_ERRORS_TO_SHOW_A_CHANGE = 2.3  # a change must be this many standard errors to be shown


@dataclass(frozen=True)
class Comparison:
    """One metric of the models before and after the edits, and of the control. Lower is better.

    Attributes:
        before, after, random: the mean over the test part, one number per seed [seeds].
        difference: the mean of after - before.
        interval: its 95 % interval, from the seeds and from the choice of the test part.
        p_t, p_signs: p-values of the paired t-test and the sign-flip test over the seeds.
        random_difference, random_interval: the same for the control.
        seeds_error: the standard error of the difference that comes from the seeds.
        test_error: the standard error that comes from the choice of the test part.
    """

    before: list[float]
    after: list[float]
    random: list[float]
    difference: float
    interval: tuple[float, float]
    p_t: float
    p_signs: float
    random_difference: float
    random_interval: tuple[float, float]
    seeds_error: float
    test_error: float

    @property
    def significant(self) -> bool:
        """Whether both tests and the interval agree that there is a difference."""
        low, high = self.interval
        return self.seeds_agree and (low > 0 or high < 0)

    @property
    def seeds_agree(self) -> bool:
        """Whether both tests over the seeds find a difference."""
        return self.p_t < _SIGNIFICANT and self.p_signs < _SIGNIFICANT


@dataclass(frozen=True)
class WithoutDoubted:
    """The same comparison without the test labels that the models doubt.

    A label is doubted if models before and after the edits, taken together, would not give it. The
    models are right about what is left more often than about new data, before and after alike; it
    is the difference that counts.

    Attributes:
        doubted: how many of the test labels.
        tested: how many there are.
        metrics: as in `Verdict`, on the others.
        verdict: what it would be on the others alone.
        sentence: all that as a sentence.
    """

    doubted: int
    tested: int
    metrics: dict[str, Comparison]
    verdict: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """Whether the edits help: what `dross.judge` returns.

    Attributes:
        made: when, as local time.
        what: what was judged, in words.
        removed, relabelled: how many instances.
        seeds: how many seeds the comparison rests on.
        metrics: `error` (or `absolute error` of a regression) and `loss` on the test part.
        per_class: the error of each class before and after; none for a regression.
        recorded: what the edits change when the first recorded run is replayed without the removed
            instances, from the start (`all`) and in its last epoch (`last`). May be empty.
        verdict: `improved`, `worse` or `cannot tell`.
        sentence: the verdict with its numbers, as a sentence.
        settle: what it takes to know more, or a warning; may be empty.
        model: which model judged: `linear`, `mlp`, ..., or the name of the user's own.
        resampled: whether each seed drew a bootstrap sample of the training part, because seeds
            make no difference to the model.
        without_doubted: the same without the test labels that the models doubt; None if they doubt
            none.
    """

    made: str
    what: str
    removed: int
    relabelled: int
    seeds: int
    metrics: dict[str, Comparison]
    per_class: list[dict[str, Any]]
    recorded: dict[str, dict[str, float]]
    verdict: str
    sentence: str
    settle: str
    model: str = ""
    resampled: bool = False
    without_doubted: WithoutDoubted | None = None

    def to_json(self) -> dict[str, Any]:
        """Every field as plain dicts, lists, numbers and strings, as in the verdicts folder.

        Returns:
            A dict of the attributes; each metric is a dict, too.
        """
        return asdict(self)

    def __repr__(self) -> str:
        return f"<Verdict: {self.verdict}. {self.sentence}>"

    def _repr_html_(self) -> str:
        from ..support.html import render

        return render("verdict.html", verdict=self.to_json())


# --- the numbers ---


@dataclass(frozen=True)
class _Difference:
    mean: float
    interval: tuple[float, float]
    seeds_error: float
    test_error: float


def _measure_difference(differences: np.ndarray) -> _Difference:
    """differences: [seeds, test instances]."""
    from scipy.stats import t

    by_seed, by_instance = differences.mean(1), differences.mean(0)
    seeds_error = float(by_seed.std(ddof=1) / np.sqrt(len(by_seed)))
    test_error = float(by_instance.std(ddof=1) / np.sqrt(len(by_instance)))
    from_seeds = float(t.ppf(0.975, len(by_seed) - 1)) * seeds_error
    reach = float(np.hypot(from_seeds, 1.96 * test_error))
    mean = float(by_seed.mean())
    return _Difference(mean, (mean - reach, mean + reach), seeds_error, test_error)


def compare_metric(values: np.ndarray) -> Comparison:
    """Compare a metric. values: float64 [seeds, 3 (before, after, random), test instances]."""
    before, after, random = (values[:, place].mean(1) for place in range(3))
    change = _measure_difference(values[:, 1] - values[:, 0])
    control = _measure_difference(values[:, 2] - values[:, 0])
    return Comparison(
        before.tolist(),
        after.tolist(),
        random.tolist(),
        change.mean,
        change.interval,
        _t_test(after - before),
        sign_flip_test(after - before),
        control.mean,
        control.interval,
        change.seeds_error,
        change.test_error,
    )


def _t_test(differences: np.ndarray) -> float:
    """The p-value; of differences that are all the same, 1 if they are 0, else 0."""
    from scipy.stats import ttest_1samp

    if np.allclose(differences, differences[0]):
        return 1.0 if abs(differences[0]) < 1e-15 else 0.0
    return float(ttest_1samp(differences, 0.0)[1])  # type: ignore[arg-type]


def sign_flip_test(differences: np.ndarray) -> float:
    """The p-value of differences [seeds], each of which could as well have the other sign.

    It is the share of sign patterns whose mean is at least as far from 0.
    """
    count = len(differences)
    if count <= _MAX_SEEDS_FOR_ALL_SIGNS:
        signs = np.array(list(itertools.product((-1, 1), repeat=count)))
    else:
        signs = np.random.default_rng(0).choice((-1, 1), size=(_SAMPLED_SIGNS, count))
        signs[0] = 1
    means = np.abs(signs @ differences)
    return float((means >= abs(differences.sum()) * (1 - 1e-12)).mean())


def decide_verdict(metrics: dict[str, Comparison]) -> str:
    """`improved` if a metric is significantly better and none worse; `worse` the other way round.

    Everything else is `cannot tell`.
    """
    significant = [metric for metric in metrics.values() if metric.significant]
    better = any(metric.difference < 0 for metric in significant)
    worse = any(metric.difference > 0 for metric in significant)
    if better == worse:
        return "cannot tell"
    return "improved" if better else "worse"


def compare_without(
    values: dict[str, np.ndarray], doubted: np.ndarray, verdict: str
) -> WithoutDoubted | None:
    """Compare what is not doubted; None where nothing is, or hardly anything else is left.

    Arguments:
        values: Of each metric, as `compare_metric` takes them.
        doubted: Which test labels are, bool [test].
        verdict: On all of them.
    """
    count, tested = int(doubted.sum()), len(doubted)
    if not count or tested - count < _FEWEST_TO_COMPARE:
        return None
    metrics = {name: compare_metric(each[..., ~doubted]) for name, each in values.items()}
    without = decide_verdict(metrics)
    sentence = _describe_without(count, tested, metrics, verdict, without)
    return WithoutDoubted(count, tested, metrics, without, sentence)


# --- in words ---


def _describe_without(
    doubted: int, tested: int, metrics: dict[str, Comparison], verdict: str, without: str
) -> str:
    changes = " and ".join(_describe_metric(name, metric) for name, metric in metrics.items())
    same = "the verdict is the same" if without == verdict else f"the verdict would be: {without}"
    warning = ""
    if doubted >= TOO_MANY * tested:
        warning = (
            " That is so many that neither verdict tells much: check the labels of the test part, "
            "or judge with one that was checked."
        )
    return (
        f"Doubted by models before and after the change: {doubted:,} of {tested:,} test labels. "
        f"Without them {changes}; {same}.{warning}"
    )


def describe_verdict(
    verdict: str,
    metrics: dict[str, Comparison],
    edits: Edits,
    seeds: int,
    model: str | None = None,
    *,
    resampled: bool = False,
) -> str:
    """The verdict with its numbers, as one sentence.

    model: the name of the user's own, if it judged; resampled: as in `Verdict`.
    """
    opening = {
        "improved": f"{model or 'The model'} improved",
        "worse": f"{model or 'The model'} got worse",
        "cannot tell": f"It is not clear whether {model or 'the model'} changed",
    }[verdict]
    done = []
    if len(edits.removed):
        done.append(f"{len(edits.removed)} instances removed")
    if edits.relabelled:
        done.append(f"{len(edits.relabelled)} relabelled")
    changes = " and ".join(_describe_metric(name, metric) for name, metric in metrics.items())
    over = f"over {seeds} fresh seeds"
    if resampled:
        over = (
            f"over {seeds} bootstrap samples of the training part (it learns the same with every "
            "seed)"
        )
    return f"{opening}: with {' and '.join(done)}, {over}, {changes}."


def _describe_metric(name: str, metric: Comparison) -> str:
    before, after, random = (
        f"{100 * np.mean(values):.2f} %" if name == "error" else f"{np.mean(values):.4g}"
        for values in (metric.before, metric.after, metric.random)
    )
    return f"the test {name} went from {before} to {after} (as many at random: {random})"


def advise(verdict: str, metrics: dict[str, Comparison], seeds: int, tested: int) -> str:
    """What it takes to know, if the change that was seen is the true one; "" if it is known.

    tested: the number of test instances.
    """
    if verdict != "cannot tell":
        return ""
    changed = {name: metric for name, metric in metrics.items() if any(metric.interval)}
    if not changed:
        return (
            f"With or without the change, the models do the same on all {tested:,} test instances. "
            "More seeds will not change that; a larger test part or a larger change may."
        )
    name, metric = min(changed.items(), key=lambda item: _relative_error(item[1]))
    agree = ""
    if metric.seeds_agree:
        agree = (
            f"The seeds agree about the {name} (p = {metric.p_t:.2g}), but the interval, which "
            f"also counts the luck of having these {tested:,} test instances, includes 0. "
        )
    reach = (metric.interval[1] - metric.interval[0]) / 2
    if abs(metric.difference) < reach / 4:
        limit = f"{100 * reach:.2f} points" if name == "error" else f"{reach:.4g}"
        return (
            f"{agree}If there is a change of the {name} at all, it is probably smaller than "
            f"{limit}. More seeds and a larger test part narrow that."
        )
    return agree + _advise_on_size(name, metric, seeds, tested)


def _relative_error(metric: Comparison) -> float:
    """Infinite where no change was seen at all: such a metric tells least, not most."""
    if metric.difference == 0:
        return float("inf")
    return float(np.hypot(metric.seeds_error, metric.test_error) / abs(metric.difference))


def _advise_on_size(name: str, metric: Comparison, seeds: int, tested: int) -> str:
    """How many test instances, or how many seeds, would show the change that was seen."""
    seen = (
        f"{100 * metric.difference:+.2f} points" if name == "error" else f"{metric.difference:+.3g}"
    )
    wanted = abs(metric.difference) / _ERRORS_TO_SHOW_A_CHANGE
    by_test, by_seeds = metric.test_error / wanted, metric.seeds_error / wanted
    if by_test > 0.9:
        enough = _round_up(tested * max(by_test, 1.0) ** 2 * 1.3)
        return (
            f"If the {name} really changes by {seen}, it takes about {enough} test instances "
            f"to show it (there are {tested:,})."
        )
    enough = _round_up(max(seeds * by_seeds**2 / max(1 - by_test**2, 0.05), seeds + 2))
    return (
        f"If the {name} really changes by {seen}, about {enough} seeds would show it "
        f"({name_option('seeds')})."
    )


def warn_of_reuse(earlier: int) -> str:
    """Every verdict on the same test part makes the next one worth less."""
    if earlier < _VERDICTS_BEFORE_WARNING:
        return ""
    return (
        f"This is verdict number {earlier + 1} on the same test part: if you choose by "
        "its verdicts, it can no longer judge the choice. Keep fresh test data for the last word."
    )


def warn_of_vanished(gone: Sequence[str], tested: np.ndarray) -> str:
    """Say that classes have no training instances any more; "" if there is none.

    gone: their names; tested: the labels of the test part.
    """
    if not gone:
        return ""
    count, it = int(np.isin(tested, list(gone)).sum()), "it" if len(gone) == 1 else "them"
    tests = (
        f"the {count:,} test instances of {it} count as wrong"
        if count
        else f"the test part has none of {it}, so no figure here shows it"
    )
    return (
        f"After these edits no training instance of {name_some(gone)} is left: no model can "
        f"predict {it}, and {tests}."
    )


def _round_up(value: float) -> str:
    """To two digits."""
    size = 10 ** max(0, int(np.log10(max(value, 1))) - 1)
    return f"{int(np.ceil(value / size) * size):,}"
