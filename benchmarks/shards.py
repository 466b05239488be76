"""What a rank holds and receives when a retrace is divided into shards.

    PYTHONPATH=src python benchmarks/shards.py [--ranks 1 2 4] [--width 512] [--layers 12]

For one process with whole states (the first line) and for ranks with shards it prints the seconds,
the growth of the first rank's own memory (RssAnon, sampled) from before the tape was opened to its
peak, and how far the scores are from those of the first line. Then it counts what a rank receives
in one gradient and in one reverse step, in units of (R - 1) / R x the bytes of theta. The model has
`layers` square layers and is trained by AdamW in float64. Each rank has one thread. Freed memory is
given back at once (MALLOC_MMAP_THRESHOLD_), so that the peak is what is in use.
"""

import argparse
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tables import make_parser, print_head, print_row
from torch import nn

import dross
from dross.distributed.gather import prepare_shards, shard_recording
from dross.distributed.shards import ShardReducer

COUNT, BATCH, STEPS = 64, 8, 2


def make_model(options: argparse.Namespace, device: str) -> nn.Module:
    """`layers` square layers between two narrow ones."""
    torch.manual_seed(0)
    with torch.device(device):
        square = lambda: [nn.Linear(options.width, options.width), nn.Tanh()]
        middle = [part for _ in range(options.layers) for part in square()]
        ends = nn.Linear(16, options.width), nn.Linear(options.width, 4)
        return nn.Sequential(ends[0], *middle, ends[1]).double()


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs and labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(COUNT, 16, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, (COUNT,), generator=generator)


def record(options: argparse.Namespace, folder: Path) -> None:
    """Record a short run, in a process of its own."""
    model, data = make_model(options, "cpu"), make_data()
    batches = [np.arange(t * BATCH, (t + 1) * BATCH) for t in range(STEPS)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept = {"path": folder / "tape", "keep": dross.tape.EveryStep(), "progress": False}
    dross.train(model, data, "cross_entropy", optimizer, batches=batches, **kept)


class OwnMemory:
    """The peak of this process's own memory inside, above what it was before, in MB."""

    def __enter__(self) -> "OwnMemory":
        self.before = self.peak = self._read()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._done.set()
        self._thread.join()
        self.grown = self.peak - self.before

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.peak = max(self.peak, self._read())

    def _read(self) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def retrace(rank: int, size: int, port: int, options: argparse.Namespace, folder: Path) -> None:
    """Retrace the run as one of several ranks; one process alone holds whole states."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    data, model = make_data(), make_model(options, "meta")
    query = dross.mean_loss((data[0][:8], data[1][:8]))
    with OwnMemory() as memory:
        run = dross.load(folder / "tape", model, data, "cross_entropy", progress=False)
        start = time.perf_counter()
        scores = run.influence(query, group=dist.group.WORLD, sharded=size > 1)
        seconds = time.perf_counter() - start
    if size == 1:
        np.save(folder / "expected.npy", scores.values)
    expected = np.load(folder / "expected.npy")
    difference = np.abs(scores.values - expected).max() / np.abs(expected).max()
    received = count_received(run) if size > 1 else []
    if rank == 0:
        print_row(size, f"{seconds:.1f}", f"{memory.grown:.0f}", f"{difference:.1e}", *received)
    dist.destroy_process_group()


def count_received(run: dross.Run) -> list[str]:
    """What a gradient and a reverse step receive, gathered and scattered, in units of theta."""
    recording = shard_recording(run.recording, dist.group.WORLD)
    prepare_shards(recording, 0, 1, show=False)
    ranks, executor = recording.reducer, recording.executor
    assert isinstance(ranks, ShardReducer)
    segment = recording.segment(0)
    state, (batch,) = segment.states[0], recording.batches(0, segment.steps[:1])[0]
    unit = 8 * sum(ranks.layout.layout.sizes) * (ranks.size - 1) / ranks.size
    cells = []
    with executor.training():
        for work in (
            lambda: executor.gradient(state.theta, {}, batch),
            lambda: executor.pull(state.theta, {}, batch, torch.ones_like(state.theta)[None], {}),
        ):
            ranks.received.update(gathered=0, scattered=0)
            work()
            cells.append(" + ".join(f"{n / unit:.2f}" for n in ranks.received.values()))
    return cells


def main() -> None:
    """Print one line per number of ranks."""
    parser = make_parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    p = sum(q.numel() for q in make_model(options, "meta").parameters())
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, gloo, p = {p:,}, AdamW, float64\n")
    sent = "received in a {}, gathered + scattered, thetas"
    about = ("ranks", "retraced, s", "memory of the first rank, MB", "largest difference")
    print_head(*about, sent.format("gradient"), sent.format("reverse step"))
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # of the processes that are started
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(record_alone, (options, Path(folder)), nprocs=1)
        for size in options.ranks:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            mp.spawn(retrace, (size, port, options, Path(folder)), nprocs=size)


def record_alone(_: int, options: argparse.Namespace, folder: Path) -> None:
    """`record`, as torch.multiprocessing calls it."""
    record(options, folder)


if __name__ == "__main__":
    main()
