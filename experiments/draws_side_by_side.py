"""Many draws of the cleansing experiment on one GPU, which small networks leave mostly idle.

    nvidia-cuda-mps-control -d        # lets the processes share the GPU instead of taking turns
    PYTHONPATH=src python experiments/draws_side_by_side.py --data mnist --draws 0:30 \\
        --retrain last --workers 6 --out runs/cleansing

Each worker is a process; the draws are dealt out to them in turn. Results are kept draw by draw, as
`dross reproduce cleansing` keeps them: stop it at any time, start it again, or spread the draws
over machines and put the files into one folder. --seconds ends it in time for a lease. With
DROSS_COMPILE=1 in the environment the passes are compiled, which takes the first minute and nearly
halves the rest. It needs torch, numpy, scipy, scikit-learn and safetensors only.
"""

import argparse
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch

from dross.distributed import jobs
from dross.reproduce import cleansing
from dross.reproduce.cleansing_settings import (
    METHODS,
    RETRAIN_WAYS,
    Settings,
    check_names,
    parse_draws,
)


def read_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--draws", default="0:30")
    parser.add_argument("--retrain", default="last")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, default=Path("runs/cleansing"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def wait_for(device: str, seconds: float = 60.0) -> None:
    """Wait until the device answers: it may be busy when many processes start on it at once."""
    until = time.monotonic() + seconds
    while True:
        try:
            torch.zeros(1, device=device)
            return
        except RuntimeError:
            if time.monotonic() > until:
                raise
            time.sleep(2)


def compute_draws(options: argparse.Namespace) -> None:
    """Compute the draws of one worker."""
    torch.set_num_threads(2)
    wait_for(options.device)
    # Seldom are all workers retraining at the same time.
    jobs.set_local_workers((options.workers + 1) // 2)
    settings = Settings.of(options.data, options.quick)
    methods = check_names("method", options.methods.split(","), METHODS)
    ways = check_names("way to retrain", options.retrain.split(","), RETRAIN_WAYS)
    for number in list(parse_draws(options.draws))[options.worker :: options.workers]:
        start = time.perf_counter()
        try:
            where = {"folder": options.out, "device": options.device}
            result = cleansing.compute(settings, number, methods, ways, progress=False, **where)
        except Exception:  # the other draws go on
            traceback.print_exc()
        else:
            seconds = time.perf_counter() - start
            print(f"{options.data} {number}: {seconds:.0f} s {result['seconds']}", flush=True)


def main() -> None:
    """Start the workers and end them in time."""
    options = read_options()
    if options.worker is not None:
        return compute_draws(options)
    until = time.monotonic() + options.seconds
    workers = [
        subprocess.Popen([sys.executable, *sys.argv, "--worker", str(k)])
        for k in range(options.workers)
    ]
    while any(worker.poll() is None for worker in workers) and time.monotonic() < until:
        time.sleep(1)
    for worker in workers:
        worker.kill()


if __name__ == "__main__":
    main()
