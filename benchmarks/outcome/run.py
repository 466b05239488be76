"""What a person gains: clean data with wrong labels, train an ordinary model, test on correct labels.

    python -m benchmarks.outcome.fetch && python -m benchmarks.outcome.sets dev held_out
    python -m benchmarks.outcome.run [--held-out] [--sets NAMES] [--seeds 3] [--jobs 2] ...

For every set, kind of noise, situation (validation labels right, or as wrong as the others; noisy
ones of which a person checked 100 rows; one file without a validation part) and seed: each method
says what to remove and what to relabel in the training part; four scikit-learn models learn the
result and are tested on correct labels: error, log loss and calibration. Needs numpy, scipy,
scikit-learn and torch. Results are kept line by line; the same command goes on. Tune nothing on the
held-out sets: they are for the end.
"""

import argparse
import inspect
import json
import multiprocessing
import os
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

from . import judges, noise, rivals, sets, summary
from .cases import NOISY, RIGHT, SITUATIONS, Case, make_case, situations_of
from .methods import CLEAN_LEARNING, METHODS, is_shared


def measure(case: Case, method: str) -> dict:
    """The measures of the judging models on what a method leaves, what it did and its time."""
    started = time.monotonic()
    found = METHODS[method].clean(case)
    if found is None:
        return {"measures": None}
    if method == CLEAN_LEARNING:
        return _measure_clean_learning(case, started)
    seconds = time.monotonic() - started
    # nobody removes what a person has just confirmed
    removed = np.array([i for i in found.removed if not case.checked[i]], dtype=int)
    relabeled = {i: label for i, label in found.relabeled.items() if not case.checked[i]}
    labels = case.given.copy()
    for i, label in relabeled.items():
        labels[i] = label
    kept = np.setdiff1d(case.train, removed)
    key = kept.tobytes() + labels[kept].tobytes()
    if key not in case.kept:
        case.kept[key] = judges.judge(case, kept, labels)
    touched = np.union1d(removed, np.array(list(relabeled), dtype=int))
    return {
        "measures": case.kept[key],
        "seconds": round(seconds, 2),
        "rows": len(case.train),
        "removed": len(removed),
        "relabeled": len(relabeled),
        "wrong": len(case.wrong),
        "found": len(np.intersect1d(touched, case.wrong)),
        "note": found.note,
    }


def _measure_clean_learning(case: Case, started: float) -> dict:
    """CleanLearning finds other issues for each model, and weights the classes that are left."""
    measures, sizes, hits, seconds = {}, [], [], 0.0
    for name, model in judges.make(case).items():
        started = time.monotonic()
        removed, of_class = rivals.clean_learning(case, name)
        seconds += time.monotonic() - started
        kept = np.setdiff1d(case.train, removed[~case.checked[removed]])
        takes = "sample_weight" in inspect.signature(model.fit).parameters
        weights = of_class[case.given[kept]] if takes else None
        measures[name] = judges.judge_model(case, model, kept, case.given, weights)
        sizes.append(len(removed))
        hits.append(len(np.intersect1d(removed, case.wrong)))
    return {
        "measures": measures,
        "seconds": round(seconds / len(measures), 2),
        "rows": len(case.train),
        "removed": int(np.mean(sizes)),
        "relabeled": 0,
        "wrong": len(case.wrong),
        "found": int(np.mean(hits)),
        "note": "by model",
    }


def run_unit(work: tuple) -> list[dict]:
    """The results of the methods that are missing for some situations of a set, noise and seed."""
    path, kind, seed, missing, deadline = work
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    lines, shared = [], {}
    for situation, methods in missing.items():
        case = make_case(path, kind, situation, seed)
        for method in methods:
            if time.time() > deadline:
                return lines
            about = {"case": [case.name, kind, situation, seed], "method": method}
            result = shared.get(method) if is_shared(method, situation) else None
            if result is None:
                try:
                    result = measure(case, method)
                except Exception:  # one tool that fails is a result; the others go on
                    result = {"measures": None, "failed": traceback.format_exc()[-2000:]}
            if is_shared(method, situation):
                shared[method] = result
            lines.append(about | {"task": case.data.task} | result)
    return lines


def list_units(paths: list[Path], options: argparse.Namespace, done: set, deadline: float):
    """(file, noise, seed, {situation: missing methods}, deadline)."""
    units = []
    for seed in range(options.seeds):
        for path in paths:
            for kind in noise.kinds_of(sets.load(path)):
                if options.noise and kind not in options.noise:
                    continue
                wanted = [s for s in situations_of(kind) if s in options.cases]
                # right and noisy validation labels share what does not look at them
                both = [s for s in wanted if s in (RIGHT, NOISY)]
                for group in (both, *([s] for s in wanted if s not in both)):
                    missing = {}
                    for situation in group:
                        about = (path.stem, kind, situation, seed)
                        methods = [m for m in options.methods if (*about, m) not in done]
                        if methods:
                            missing[situation] = methods
                    if missing:
                        units.append((path, kind, seed, missing, deadline))
    # in a fixed random order within a seed, so that a run that is cut off has some of everything
    order = np.random.default_rng(0).permutation(len(units))
    return [units[i] for i in sorted(order, key=lambda i: units[i][2])]


def main() -> None:
    """Run what is missing, and print what is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--held-out", action="store_true", help="the sets that count, at the end")
    parser.add_argument("--sets", nargs="+", help="some sets only")
    parser.add_argument("--noise", nargs="+", help="some kinds only")
    parser.add_argument("--cases", nargs="+", default=SITUATIONS, choices=SITUATIONS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, default=1e6, help="then stop; go on later")
    parser.add_argument("--out", type=Path, default=Path("runs/outcome.jsonl"))
    parser.add_argument("--add", type=Path, help="write the rows into outcome.csv there")
    parser.add_argument("--quiet", action="store_true", help="print no tables")
    options = parser.parse_args()
    folder = sets.FOLDER / ("held_out" if options.held_out else "dev")
    paths = sorted(folder.glob("*.npz"))
    if options.sets:
        paths = [path for path in paths if path.stem in options.sets]
    if not paths:
        raise SystemExit(f"{folder} has no such sets: run fetch.py and sets.py first.")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = summary.read(options.out)
    done = {(*line["case"], line["method"]) for line in lines}
    deadline = time.time() + 60 * options.minutes
    units = list_units(paths, options, done, deadline)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # units run side by side
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs) as pool, options.out.open("a") as file:
        for number, found in enumerate(pool.imap_unordered(run_unit, units), start=1):
            for line in found:
                file.write(json.dumps(line) + "\n")
                if "failed" in line:
                    print(*line["case"], line["method"], "failed:", line["failed"].splitlines()[-1])
            file.flush()
            lines += found
            if found and number % 20 == 0:
                print(f"{number} of {len(units)} units", flush=True)
        pool.close()
        pool.join()
    names = {path.stem for path in paths}
    lines = [line for line in lines if line["case"][0] in names]
    if options.add is not None:
        summary.add_rows(lines, options.methods, options.add / "outcome.csv")
    if not options.quiet:
        summary.show(lines)


if __name__ == "__main__":
    main()
