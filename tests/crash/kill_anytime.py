"""Kill dross at random moments, give the same command again, and compare with a run that lived.

    python tests/crash/kill_anytime.py [--moments 30] [--only record,clean,judge,export]

Every attempt is a forked process that is killed with SIGKILL after a random part of the time that
the whole job takes. Afterwards the same call is made again and must give the same bits as a job
that nobody killed; the inputs must be untouched.
"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from jobs import JOBS, digest_inputs, finish, fork


def kill_at_random(name: str, moments: int, seed: int = 0) -> int:
    """How often the job was killed in the middle. Raises AssertionError where anything is lost."""
    job, rng, killed = JOBS[name], random.Random(seed), 0
    with tempfile.TemporaryDirectory() as whole:
        begun = Path(whole) / "begun"
        begun.mkdir()
        job.prepare(begun)
        alive = Path(whole) / "alive"
        shutil.copytree(begun, alive)
        job.work(alive)  # here: what is imported now, every process has from the beginning
        shutil.rmtree(alive)
        shutil.copytree(begun, alive)
        seconds, expected, inputs = finish(job.work, alive), job.result(alive), digest_inputs(alive)
        for moment in range(moments):
            folder = Path(whole) / f"killed-{moment}"
            shutil.copytree(begun, folder)
            pid = fork(partial(job.work, folder))
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
