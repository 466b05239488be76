"""What each part of the noise model and each rule is worth, on corrupted development sets.

    python -m benchmarks.outcome.ablation FOLDER [--minutes 10]
    python -m benchmarks.outcome.ablation FOLDER --evidence

FOLDER holds the npz files of the development sets (sets.py). A linear model and a forest learn the
edited training rows and predict test rows with correct labels; the plan comparison takes no part. The tables
give the area under the ROC curve of `wrong`, and the share of the possible gain, which is that of
removing exactly the mislabeled rows.

With --evidence, a small network is recorded as well. The second table says how well its influence
scores and margins find wrong labels, alone and added to the log odds of `wrong`.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.special import logit
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import dross
from dross.cleaning import label_noise
from dross.cleaning.label_noise import (
    PRIORS,
    Expert,
    LabelPosterior,
    Rows,
    estimate_label_noise,
)
from dross.cleaning.plans import NO_EDITS, RULES, Edits, held_out_losses
from dross.cleaning.scoring import robust_deviation
from dross.cleaning.training import MOMENTUM, build_network

MODELS = (
    lambda: LogisticRegression(max_iter=200),
    lambda: RandomForestClassifier(60, min_samples_leaf=2, random_state=0),
)
SITUATIONS = ("correct", "noisy")
OTHER_PRIOR = {"annotated": "observed", "observed": "annotated"}
MOST_TESTED = 2_000
WORSE = 0.003  # by which an error counts as worse
DRAWS = 2_000  # of the bootstrap over sets
SETS = ["digits", "magic", "mnist", "newsgroups", "products", "satimage", "spambase", "vehicles"]
Found = dict[tuple[str, str], dict[str, list[np.ndarray]]]  # by situation and name, and by set
EPOCHS, BATCH_SIZE = 15, 32  # of recorded runs
RATE = 0.02  # decays along a cosine; with much more, a run learns wrong labels and harm finds less
BETA, WIDEST = 0.5, 3.0  # the weight of evidence from runs, and where it is clipped


@dataclass(frozen=True)
class Damaged:
    """A set with wrong labels: `rows` are training and validation rows, the test labels correct."""

    set: str
    kind: str
    situation: str
    prior: str
    rows: Rows
    wrong: np.ndarray  # bool [N]; False for validation rows
    x: np.ndarray
    y: np.ndarray

    @property
    def name(self) -> str:
        return f"{self.set}, {self.kind}"


# --- the parts of the noise model -----------------------------------------------------------------


def all_parts(rows: Rows, prior: str) -> LabelPosterior:
    return estimate_label_noise(rows, PRIORS[prior])


def one_round(rows: Rows, prior: str) -> LabelPosterior:
    return estimate_label_noise(rows, PRIORS[prior], rounds=1)


def same_rate_everywhere(rows: Rows, prior: str) -> LabelPosterior:
    return estimate_label_noise(rows, PRIORS[prior], z=np.zeros((len(rows), 1)))


def no_validation_experts(rows: Rows, prior: str) -> LabelPosterior:
    before = label_noise._FEWEST_ANCHORS
    label_noise._FEWEST_ANCHORS = len(rows) + 1
    try:
        return estimate_label_noise(rows, PRIORS[prior])
    finally:
        label_noise._FEWEST_ANCHORS = before


def validation_like_training(rows: Rows, prior: str) -> LabelPosterior:
    alike = replace(rows, validation=np.zeros(len(rows), dtype=bool))
    return estimate_label_noise(alike, PRIORS[prior])


def other_prior(rows: Rows, prior: str) -> LabelPosterior:
    return estimate_label_noise(rows, PRIORS[OTHER_PRIOR[prior]])


FULL = "all parts"
PARTS: dict[str, Callable[[Rows, str], LabelPosterior]] = {
    FULL: all_parts,
    "no second round": one_round,
    "one flip rate everywhere": same_rate_everywhere,
    "no experts trained on validation rows alone": no_validation_experts,
    "validation rows like training rows": validation_like_training,
    "the other prior (annotated, observed)": other_prior,
}


@contextmanager
def predictions_kept() -> Iterator[None]:
    """Inside, the same experts are not trained twice: most parts share their first round."""
    ask, kept = label_noise._cross_predict, {}

    def ask_once(rows, weight, asked, folds, seed):
        arrays = (rows.y, rows.validation, weight, asked)
        few = label_noise._FEWEST_ANCHORS
        key = (rows.x.shape, few, folds, seed, *(array.tobytes() for array in arrays))
        if key not in kept:
            kept[key] = ask(rows, weight, asked, folds, seed)
        return kept[key]

    label_noise._cross_predict = ask_once
    try:
        yield
    finally:
        label_noise._cross_predict = ask


# --- cases ----------------------------------------------------------------------------------------


def damage(x: np.ndarray, y: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Labels of which 20 % are wrong: `uniform`, `pair`, or `instance` (by projections of x)."""
    classes = int(y.max()) + 1
    given = y.copy()
    flipped = rng.random(len(y)) < 0.2
    if kind == "uniform":
        given[flipped] = (y[flipped] + rng.integers(1, classes, flipped.sum())) % classes
    if kind == "pair":
        given[flipped] = (y[flipped] + 1) % classes
    if kind == "instance":
        scaled = (x - x.mean(0)) / (x.std(0) + 1e-9)
        along = scaled @ rng.normal(size=x.shape[1])
        rates = 1 / (1 + np.exp(1.9 - 1.5 * along / along.std()))
        flipped = rng.random(len(y)) < 0.2 * rates / rates.mean()
        taken_for = scaled @ rng.normal(size=(x.shape[1], classes))
        taken_for[np.arange(len(y)), y] = -np.inf
        given[flipped] = taken_for.argmax(1)[flipped]
    return given


