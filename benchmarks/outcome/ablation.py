"""What each part of the noise model is worth, on damaged development sets.

    python benchmarks/outcome/ablation.py FOLDER [--sets satimage digits] [--rows 700]

FOLDER holds npz files with x and y. For each part, the table gives the area under the ROC curve of
`wrong` for labels that are wrong, and the share of the possible gain (in error, in log loss) of the
rule wrong-50, without the guard: a linear model and a forest learn the edited training rows and
predict clean test rows.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dross.cleanse import label_noise
from dross.cleanse.label_noise import PRIORS, FittedModel, LabelNoise, Rows, estimate_label_noise
from dross.cleanse.plans import NO_EDITS, RULES, Edits, held_out_losses

MODELS = (
    lambda: LogisticRegression(max_iter=200),
    lambda: RandomForestClassifier(60, min_samples_leaf=2, random_state=0),
)
NONE = np.zeros(0, dtype=np.int64)


def all_parts(rows: Rows) -> LabelNoise:
    return estimate_label_noise(rows, PRIORS["observed"])


def one_round(rows: Rows) -> LabelNoise:
    return estimate_label_noise(rows, PRIORS["observed"], rounds=1)


def same_rate_everywhere(rows: Rows) -> LabelNoise:
    return estimate_label_noise(rows, PRIORS["observed"], z=np.zeros((len(rows), 1)))


def no_validation_experts(rows: Rows) -> LabelNoise:
    before = label_noise._FEWEST_ANCHORS
    label_noise._FEWEST_ANCHORS = len(rows) + 1
    try:
        return estimate_label_noise(rows, PRIORS["observed"])
    finally:
        label_noise._FEWEST_ANCHORS = before


def validation_like_training(rows: Rows) -> LabelNoise:
    alike = replace(rows, validation=np.zeros(len(rows), dtype=bool))
    return estimate_label_noise(alike, PRIORS["observed"])


def little_overlap(rows: Rows) -> LabelNoise:
    return estimate_label_noise(rows, PRIORS["annotated"])


PARTS: dict[str, Callable[[Rows], LabelNoise]] = {
    "all parts (observed)": all_parts,
    "one round": one_round,
    "one flip rate for all regions": same_rate_everywhere,
    "no experts of validation rows alone": no_validation_experts,
    "validation rows like training rows": validation_like_training,
    "prior of annotated labels": little_overlap,
}


def damage(x: np.ndarray, y: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Labels of which 20 % are wrong: `uniform`, `pair`, or `idn` (by projections of x)."""
    classes = int(y.max()) + 1
    given = y.copy()
    flipped = rng.random(len(y)) < 0.2
    if kind == "uniform":
        given[flipped] = (y[flipped] + rng.integers(1, classes, flipped.sum())) % classes
    if kind == "pair":
        given[flipped] = (y[flipped] + 1) % classes
    if kind == "idn":
        scaled = (x - x.mean(0)) / (x.std(0) + 1e-9)
        along = scaled @ rng.normal(size=x.shape[1])
        rates = 1 / (1 + np.exp(1.9 - 1.5 * along / along.std()))
        flipped = rng.random(len(y)) < 0.2 * rates / rates.mean()
        taken_for = scaled @ rng.normal(size=(x.shape[1], classes))
        taken_for[np.arange(len(y)), y] = -np.inf
        given[flipped] = taken_for.argmax(1)[flipped]
    return given


def measure(rows: Rows, edits: Edits, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Error and log loss on clean test rows, [2]."""
    kept, labels = edits.apply(rows.y, np.flatnonzero(~rows.validation))
    found = []
    for make in MODELS:
        model = FittedModel(make, rows.x[kept], labels[kept], rows.classes)
        losses = held_out_losses(model.predict(x).astype(np.float64), y)
        found.append([losses["error"].mean(), losses["log loss"].mean()])
    return np.mean(found, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="*")
    parser.add_argument("--kinds", nargs="*", default=["uniform", "pair", "idn"])
    parser.add_argument("--rows", type=int, default=700)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sums = {(situation, part): [] for situation in ("right", "noisy") for part in PARTS}
    for path in sorted(arguments.folder.glob("*.npz")):
        loaded = np.load(path, allow_pickle=True)
        x, y = loaded["x"], loaded["y"]
        if y.dtype.kind != "i" or (arguments.sets and path.stem not in arguments.sets):
            continue
        if "damaged" not in str(loaded["purpose"]):
            continue
        for kind in arguments.kinds:
            rng = np.random.default_rng(arguments.seed)
            order = rng.permutation(len(y))
            count = arguments.rows
            given = damage(x, y, kind, rng)
            train = order[: count + count // 3]
            test = order[len(train) : len(train) + 2_000]
            validation = np.arange(len(train)) >= count
            for situation in ("right", "noisy"):
                right = validation & (situation == "right")
                labels = np.where(right, y[train], given[train])
                rows = Rows.of(x[train], labels, int(y.max()) + 1, validation=validation)
                wrong = (labels != y[train]) & ~validation
                before = measure(rows, NO_EDITS, x[test], y[test])
                edits = Edits(np.flatnonzero(wrong), NONE, NONE)
                possible = before - measure(rows, edits, x[test], y[test])
                for part, estimate in PARTS.items():
                    noise = estimate(rows)
                    edits = RULES["wrong-50"](noise, replace(rows))
                    gain = before - measure(rows, edits, x[test], y[test])
                    area = roc_auc_score(wrong[~validation], noise.wrong[~validation])
                    sums[situation, part].append([area, *gain, *possible])
            print(path.stem, kind, "done", flush=True)
    print("\n| validation | part | AUROC | gain in error | gain in log loss |")
    print("| --- | --- | --- | --- | --- |")
    for (situation, part), values in sums.items():
        area, error, loss, most_error, most_loss = np.mean(values, 0)
        shares = f"{error / most_error:.2f} | {loss / most_loss:.2f}"
        print(f"| {situation} | {part} | {area:.3f} | {shares} |")


if __name__ == "__main__":
    main()
