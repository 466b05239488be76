"""Kill dross at random moments, give the same command again, and compare with a run that lived.

    python tests/crash/kill_anytime.py [--moments 30] [--only record,clean,judge,export]

Every attempt is a forked process that is killed with SIGKILL after a random part of the time that
the whole job takes. Afterwards the same call is made again and must give the same bits as a job
that nobody killed; the inputs must be untouched.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import dross

OPTIONS = {"runs": 2, "epochs": 4, "rate": 0.05, "verified": 2, "progress": False}


@dataclass(frozen=True)
class Job:
    """Something that may be killed: how to begin, what to do (again), what came out."""

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
        tape=folder / "tape",
        epochs=40,
        batch_size=20,
        keep=dross.Checkpoints(every=7),
        progress=False,
        resume=True,
    )
    scores = run.influence(dross.mean_loss((x[:50], y[:50])), resume=True)
    scores.save(folder / "scores.safetensors")


# --- clean, judge, export ------------------------------------------------------------------------


def write_table(folder: Path) -> None:
    """A table of 150 rows."""
    data = load_breast_cancer(as_frame=True)
    frame = data.data.iloc[:150, :8].assign(kind=np.array(["a", "b"])[data.target[:150]])
    frame.to_csv(folder / "table.csv", index=False)


def clean(folder: Path) -> None:
    """Clean the table."""
    dross.clean(folder / "table.csv", "kind", out=folder / "run", **OPTIONS)


def clean_first(folder: Path) -> None:
    """A project that is finished."""
    write_table(folder)
    clean(folder)


def judge(folder: Path) -> None:
    """Judge the removal of ten."""
    if not list((folder / "run" / "verdicts").glob("*.json")):
        dross.judge(folder / "run", remove=10, seeds=3, quick=True, progress=False)


def read_verdict(folder: Path) -> bytes:
    """The newest verdict without its time."""
    verdict = json.loads(sorted((folder / "run" / "verdicts").glob("*.json"))[-1].read_text())
    verdict.pop("made")
    return json.dumps(verdict, sort_keys=True).encode()


def export(folder: Path) -> None:
    """Export without the ten most harmful."""
    dross.export(folder / "run", folder / "cleaned.csv", remove=10, overwrite=True)


def read_files(*names: str) -> Callable[[Path], bytes]:
    """The bytes of these files, one after the other."""
    return lambda folder: b"\0".join((folder / name).read_bytes() for name in names)


JOBS = {
    "record": Job(lambda _: None, record, read_files("scores.safetensors")),
    "clean": Job(write_table, clean, read_files("run/scores.csv")),
    "judge": Job(clean_first, judge, read_verdict),
    "export": Job(clean_first, export, read_files("cleaned.csv", "cleaned.csv-decisions.csv")),
}


# --- killing -------------------------------------------------------------------------------------


def fork(work: Callable[[Path], None], folder: Path) -> int:
    """The id of a process that does the work. It ends with 0 only if the work succeeds."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno(), 1)
            warnings.simplefilter("ignore")
            work(folder)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(code)
    return pid


def finish(work: Callable[[Path], None], folder: Path) -> float:
    """Do the work in a process that nobody kills; the seconds that it took."""
    start = time.monotonic()
    _, status = os.waitpid(fork(work, folder), 0)
    assert status == 0, "the same call, given again, did not succeed"
    return time.monotonic() - start


def digest_inputs(folder: Path) -> str:
    """Of what a job may read and never write."""
    path = folder / "table.csv"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def kill_at_random(name: str, moments: int, seed: int = 0) -> int:
    """How often the job was killed in the middle. Raises AssertionError where anything is lost."""
    job, rng, killed = JOBS[name], random.Random(seed), 0
    with tempfile.TemporaryDirectory() as whole:
        begun = Path(whole) / "begun"
        begun.mkdir()
        job.prepare(begun)
        alive = Path(whole) / "alive"
        shutil.copytree(begun, alive)
        # A first job warms up what is done once; the second one says how long a job takes.
        finish(job.work, alive)
        shutil.rmtree(alive)
        shutil.copytree(begun, alive)
        seconds, expected, inputs = finish(job.work, alive), job.result(alive), digest_inputs(alive)
        for moment in range(moments):
            folder = Path(whole) / f"killed-{moment}"
            shutil.copytree(begun, folder)
            pid = fork(job.work, folder)
            time.sleep(rng.random() * seconds)
            done, _ = os.waitpid(pid, os.WNOHANG)
            if not done:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                killed += 1
            finish(job.work, folder)
            assert job.result(folder) == expected, f"{name}: other bits after moment {moment}"
            assert digest_inputs(folder) == inputs, f"{name}: the input was written"
            shutil.rmtree(folder)
    return killed


def main() -> None:
    """Print how often each job was killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=30)
    parser.add_argument("--only", default=",".join(JOBS))
    options = parser.parse_args()
    torch.set_num_threads(1)  # before anything forks
    for name in options.only.split(","):
        start = time.monotonic()
        killed = kill_at_random(name, options.moments)
        took = time.monotonic() - start
        print(f"{name}: killed {killed} times in {options.moments} runs, same bits ({took:.0f} s)")


if __name__ == "__main__":
    main()
