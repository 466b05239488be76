"""What a person gains: clean data with wrong labels, train an ordinary model, test on right labels.

    python benchmarks/outcome/fetch.py FOLDER && export DROSS_OUTCOME_DATA=FOLDER
    pip install cleanlab==2.9.0 '.[pictures,text]'
    python benchmarks/outcome/run.py [--quick] [--held-out] [--sets NAMES] [--seeds 3] [--jobs 2]

For every set, kind of noise, state of the validation labels (right, or as wrong as the others) and
seed: each method says what to remove and what to relabel in the training part; dross' own network
and two scikit-learn models learn the result and are tested on right labels. The figure is the share
of the possible gain, that of removing exactly the wrong labels. Results are kept line by line; the
same command goes on. Tune nothing on the held-out sets: they are for the end. To compare with an
earlier version, DROSS_BEFORE names its source tree.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import time
import warnings
from pathlib import Path

import judges
import noise
import numpy as np
import sets
import summary
from cases import Case
from methods import METHODS

QUICK = {"sets": ("digits", "spambase"), "noise": ("none", "uniform 20")}


def measure(case: Case, method: str) -> dict | None:
    """The test errors of the judging models on what a method leaves, and its time."""
    started = time.monotonic()
    found = METHODS[method](case)
    if found is None:
        return None
    removed, relabelled = found
    seconds = time.monotonic() - started
    labels = case.labels.copy()
    for id, label in relabelled.items():
        labels[id] = float(label) if case.is_regression else label
    kept = np.setdiff1d(case.train, np.asarray(removed, dtype=int))
    learnt = labels.astype(float if case.is_regression else str)
    truth = case.data.y if case.is_regression else case.data.y.astype(str)
    errors = {
        name: judges.error(model, case.x, truth, kept, learnt, case.test)
        for name, model in judges.models(case.data, case.x.shape[1]).items()
    }
    errors["network"] = case.network_error(kept, labels)
    touched = np.union1d(np.asarray(removed, dtype=int), np.array(list(relabelled), dtype=int))
    counts = {"removed": len(removed), "relabelled": len(relabelled), "wrong": len(case.wrong)}
    counts["found"] = len(np.intersect1d(touched, case.wrong))
    return {"errors": errors, "seconds": round(seconds, 1), **counts}


def list_cases(names, kinds, seeds: int):
    """(set, noise, whether the validation labels are noisy, seed)."""
    for seed, name in itertools.product(range(seeds), names):
        for kind in noise.kinds_of(sets.load(name)):
            if kinds is None or kind in kinds:
                for noisy in (False, True)[: 1 + (kind != "none")]:
                    yield name, kind, noisy, seed


def run_case(work: tuple[tuple, list[str]]) -> list[dict]:
    """The results of the methods that are missing for a case."""
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    about, methods = work
    case, lines = Case(*about), []
    for method in methods:
        found = measure(case, method)
        lines.append({"case": about, "method": method, **(found or {"errors": None})})
    return lines


def main() -> None:
    """Run what is missing, and print what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two sets, two kinds of noise, 1 seed")
    parser.add_argument("--held-out", action="store_true", help="the sets that count, at the end")
    parser.add_argument("--sets", nargs="+", help="some sets only")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="some methods only")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="cases at once")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="then stop; go on later"
    )
    parser.add_argument("--device", default="cpu", help="where dross trains")
    parser.add_argument("--out", type=Path, default=Path("runs/outcome.jsonl"))
    parser.add_argument(
        "--add", type=Path, help="write the rows of --methods into outcome.csv there"
    )
    options = parser.parse_args()
    names = options.sets or (sets.HELD_OUT if options.held_out else sets.DEVELOP)
    kinds, seeds, started = None, options.seeds, time.monotonic()
    if options.quick:
        names, kinds, seeds = options.sets or QUICK["sets"], QUICK["noise"], 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = summary.read(options.out)
    done = {(*line["case"], line["method"]) for line in lines}
    missing = []
    for about in list_cases(names, kinds, seeds):
        methods = [method for method in options.methods if (*about, method) not in done]
        if methods:
            missing.append((about, methods))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # cases run side by side
    os.environ["DROSS_OUTCOME_DEVICE"] = options.device
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, maxtasksperchild=8) as pool, options.out.open("a") as file:
        for found in pool.imap_unordered(run_case, missing):
            for line in found:
                file.write(json.dumps(line) + "\n")
            file.flush()
            lines += found
            print(*found[0]["case"], flush=True)
            if time.monotonic() - started > 60 * options.minutes:
                pool.terminate()
                break
    if options.add is not None:
        summary.add_rows(lines, options.methods, options.add / "outcome.csv")
    summary.show([line for line in lines if line["case"][0] in names])


if __name__ == "__main__":
    main()
