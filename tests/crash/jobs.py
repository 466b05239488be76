"""What dross is doing when it is killed or its disk is full: four jobs, each in a forked process.

A job can be given again, and gives the same bits however often it was interrupted before.
"""

import faulthandler
import hashlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

import dross
from dross.cleaning.project_files import read_sealed
from dross.errors import DrossError
from tests.quick_cleaning import quick_cleaning

FOUND = (
    "scores.csv",
    "instances.parquet",
    "validation.parquet",
    "content.parquet",
    "labels.parquet",
    "why.json",
)
REFUSED = 3  # how a process ends that a DrossError ended
OPTIONS = {
    "columns": {"note": "ignore"},
    "repeats": 2,
    "epochs": 4,
    "lr": 0.05,
    "check": 2,
    "progress": False,
}
_HANG = 300  # seconds for one job, which takes a few


@dataclass(frozen=True)
class Job:
    """Something that may be interrupted: how to begin, what to do (again), what came out."""

    prepare: Callable[[Path], None]
    work: Callable[[Path], None]
    result: Callable[[Path], bytes]


# --- record --------------------------------------------------------------------------------------


def record(folder: Path) -> None:
    """Train 400 steps, or go on with them."""
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.randn(200, 6, generator=generator),
        torch.randint(0, 3, (200,), generator=generator),
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = dross.train(
        model,
        (x, y),
        "cross_entropy",
        optimizer,
        path=folder / "tape",
        epochs=40,
        batch_size=20,
        keep=dross.tape.Checkpoints(every=7),
        progress=False,
        resume=True,
    )
    scores = run.influence(dross.mean_loss((x[:50], y[:50])), resume=True)
    scores.save(folder / "scores.safetensors")


# --- clean, judge, export ------------------------------------------------------------------------


def write_table(folder: Path) -> None:
    """A table of 150 rows, with notes that make it 80 KB long: 20 sizes of disk for its copy."""
    data = load_breast_cancer(as_frame=True)
    frame = data.data.iloc[:150, :8].assign(kind=np.array(["a", "b"])[data.target[:150]])
    frame["note"] = [f"note {row} " * 50 for row in range(len(frame))]
    frame.to_csv(folder / "table.csv", index=False)


def clean(folder: Path) -> None:
    """Clean the table."""
    with quick_cleaning():
        dross.clean(folder / "table.csv", "kind", out=folder / "run", **OPTIONS)


def clean_first(folder: Path) -> None:
    """A project that is finished."""
    write_table(folder)
    clean(folder)


def judge(folder: Path) -> None:
    """Judge the removal of ten."""
    with quick_cleaning():
        dross.judge(folder / "run", remove=10, seeds=3, quick=True, progress=False)


def read_verdict(folder: Path) -> bytes:
    """The newest verdict without its time."""
    verdict = read_sealed(
        sorted((folder / "run" / "verdicts").glob("*.json"))[-1], dict
    )  # unsealed
    verdict.pop("made")
    return json.dumps(verdict, sort_keys=True).encode()


def export(folder: Path, remove: int = 10) -> None:
    """Export without the ten most harmful."""
    dross.export(folder / "run", folder / "cleaned.csv", remove=remove, overwrite=True)


def export_first(folder: Path) -> None:
    """A project with an earlier export, which the job replaces."""
    clean_first(folder)
    export(folder, remove=5)


def read_files(*names: str) -> Callable[[Path], bytes]:
    """The bytes of these files, one after the other."""
    return lambda folder: b"\0".join((folder / name).read_bytes() for name in names)


JOBS = {
    "record": Job(lambda _: None, record, read_files("scores.safetensors")),
    "clean": Job(write_table, clean, read_files(*(f"run/{name}" for name in FOUND))),
    "judge": Job(clean_first, judge, read_verdict),
    "export": Job(export_first, export, read_files("cleaned.csv", "cleaned-decisions.csv")),
}


# --- processes -----------------------------------------------------------------------------------


def fork(work: Callable[[], None], *, out: int | None = None, errors: int | None = None) -> int:
    """The id of a process that does the work.

    It ends with 0 if the work succeeds, with REFUSED where a DrossError ends it, else with 1.
    out, errors: descriptors for what it prints; by default nothing, and what this process has.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno() if out is None else out, 1)
            if errors is not None:
                os.dup2(errors, 2)
            faulthandler.dump_traceback_later(_HANG, exit=True)
            warnings.simplefilter("ignore")
            work()
            code = 0
        except DrossError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            code = REFUSED
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return pid


def finish(work: Callable[[Path], None], folder: Path) -> float:
    """Do the work in a process that nobody disturbs; the seconds that it took."""
    start = time.monotonic()
    _, status = os.waitpid(fork(lambda: work(folder)), 0)
    assert status == 0, "the same call, given again, did not succeed"
    return time.monotonic() - start


def digest_inputs(folder: Path) -> str:
    """Of what a job may read and never write."""
    path = folder / "table.csv"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