def make_cases(path: Path, kind: str, count: int, seed: int) -> list[Damaged]:
    """A set with correct and with noisy validation labels: `count` training rows, a third of them
    more for validation."""
    with np.load(path, allow_pickle=True) as file:
        x, y = file["x"], file["y"]
        prior = "observed" if str(file["kind"]) == "table" else "annotated"
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    given = damage(x, y, kind, rng)
    train = order[: count + count // 3]
    test = order[len(train) : len(train) + MOST_TESTED]
    validation = np.arange(len(train)) >= count
    cases = []
    for situation in SITUATIONS:
        right = validation & (situation == "correct")
        labels = np.where(right, y[train], given[train])
        case = Damaged(
            set=path.stem,
            kind=kind,
            situation=situation,
            prior=prior,
            rows=Rows.of(x[train], labels, int(y.max()) + 1, validation=validation),
            wrong=(labels != y[train]) & ~validation,
            x=x[test],
            y=y[test],
        )
        cases.append(case)
    return cases


def measure(case: Damaged, edits: Edits) -> np.ndarray:
    """Error and log loss on correct test labels, [2]."""
    rows = case.rows
    kept, labels = edits.apply(rows.y, np.flatnonzero(~rows.validation))
    found = []
    for make in MODELS:
        model = Expert(make).fit(rows.x[kept], labels[kept], rows.classes)
        losses = held_out_losses(model.predict(case.x).astype(np.float64), case.y)
        found.append([losses["error"].mean(), losses["log loss"].mean()])
    return np.mean(found, 0)


# --- evidence from recorded runs ------------------------------------------------------------------


def record(case: Damaged, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """How harmful each training row is to the validation rows, and its mean margin, each [n]."""
    rows = case.rows
    x = torch.from_numpy((rows.x - rows.x.mean(0)) / (rows.x.std(0) + 1e-6))
    y = torch.from_numpy(rows.y)
    train, held_out = np.flatnonzero(~rows.validation), np.flatnonzero(rows.validation)
    torch.manual_seed(seed)
    model = build_network("mlp", (x.shape[1],), rows.classes)
    steps = EPOCHS * -(-len(train) // BATCH_SIZE)
    with tempfile.TemporaryDirectory() as folder:
        run = dross.train(
            model,
            (x[train], y[train]),
            "cross_entropy",
            torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM),
            path=Path(folder) / "run",
            epochs=EPOCHS,
            batch_size=BATCH_SIZE,
            lr=lambda step: RATE * 0.5 * (1 + np.cos(np.pi * step / steps)),
            seed=seed,
            progress=False,
        )
        scores = run.influence(dross.expected_error((x[held_out], y[held_out])))
        margins = np.zeros(len(train))
        for epoch in range(1, EPOCHS + 1):
            state = run.recording.state_at(run.steps * epoch // EPOCHS)
            with torch.no_grad():
                outputs = run.recording.objective.predict(state.theta, state.buffers, x[train])
            own = torch.nn.functional.one_hot(y[train], rows.classes).bool()
            others = outputs.masked_fill(own, -torch.inf).max(1).values
            margins += (outputs[own] - others).double().numpy() / EPOCHS
        return -np.asarray(scores.values), margins


def standardize(values: np.ndarray) -> np.ndarray:
    """Values in robust standard deviations, clipped."""
    return np.clip(values / (robust_deviation(values) + 1e-12), -WIDEST, WIDEST)


def add_evidence(case: Damaged, noise: LabelPosterior, runs: int) -> dict[str, float]:
    """Areas under the ROC curve of wrong training labels."""
    train = ~case.rows.validation
    found = [record(case, seed) for seed in range(runs)]
    harm, margin = (np.mean(values, axis=0) for values in zip(*found))
    odds = logit(np.clip(noise.p_wrong[train], 1e-6, 1 - 1e-6))
    by_harm = BETA * (standardize(harm) - 0.5)
    by_margin = BETA * (standardize(np.median(margin) - margin) - 0.5)
    values = {
        "`wrong`": odds,
        "harm": harm,
        "margin": -margin,
        "`wrong` + harm": odds + by_harm,
        "`wrong` + margin": odds + by_margin,
        "`wrong` + both": odds + by_harm + by_margin,
    }
    return {name: float(roc_auc_score(case.wrong[train], of)) for name, of in values.items()}


# --- tables ---------------------------------------------------------------------------------------


def shares(values: np.ndarray) -> np.ndarray:
    """Shares of the possible gain in error and log loss, [2], from columns of `_compare_parts`."""
    sums = values.sum(0)
    return sums[1:3] / sums[3:5]


def show_gains(found: Found, title: str, base: str) -> None:
    """A table in Markdown, with the differences from `base` and 95 % intervals over sets."""
    head = f"| validation | {title} | AUROC | share of the gain, error / log loss |"
    print(f"\n{head} difference in error | difference in log loss | error worse |")
    print("|" + " --- |" * 7)
    for situation, name in [(s, n) for s in SITUATIONS for of, n in found if of == s]:
        values, basis = found[situation, name], found[situation, base]
        sets = sorted(values)
        rng = np.random.default_rng(0)
        differences = []
        for chosen in [sets, *(rng.choice(sets, len(sets)) for _ in range(DRAWS))]:
            own, other = (np.concatenate([of[key] for key in chosen]) for of in (values, basis))
            differences.append(shares(own) - shares(other))
        low, high = np.quantile(differences[1:], (0.025, 0.975), axis=0)
        every = np.concatenate(list(values.values()))
        cells = [situation, name, f"{every[:, 0].mean():.3f}"]
        cells.append(" / ".join(f"{share:.2f}" for share in shares(every)))
        for k in range(2):
            differs = f"{differences[0][k]:+.2f} [{low[k]:+.2f}, {high[k]:+.2f}]"
            cells.append("" if name == base else differs)
        cells.append(f"{(every[:, 1] < -WORSE).sum()} of {len(every)}")
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--kinds", nargs="*", default=["instance", "pair", "uniform"])
    parser.add_argument("--rows", type=int, default=700, help="training rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--evidence", action="store_true", help="of recorded runs, instead of parts"
    )
    parser.add_argument("--runs", type=int, default=2, help="recorded runs of each case")
    parser.add_argument("--minutes", type=float, default=60, help="no case is begun after these")
    options = parser.parse_args()
    parts: Found = defaultdict(lambda: defaultdict(list))
    rules: Found = defaultdict(lambda: defaultdict(list))
    areas: list[tuple[str, str, dict[str, float]]] = []
    last = time.monotonic() + 60 * options.minutes
    for kind in options.kinds:
        for name in options.sets:
            path = options.folder / f"{name}.npz"
            for case in make_cases(path, kind, options.rows, options.seed):
                if time.monotonic() > last:
                    continue
                if options.evidence:
                    noise = all_parts(case.rows, case.prior)
                    areas.append(
                        (case.name, case.situation, add_evidence(case, noise, options.runs))
                    )
                else:
                    _compare_parts(case, parts, rules)
                print("done:", case.name, case.situation, flush=True)
    if areas:
        names = list(areas[0][2])
        print(f"\n| case | validation | {' | '.join(names)} |\n|{' --- |' * (len(names) + 2)}")
        for name, situation, found in areas:
            print(
                f"| {name} | {situation} | " + " | ".join(f"{found[n]:.3f}" for n in names) + " |"
            )
        means = [np.mean([found[n] for *_, found in areas]) for n in names]
        print("| mean | | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")
    else:
        show_gains(parts, "part", FULL)
        show_gains(rules, "rule", "wrong-50")


def _compare_parts(case: Damaged, parts: Found, rules: Found) -> None:
    """Adds what each part and each rule gains."""
    train = ~case.rows.validation
    before = measure(case, NO_EDITS)
    best = Edits(np.flatnonzero(case.wrong), {})
    possible = before - measure(case, best)
    with predictions_kept():
        for part, estimate in PARTS.items():
            noise = estimate(case.rows, case.prior)
            area = roc_auc_score(case.wrong[train], noise.p_wrong[train])
            for rule in RULES if part == FULL else ("wrong-50",):
                gain = before - measure(case, RULES[rule](noise, case.rows))
                found = np.array([area, *gain, *possible])
                if rule == "wrong-50":
                    parts[case.situation, part][case.set].append(found)
                if part == FULL:
                    rules[case.situation, rule][case.set].append(found)


if __name__ == "__main__":
    main()
