"""Run what is missing, one process per step, and print each model's figures as they come.

    DROSS_DATA=... python -m benchmarks.peers --quick

Results are kept in a folder as they finish, and what is there is not computed again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dross._io import write_json

from .measures import load_scores, measure_agreement
from .methods import METHODS
from .problem import Problem
from .report import add_rows, write_report
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


def run_step(problem: Problem, what: str, limit: float, options: argparse.Namespace) -> dict:
    """Do one step in a process of its own, unless its result is there; a failure is a result."""
    kept = problem.folder / f"{what.replace(':', '-')}.json"
    if kept.exists() and not (options.again and "failed" in json.loads(kept.read_text())):
        return json.loads(kept.read_text())
    command = [sys.executable, "-m", "benchmarks.peers.worker", problem.setting.name, what]
    command += ["--folder", str(options.folder), *["--small"] * options.quick]
    problem.folder.mkdir(parents=True, exist_ok=True)
    print(f"{problem.setting.name}: {what} ...", end=" ", flush=True)
    start = time.perf_counter()
    log = kept.with_suffix(".log")
    reason = ""
    with open(log, "w") as out:
        try:
            environment = os.environ | ONE_THREAD
            done = subprocess.run(command, env=environment, stdout=out, stderr=out, timeout=limit)
            reason = f"the process ended with status {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            reason = f"not finished after {limit:.0f} s"
    if reason:
        last = [line for line in log.read_text().splitlines() if "Error" in line]
        write_json(kept, {"failed": f"{reason}{': ' + last[-1][:200] if last else ''}"})
    result = json.loads(kept.read_text())
    failure = f"  FAILED: {result['failed']}" if "failed" in result else ""
    print(f"{time.perf_counter() - start:.0f} s{failure}", flush=True)
    return result


def show(problem: Problem, name: str) -> None:
    """Print the figures of a method, if it has run."""
    path = problem.folder / f"scores-{name}.npz"
    if not path.exists():
        return
    numbers = measure_agreement(problem, load_scores(path))
    spent = json.loads((problem.folder / f"method-{name}.json").read_text())["seconds"]
    one, many = (
        np.median(spent[kind]) / np.median(spent["training"]) if spent[kind] else np.nan
        for kind in ("mean", "singles")
    )
    shown = [key for key in numbers if key.endswith("_mean") or key == "auroc"]
    figures = ", ".join(f"{key} {numbers[key]:.2f}" for key in shown)
    print(f"    {name}: {figures}; {one:.1f} and {many:.1f} trainings", flush=True)


def read_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    about_quick = f"a small {QUICK_MODEL} and a few methods, in about two minutes"
    add("--quick", action="store_true", help=about_quick)
    for option, names, metavar in (("--only", SETTINGS, "MODEL"), ("--methods", METHODS, "NAME")):
        add(option, nargs="+", choices=list(names), metavar=metavar, help=", ".join(names))
    add("--limit", type=float, default=900, help="seconds that a method may take (default 900)")
    add("--again", action="store_true", help="try again what failed")
    about_truth = "leave the counterfactual runs to another process"
    add("--without-truth", action="store_true", help=about_truth)
    add("--without-duel", action="store_true", help="leave out the timings against MAGIC")
    about_folder = "where results are kept (default runs/peers/full or quick)"
    add("--folder", type=Path, help=about_folder)
    about_add = "write the rows of these methods into the tables there when they have run"
    add("--add", type=Path, metavar="FOLDER", help=about_add)
    about_report = "write the page, table and figure there; run nothing"
    add("--report", type=Path, metavar="FOLDER", help=about_report)
    return parser.parse_args()


def main() -> None:
    """Run what is missing, or write the report."""
    options = read_options()
    options.folder = options.folder or Path("runs/peers") / ("quick" if options.quick else "full")
    if options.report:
        write_report(options.folder, options.report, options.quick)
        return
    names = options.methods or (QUICK_METHODS if options.quick else list(METHODS))
    for model in options.only or ([QUICK_MODEL] if options.quick else list(SETTINGS)):
        problem = Problem.of(model, options.folder, options.quick)
        made = run_step(problem, "problem", 3600, options)
        print(f"{model}: {made.get('about', made.get('failed'))}", flush=True)
        if "failed" in made:
            continue
        if not options.without_truth:
            for part in ("loo", *(f"{share:g}" for share in SHARES)):
                run_step(problem, f"truth:{part}", 4 * 3600, options)
        for name in names:
            run_step(problem, f"method:{name}", options.limit, options)
            show(problem, name)
        if not options.without_duel:
            run_step(problem, "duel", 4 * options.limit, options)
            run_step(problem, "equality", options.limit, options)
    if options.add:
        add_rows(options.folder, options.add, names, options.quick)


if __name__ == "__main__":
    main()
