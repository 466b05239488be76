"""Human label noise: what finds the wrong labels of CIFAR-10N, and what a model gains.

    python -m benchmarks.outcome.cifar10n [--rows 5000] [--labels worse]

Images of the fifth training batch (none was used in development) with the worst label of three
people, the label of one person, or the majority vote of three; features of the pretrained model
that dross uses, 100 principal components. Every tool sees one file of annotated labels. Docta's
published answer for the worst labels, which comes from other features of all 50,000 images, is
compared on the same rows. Test accuracy is that of models that learn the result, on images of the
test batch with correct labels.
"""

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np

from . import judges, methods, rivals, sets
from .cases import ONE_FILE, Case

FIRST, TESTED = 40_000, 2_000
LABELS = {"worse": "worse_label", "random1": "random_label1", "aggregate": "aggre_label"}


def load_features(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Components of the features of training and test images, and both correct labels."""
    from experiments import datasets

    found = datasets.load("cifar10")
    path = sets.FOLDER / f"cifar10n-{rows}.npz"
    if not path.exists():
        train = sets.load_photographs(np.arange(FIRST, FIRST + rows))
        test = sets.load_photographs(np.arange(TESTED), part="test")
        np.savez(path, train=train.astype(np.float16), test=test.astype(np.float16))
    with np.load(path) as file:
        x = np.concatenate([file["train"], file["test"]]).astype(np.float32)
    truth = np.asarray(found.train[1])[FIRST : FIRST + rows]
    return sets.reduce(x, 100).astype(np.float32), truth, np.asarray(found.test[1])[:TESTED]


def make_case(x: np.ndarray, truth: np.ndarray, given: np.ndarray, tested: np.ndarray) -> Case:
    """One file of annotated labels."""
    n, y = len(truth), np.concatenate([truth, tested]).astype(np.int64)
    labels = np.concatenate([given, tested]).astype(np.int64)
    data = sets.DataSet(
        name="cifar10n",
        kind="images",
        task="classification",
        purpose=sets.DAMAGED,
        x=x,
        y=y,
        human={},
    )
    return Case(
        name=data.name,
        noise="human",
        situation=ONE_FILE,
        seed=0,
        data=data,
        train=np.arange(n),
        validation=np.arange(0),
        test=np.arange(n, len(y)),
        given=labels,
        unchecked=labels,
        checked=np.zeros(len(y), dtype=bool),
        labels="annotated",
    )


Answer = tuple[np.ndarray, np.ndarray, np.ndarray]  # flagged rows, corrected labels, rows to learn


def ask_dross(case: Case) -> Answer:
    """What the noise model calls wrong with more than 50 %, all relabeled."""
    rows, _, noise = methods.estimate(case)
    other = noise.best_other
    flagged = np.flatnonzero(noise.p_wrong > 0.5)
    corrected = case.given.copy()
    corrected[flagged] = other[flagged]
    return flagged, corrected, np.arange(len(rows))


def ask_dross_like_docta(case: Case) -> Answer:
    """As many rows as Docta flags, from the top of the ranked list."""
    rows, _, noise = methods.estimate(case)
    other = noise.best_other
    flagged = np.sort(np.argsort(-noise.p_wrong, kind="stable")[: len(ask_docta(case)[0])])
    corrected = case.given.copy()
    corrected[flagged] = other[flagged]
    return flagged, corrected, np.arange(len(rows))


def ask_dross_plan(case: Case) -> Answer:
    """What the recommended plan touches."""
    plan = methods.use_dross(case)
    print(f"\ndross decided: {plan.note}")
    corrected = case.given.copy()
    for i, label in plan.relabeled.items():
        corrected[i] = label
    removed = np.asarray(plan.removed, dtype=int)
    flagged = np.union1d(removed, np.array(list(plan.relabeled), dtype=int))
    return flagged, corrected, np.setdiff1d(case.train, removed)


def ask_cleanlab(names: tuple[str, ...]) -> Callable[[Case], Answer]:
    """Confident learning with the mean of some models; models learn what is not flagged."""

    def ask(case: Case) -> Answer:
        p = np.mean([rivals.cross_validate(case, name) for name in names], axis=0)
        flagged = np.flatnonzero(rivals.find_label_issues(case.given[case.train], p))
        corrected = case.given.copy()
        corrected[flagged] = p[flagged].argmax(1)
        return flagged, corrected, np.setdiff1d(case.train, flagged)

    return ask


def ask_docta(case: Case) -> Answer:
    """The published labels: a label that differs is flagged and corrected."""
    with np.load(sets.cifar10n_folder() / "docta.npz") as file:
        cured = file["cured_worse_label"][FIRST : FIRST + len(case.train)].astype(np.int64)
    corrected = np.concatenate([cured, case.given[case.test]])
    return np.flatnonzero(cured != case.given[case.train]), corrected, case.train


def ask_nothing(case: Case) -> Answer:
    """The labels as they are."""
    return case.train[:0], case.given, case.train


def ask_truth(case: Case) -> Answer:
    """The correct labels: what is possible."""
    return case.wrong, case.truth, case.train


TOOLS: dict[str, Callable[[Case], Answer]] = {
    "nothing": ask_nothing,
    "dross, the recommended plan": ask_dross_plan,
    "dross, ranked list above 50 %, relabeled": ask_dross,
    "dross, the same number of rows as Docta, relabeled": ask_dross_like_docta,
    "cleanlab, linear": ask_cleanlab(("linear",)),
    "cleanlab, ensemble": ask_cleanlab(rivals.ENSEMBLE),
    "Docta, published": ask_docta,
    "correct labels": ask_truth,
}


def show(case: Case, name: str) -> None:
    """A table in Markdown."""
    n, wrong = len(case.train), case.wrong
    print(f"\n## {name} labels: {n:,} images, {100 * len(wrong) / n:.1f} % wrong\n")
    head = ["tool", "precision", "recall", "F1", "correct labels afterwards, %"]
    head += ["rows left", "of these correct, %", "linear", "network"]
    print("| " + " | ".join([*head, "seconds"]) + " |\n|" + " --- |" * (len(head) + 1))
    for tool, ask in TOOLS.items():
        if ask in (ask_docta, ask_dross_like_docta) and name != "worse":
            continue
        started = time.monotonic()
        flagged, corrected, kept = ask(case)
        seconds = time.monotonic() - started
        hits = len(np.intersect1d(flagged, wrong))
        precision, recall = hits / max(len(flagged), 1), hits / len(wrong)
        f1 = 2 * precision * recall / max(precision + recall, 1e-9)
        right = 100 * (corrected[:n] == case.truth[:n]).mean()
        left = 100 * (corrected[kept] == case.truth[kept]).mean()
        found = judges.judge(case, kept, corrected)
        accuracy = [f"{100 * (1 - found[model]['error']):.1f}" for model in ("linear", "network")]
        figures = (
            [f"{value:.3f}" for value in (precision, recall, f1)] if len(flagged) else [""] * 3
        )
        cells = [tool, *figures, f"{right:.1f}", f"{len(kept):,}", f"{left:.1f}", *accuracy]
        cells.append(f"{seconds:.0f}")
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print a table for each kind of labels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--labels", nargs="+", choices=list(LABELS), default=list(LABELS))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    x, truth, tested = load_features(options.rows)
    for name in options.labels:
        with np.load(sets.cifar10n_folder() / "cifar10n.npz") as file:
            given = file[LABELS[name]][FIRST : FIRST + options.rows]
        show(make_case(x, truth, given, tested), name)


if __name__ == "__main__":
    main()
