"""One step of the comparison in a process of its own.

    python -m benchmarks.peers.worker MODEL WHAT --folder FOLDER

WHAT is `problem`, `truth:PART`, `method:NAME`, `duel` or `equality`.
"""

import argparse
import os
import resource
import time
import traceback
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from dross._io import write_json

from . import problem as problems
from . import truth
from .methods import find
from .problem import Problem

SECONDS_TO_REPEAT = 15.0  # a method that takes longer is timed once
# A method that takes longer for one query, and as long again for each other one, gets only that.
SECONDS_TO_ASK_MORE = 40.0
QUERY_BY_QUERY = ("bergson-magic", "dross-averaged")
MEMORY = 7 << 30  # bytes that a method may ask for: the machine is shared


def resident(field: str) -> float:
    """MB of this process: VmRSS now, VmHWM at its highest since the mark was last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return float("nan")


def reset_peak() -> None:
    """Let VmHWM begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def time_call(function, *arguments) -> tuple[float, object]:
    """CPU seconds of this process, and the value.

    On a shared machine they say what the work costs; a clock says how busy the others are.
    """
    start = time.process_time()
    value = function(*arguments)
    return time.process_time() - start, value


def run_method(problem: Problem, name: str) -> dict:
    """Score with a method, write its scores, and return its costs."""
    method = find(name)
    for _ in islice(problem.training_steps(problem.fresh_model()), 20):  # warms torch up
        pass
    reset_peak()
    before = resident("VmRSS")
    spent: dict[str, list[float]] = {"training": [], "mean": [], "singles": []}
    scores, memory = {}, float("nan")
    for _ in range(problem.setting.rounds):
        for kind in ("mean", "singles"):
            if (
                kind == "singles"
                and name in QUERY_BY_QUERY
                and spent["mean"][0] > SECONDS_TO_ASK_MORE
            ):
                continue
            if kind == "mean" or problem.setting.rounds > 1:
                spent["training"].append(time_call(problem.train_plainly)[0])
            taken, scores[kind] = time_call(method, problem, kind)
            spent[kind].append(taken)
            if kind == "mean" and len(spent["mean"]) == 1:
                memory = resident("VmHWM") - before
        if spent["mean"][-1] + sum(spent["singles"][-1:]) > SECONDS_TO_REPEAT:
            break
    for kind, values in scores.items():
        if not np.isfinite(values).all():
            share = f"{(~np.isfinite(values)).mean():.0%} of those for the {kind} query"
            raise ValueError(f"scores that are not finite ({share})")
    np.savez(problem.folder / f"scores-{name}.npz", **scores)
    return {"seconds": spent, "memory": memory}


def main() -> None:
    """Do one step and write its result; a failure is a result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("what", help="problem, truth:PART, method:NAME, duel or equality")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    problem = Problem.of(options.model, options.folder, options.small)
    what, _, name = options.what.partition(":")
    result: dict = {"load": os.getloadavg()[0]}
    try:
        if what == "problem":
            result["about"] = problems.make(problem)
        elif what == "truth":
            np.savez(problem.folder / f"truth-{name}.npz", **truth.measure(problem, name))
        elif what in ("duel", "equality"):
            from . import duel  # needs bergson

            result |= getattr(duel, what)(problem)
        else:
            result |= run_method(problem, name)
    except Exception as error:
        traceback.print_exc()
        result["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    write_json(problem.folder / f"{options.what.replace(':', '-')}.json", result)


if __name__ == "__main__":
    main()
