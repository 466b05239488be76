"""What a person gains: clean data with wrong labels, train an ordinary model, test on right labels.

    python benchmarks/outcome/fetch.py FOLDER && export DROSS_OUTCOME_DATA=FOLDER
    pip install cleanlab==2.9.0
    python benchmarks/outcome/run.py [--quick] [--held-out] [--sets NAMES] [--seeds 3]

For every set, kind of noise, state of the validation labels (right, or as wrong as the others) and
seed: each method says what to remove and what to relabel in the training part; two scikit-learn
models learn the result and are tested on right labels. The figure is the share of the possible
gain, that of removing exactly the wrong labels. Results are kept line by line; the same command
goes on. Tune nothing on the held-out sets: they are for the end.
"""

import argparse
import itertools
import json
import shutil
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path

import judges
import noise
import numpy as np
import sets

import dross

TRAIN, VALIDATION, TEST = 2000, 700, 2000
QUICK = {"sets": ("digits", "spambase", "newsgroups"), "noise": ("none", "uniform 20")}
WORSE = 0.005  # of the error, which counts as harm


class Case:
    """One set with some of its labels wrong, cut into three parts."""

    def __init__(self, name: str, kind: str, noisy_validation: bool, seed: int):
        whole = sets.load(name)
        order = np.random.default_rng([seed, 7]).permutation(len(whole.y))
        order = order[: TRAIN + VALIDATION + TEST]
        count = len(order)
        train, validation = min(TRAIN, count // 2), min(VALIDATION, count // 6)
        self.data = whole.take(order)
        self.train = np.arange(train)
        self.validation = np.arange(train, train + validation)
        self.test = np.arange(train + validation, count)
        self.labels = noise.wrong_labels(self.data, kind, seed)
        right = self.test if noisy_validation else np.concatenate([self.validation, self.test])
        self.labels[right] = self.data.y[right]
        self.wrong = np.flatnonzero(self.labels[self.train] != self.data.y[self.train])
        self.x, self.seed = judges.encode(self.data, self.train), seed


# --- the methods: each gives the ids to remove, and {id: label} to relabel ------------------------


def do_nothing(case: Case):
    return [], {}


def remove_wrong(case: Case):
    """Exactly the wrong ones: what is possible."""
    return case.wrong, {}


def remove_random(case: Case):
    """As many as are wrong, at random."""
    rng = np.random.default_rng(case.seed)
    return rng.choice(len(case.train), len(case.wrong), replace=False), {}


def use_cleanlab(case: Case):
    """`find_label_issues` with the cross-validated probabilities of a logistic regression."""
    if case.data.task == "regression":
        return None
    from cleanlab.filter import find_label_issues
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    y = np.unique(case.labels[case.train].astype(str), return_inverse=True)[1]
    model, x = LogisticRegression(max_iter=300), case.x[case.train]
    chances = cross_val_predict(model, x, y, cv=5, method="predict_proba")
    return np.flatnonzero(find_label_issues(y, chances)), {}


def use_dross(case: Case):
    """The recommended plan of `dross.clean`."""
    parts = (case.train, case.validation, case.test)
    pair = lambda ids: (case.data.take(ids).x, case.labels[ids])
    x, y = pair(case.train)
    options = {"text": "text"} if case.data.kind == "text" else {}
    folder = Path(tempfile.mkdtemp(prefix="dross-outcome-"))
    try:
        validation, test = (pair(ids) for ids in parts[1:])
        given = {"validation": validation, "test": test, "task": case.data.task, **options}
        project = dross.clean(x, y, out=folder / "run", progress=False, seed=case.seed, **given)
        places = [int(source.split()[-1]) for source in project.instances["source"]]
        plan = project.recommended
        if plan is None:
            return [], {}
        relabelled = {places[id]: label for id, label in plan.relabelled.items()}
        return [places[id] for id in plan.removed], relabelled
    finally:
        shutil.rmtree(folder, ignore_errors=True)


METHODS = {
    "nothing": do_nothing,
    "exactly the wrong ones": remove_wrong,
    "random": remove_random,
    "cleanlab": use_cleanlab,
    "dross": use_dross,
}


def measure(case: Case, method: str) -> dict | None:
    """The test errors of the user's models on what a method leaves, and its time."""
    started = time.monotonic()
    found = METHODS[method](case)
    if found is None:
        return None
    removed, relabelled = found
    seconds = time.monotonic() - started
    labels = case.labels.copy()
    for id, label in relabelled.items():
        labels[id] = float(label) if case.data.task == "regression" else label
    kept = np.setdiff1d(case.train, np.asarray(removed, dtype=int))
    learnt = labels.astype(float if case.data.task == "regression" else str)
    truth = case.data.y if case.data.task == "regression" else case.data.y.astype(str)
    errors = {
        name: judges.error(model, case.x, truth, kept, learnt, case.test)
        for name, model in judges.models(case.data).items()
    }
    counts = {"removed": len(removed), "relabelled": len(relabelled), "wrong": len(case.wrong)}
    return {"errors": errors, "seconds": round(seconds, 1), **counts}


# --- all cases ------------------------------------------------------------------------------------


def list_cases(names, kinds, seeds: int):
    """(set, noise, whether the validation labels are noisy, seed)."""
    for seed, name in itertools.product(range(seeds), names):
        for kind in noise.kinds_of(sets.load(name)):
            if kinds is None or kind in kinds:
                yield from (
                    (name, kind, noisy, seed) for noisy in (False, True)[: 1 + (kind != "none")]
                )


def summarize(lines: list[dict]) -> None:
    """Print the pooled share of the possible gain, and how often clean data were made worse."""
    by_case = defaultdict(dict)
    for line in lines:
        by_case[tuple(line["case"])][line["method"]] = line
    for noisy in (False, True):
        print(f"\nvalidation labels {'as wrong as the others' if noisy else 'right'}")
        for method in METHODS:
            gained, possible, worse, clean = 0.0, 0.0, 0, 0
            for case, results in by_case.items():
                if (
                    case[2] != noisy
                    or method not in results
                    or "exactly the wrong ones" not in results
                ):
                    continue
                before, best, after = (
                    results[m]["errors"] for m in ("nothing", "exactly the wrong ones", method)
                )
                if case[1] == "none":
                    clean += len(before)
                    worse += sum(after[judge] > before[judge] + WORSE for judge in before)
                    continue
                gained += sum(before[judge] - after[judge] for judge in before)
                possible += sum(before[judge] - best[judge] for judge in before)
            share = f"{gained / possible:6.2f}" if possible else "      "
            print(f"  {method:24} {share}   made worse on clean data: {worse} of {clean}")


def main() -> None:
    """Run what is missing, and print what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="three sets, two kinds of noise, 1 seed"
    )
    parser.add_argument("--held-out", action="store_true", help="the sets that count, at the end")
    parser.add_argument("--sets", nargs="+", help="some sets only")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/outcome.jsonl"))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    names = options.sets or (sets.HELD_OUT if options.held_out else sets.DEVELOP)
    kinds, seeds = None, options.seeds
    if options.quick:
        names, kinds, seeds = QUICK["sets"], QUICK["noise"], 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        [json.loads(line) for line in options.out.read_text().splitlines()]
        if options.out.exists()
        else []
    )
    done = {(*line["case"], line["method"]) for line in lines}
    for about in list_cases(names, kinds, seeds):
        missing = [method for method in METHODS if (*about, method) not in done]
        if not missing:
            continue
        case = Case(*about)
        for method in missing:
            found = measure(case, method)
            if found is not None:
                lines.append({"case": about, "method": method, **found})
                with options.out.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
        print(
            *about,
            {line["method"]: line["errors"] for line in lines if line["case"] == about},
            flush=True,
        )
    summarize(lines)


if __name__ == "__main__":
    main()
