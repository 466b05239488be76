"""What sharing a retrace between ranks saves: seconds, the processor time of each rank, and how far the scores are from those of one process.

    PYTHONPATH=src python benchmarks/ranks.py [--ranks 1 2 4] [--backend nccl] [--double]

The MNIST CNN on random pictures, batches of 64. On a CPU each rank has one thread, so more ranks than cores only divide the work; with nccl each rank needs a GPU of its own,
with gloo on a GPU (--device cuda) they share one. --double computes in float64, where sums in another order agree to 1e-9 and better.
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

import dross
from dross.datasets.models import mnist_cnn

COUNT, STEPS, BATCH = 2000, 60, 64


def pieces(given: argparse.Namespace, rank: int = 0):
    dtype = torch.float64 if given.double else torch.float32
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(COUNT, 1, 28, 28, generator=generator, dtype=dtype)
    y = torch.randint(0, 10, (COUNT,), generator=generator)
    torch.manual_seed(0)
    device = f"cuda:{rank % torch.cuda.device_count()}" if given.device == "cuda" else "cpu"
    return mnist_cnn().to(device, dtype), (x, y), dross.mean_loss((x[:200], y[:200]))


def record(given: argparse.Namespace, folder: Path) -> None:
    model, data, query = pieces(given)
    rng = np.random.default_rng(0)
    batches = [rng.choice(COUNT, BATCH, replace=False) for _ in range(STEPS)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    keep = dross.Checkpoints()
    run = dross.train(
        model,
        data,
        "cross_entropy",
        optimizer,
        tape=folder / "tape",
        batches=batches,
        keep=keep,
        progress=False,
    )
    np.save(folder / "expected.npy", run.influence(query).values)


def retrace(rank: int, size: int, port: int, given: argparse.Namespace, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    model, data, query = pieces(given, rank)
    if given.backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(given.backend, rank=rank, world_size=size)
    run = dross.Run.open(folder / "tape", model, data, "cross_entropy")
    run.influence(
        query, epochs=None, at=8, group=dist.group.WORLD
    )  # what is decided once is not counted
    dist.barrier()
    start, used = time.perf_counter(), time.process_time()
    values = run.influence(query, group=dist.group.WORLD).values
    seconds, own = time.perf_counter() - start, time.process_time() - used
    if rank == 0:
        expected = np.load(folder / "expected.npy")
        difference = np.abs(values - expected).max() / np.abs(expected).max()
        print(f"| {size} | {seconds:.2f} | {own:.2f} | {difference:.1e} |", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--double", action="store_true")
    given = parser.parse_args()
    given.device = given.device or ("cuda" if given.backend == "nccl" else "cpu")
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, {given.device}, {given.backend}, {'float64' if given.double else 'float32'}, {STEPS} steps\n"
    )
    print(
        "| ranks | retraced, s | processor time of the first rank, s | largest difference, of the largest score |\n| --- | --- | --- | --- |",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        record(given, Path(folder))
        for size in given.ranks:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            mp.spawn(retrace, (size, port, given, Path(folder)), nprocs=size)


if __name__ == "__main__":
    main()
