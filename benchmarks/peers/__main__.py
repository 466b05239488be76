"""Runs what is missing, one process per step, and prints the table of each model as it grows."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dross.support.atomic_files import write_json

from .measures import load_scores, measured
from .methods import METHODS
from .problem import Problem
from .report import write_report
from .settings import SETTINGS
from .truth import SHARES

QUICK_MODEL = "digits-gelu"
QUICK_METHODS = (
    "dross-retrace",
    "dross-no-hessian",
    "random",
    "bergson-magic",
    "captum-tracincp",
    "dattri-if-cg",
    "kronfluence-ekfac",
    "traker",
)
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TQDM_DISABLE"), "1"
)


def step(problem: Problem, what: str, limit: float, options: argparse.Namespace) -> dict:
    """Do one step in a process of its own, unless its result is there; a failure is a result."""
    kept = problem.folder / f"{what.replace(':', '-')}.json"
    if kept.exists() and not (options.again and "failed" in json.loads(kept.read_text())):
        return json.loads(kept.read_text())
    command = [
        sys.executable,
        "-m",
        "benchmarks.peers.worker",
        problem.setting.name,
        what,
        "--folder",
        str(options.folder),
    ]
    problem.folder.mkdir(parents=True, exist_ok=True)
    print(f"{problem.setting.name}: {what} ...", end=" ", flush=True)
    start = time.perf_counter()
    log = kept.with_suffix(".log")
    reason = ""
    with open(log, "w") as out:
        try:
            done = subprocess.run(
                command + ["--small"] * options.quick,
                env=os.environ | ONE_THREAD,
                stdout=out,
                stderr=out,
                timeout=limit,
            )
            reason = f"the process ended with status {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            reason = f"not finished after {limit:.0f} s"
    if reason:
        last = [line for line in log.read_text().splitlines() if "Error" in line]
        write_json(kept, {"failed": f"{reason}{': ' + last[-1][:200] if last else ''}"})
    result = json.loads(kept.read_text())
    print(
        f"{time.perf_counter() - start:.0f} s{'  FAILED: ' + result['failed'] if 'failed' in result else ''}",
        flush=True,
    )
    return result


def show(problem: Problem, name: str) -> None:
    path = problem.folder / f"scores-{name}.npz"
    if path.exists():
        numbers = measured(problem, load_scores(path))
        spent = json.loads((problem.folder / f"method-{name}.json").read_text())["seconds"]
        times = [
            np.median(spent[kind]) / np.median(spent["training"]) if spent[kind] else np.nan
            for kind in ("mean", "singles")
        ]
        parts = [
            f"{key} {value:.2f}"
            for key, value in numbers.items()
            if key.endswith("_mean") or key == "auroc"
        ]
        print(
            f"    {name}: {', '.join(parts)}; {times[0]:.1f} and {times[1]:.1f} trainings",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"a small {QUICK_MODEL} and a few methods, in about two minutes",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(SETTINGS),
        default=None,
        metavar="MODEL",
        help=", ".join(SETTINGS),
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=list(METHODS),
        default=None,
        metavar="NAME",
        help=", ".join(METHODS),
    )
    parser.add_argument(
        "--limit", type=float, default=900, help="seconds that a method may take (default 900)"
    )
    parser.add_argument("--again", action="store_true", help="try again what failed")
    parser.add_argument(
        "--without-truth",
        action="store_true",
        help="leave the counterfactual runs to another process",
    )
    parser.add_argument(
        "--without-duel", action="store_true", help="leave out the timings against MAGIC"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="where results are kept (default runs/peers/full or quick)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="write the page, table and figure there; run nothing",
    )
    options = parser.parse_args()
    options.folder = options.folder or Path("runs/peers") / ("quick" if options.quick else "full")
    if options.report:
        write_report(options.folder, options.report, options.quick)
        return
    names = options.methods or (QUICK_METHODS if options.quick else list(METHODS))
    for model in options.only or ([QUICK_MODEL] if options.quick else list(SETTINGS)):
        problem = Problem.of(model, options.folder, options.quick)
        made = step(problem, "problem", 3600, options)
        print(f"{model}: {made.get('about', made.get('failed'))}", flush=True)
        if "failed" in made:
            continue
        if not options.without_truth:
            for part in ("loo", *(f"{share:g}" for share in SHARES)):
                step(problem, f"truth:{part}", 4 * 3600, options)
        for name in names:
            step(problem, f"method:{name}", options.limit, options)
            show(problem, name)
        if not options.without_duel:
            step(problem, "duel", 4 * options.limit, options)
            step(problem, "equality", options.limit, options)


if __name__ == "__main__":
    main()
