"""Many draws of the cleansing experiment on one GPU at once, which small networks leave mostly idle.

    nvidia-cuda-mps-control -d        # lets the processes share the GPU instead of taking turns
    PYTHONPATH=src python experiments/draws_side_by_side.py --data mnist --draws 0:30 --retrain last --workers 6 --out runs/cleansing

Each worker is a process that takes every so-many-th draw. Results are kept draw by draw, as `dross reproduce cleansing` keeps them: stop it at
any time, start it again, or spread the draws over machines and put the files into one folder. --seconds ends it in time for a lease. With
DROSS_COMPILE=1 in the environment the passes are compiled, which takes the first minute and nearly halves the rest.
Needs torch, numpy, scipy, scikit-learn and safetensors only.
"""

import argparse
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch

from dross.parallel import job_pool
from dross.reproduce import cleansing


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--draws", default="0:30")
    parser.add_argument("--retrain", default="last")
    parser.add_argument("--methods", default=",".join(cleansing.METHODS))
    parser.add_argument("--out", type=Path, default=Path("runs/cleansing"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def wait_for(device: str, seconds: float = 60.0) -> None:
    """A GPU that many processes ask for at the same moment may be busy for some of them."""
    until = time.monotonic() + seconds
    while True:
        try:
            torch.zeros(1, device=device)
            return
        except RuntimeError:
            if time.monotonic() > until:
                raise
            time.sleep(2)


def work(given: argparse.Namespace) -> None:
    torch.set_num_threads(2)
    wait_for(given.device)
    job_pool.set_local_workers(
        (given.workers + 1) // 2
    )  # seldom are all of them retraining at the same time
    settings = cleansing.Settings.of(given.data, given.quick)
    methods = cleansing.check("method", given.methods.split(","), cleansing.METHODS)
    ways = cleansing.check("way to retrain", given.retrain.split(","), cleansing.RETRAINED)
    for number in list(cleansing.numbers(given.draws))[given.worker :: given.workers]:
        start = time.perf_counter()
        try:
            result = cleansing.compute(
                settings, number, methods, ways, given.out, device=given.device, progress=False
            )
        except Exception:  # the other draws go on
            traceback.print_exc()
        else:
            print(
                f"{given.data} {number}: {time.perf_counter() - start:.0f} s {result['seconds']}",
                flush=True,
            )


def main() -> None:
    given = arguments()
    if given.worker is not None:
        return work(given)
    until = time.monotonic() + given.seconds
    workers = [
        subprocess.Popen([sys.executable, *sys.argv, "--worker", str(k)])
        for k in range(given.workers)
    ]
    while any(worker.poll() is None for worker in workers) and time.monotonic() < until:
        time.sleep(1)
    for worker in workers:
        worker.kill()


if __name__ == "__main__":
    main()
