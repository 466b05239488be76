"""What sharing a retrace between ranks saves.

    PYTHONPATH=src python benchmarks/ranks.py [--ranks 1 2 4] [--backend nccl] [--double]

It prints the seconds, the processor time of the first rank, and how far the scores are from those
of one process, for the MNIST CNN on random pictures in batches of 64. On a CPU each rank has one
thread, so more ranks than cores only divide the work; with nccl each rank needs a GPU of its own,
with gloo on a GPU (--device cuda) they share one. --double computes in float64, where sums in
another order agree to 1e-9 and better.
"""

import argparse
import os
import socket
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from dross.datasets.models import mnist_cnn
from tables import make_parser, print_head, print_row

import dross

COUNT, STEPS, BATCH = 2000, 60, 64


def make_problem(options: argparse.Namespace, rank: int = 0):
    """The model on this rank's device, the data and the query."""
    dtype = torch.float64 if options.double else torch.float32
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(COUNT, 1, 28, 28, generator=generator, dtype=dtype)
    y = torch.randint(0, 10, (COUNT,), generator=generator)
    torch.manual_seed(0)
    device = f"cuda:{rank % torch.cuda.device_count()}" if options.device == "cuda" else "cpu"
    return mnist_cnn().to(device, dtype), (x, y), dross.mean_loss((x[:200], y[:200]))


def record(options: argparse.Namespace, folder: Path) -> None:
    """Record a run, and write the scores that one process gives."""
    model, data, query = make_problem(options)
    rng = np.random.default_rng(0)
    batches = [rng.choice(COUNT, BATCH, replace=False) for _ in range(STEPS)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tape = {"path": folder / "tape", "keep": dross.tape.Checkpoints()}
    run = dross.train(
        model, data, "cross_entropy", optimizer, batches=batches, progress=False, **tape
    )
    np.save(folder / "expected.npy", run.influence(query).values)


def retrace(rank: int, size: int, port: int, options: argparse.Namespace, folder: Path) -> None:
    """Retrace the run as one of several ranks."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    model, data, query = make_problem(options, rank)
    if options.backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(options.backend, rank=rank, world_size=size)
    run = dross.load(folder / "tape", model, data, "cross_entropy")
    # What is decided once is not counted.
    run.influence(query, epochs=None, at=8, group=dist.group.WORLD)
    dist.barrier()
    start, used = time.perf_counter(), time.process_time()
    values = run.influence(query, group=dist.group.WORLD).values
    seconds, own = time.perf_counter() - start, time.process_time() - used
    if rank == 0:
        expected = np.load(folder / "expected.npy")
        difference = np.abs(values - expected).max() / np.abs(expected).max()
        print_row(size, f"{seconds:.2f}", f"{own:.2f}", f"{difference:.1e}")
    dist.destroy_process_group()


def main() -> None:
    """Print one line per number of ranks."""
    parser = make_parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--double", action="store_true")
    options = parser.parse_args()
    options.device = options.device or ("cuda" if options.backend == "nccl" else "cpu")
    dtype = "float64" if options.double else "float32"
    where = f"{os.cpu_count()} cores, {options.device}, {options.backend}"
    print(f"torch {torch.__version__}, {where}, {dtype}, {STEPS} steps\n")
    cost = "processor time of the first rank, s"
    print_head("ranks", "retraced, s", cost, "largest difference, of the largest score")
    with tempfile.TemporaryDirectory() as folder:
        record(options, Path(folder))
        for size in options.ranks:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            mp.spawn(retrace, (size, port, options, Path(folder)), nprocs=size)


if __name__ == "__main__":
    main()
