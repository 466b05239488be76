"""What it costs to hash every instance of a map-style data set that is not held in memory.

    PYTHONPATH=src python benchmarks/hashing.py

A run of one epoch is recorded with and without the hashes, in turn; in one epoch every instance is
hashed, in further ones none. Then it is retraced, where every look-up is hashed and compared. Each
figure is the median over the rounds of the quotient of the two times, in one process. Times are
those of the processor, on one thread, so that other programs matter little; waiting for the disk is
not in them.
"""

import tempfile
import time
from statistics import median
from unittest import mock

import torch
from dross.datasets.models import mnist_cnn
from tables import make_parser, print_head, print_row
from torch import nn

import dross

ROUNDS, BATCH = 7, 64


class MapStyle(torch.utils.data.Dataset):
    """Instances that are given one by one."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        self.x, self.y = x, y

    def __len__(self) -> int:
        """How many there are."""
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        """An instance."""
        return self.x[i], int(self.y[i])


def record(data: MapStyle, model: nn.Module, folder: str, hashed: bool) -> tuple[float, dross.Run]:
    """Record one epoch, and say how many seconds it took."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    keep = dross.tape.Budget(256 << 20, in_memory=1 << 20)
    options = {"epochs": 1, "batch_size": BATCH, "keep": keep, "progress": False}
    nothing = mock.patch("dross.record.train.begin_notes", lambda *_: None)
    start = time.process_time()
    if hashed:
        run = dross.train(model, data, "cross_entropy", optimizer, path=folder, **options)
    else:
        with nothing:
            run = dross.train(model, data, "cross_entropy", optimizer, path=folder, **options)
    return time.process_time() - start, run


def measure(data: MapStyle, make_model) -> tuple[float, float, float]:
    """Milliseconds of a step without hashes; what recording and retracing take, as quotients."""
    query = dross.mean_loss((data.x[:100], data.y[:100]))
    plain, recordings, retraces = [], [], []
    for _ in range(ROUNDS):
        seconds, retraced = {}, {}
        for hashed in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(0)
                seconds[hashed], run = record(data, make_model(), f"{folder}/tape", hashed)
                start = time.process_time()
                run.influence(query)
                retraced[hashed] = time.process_time() - start
        plain.append(seconds[False])
        recordings.append(seconds[True] / seconds[False])
        retraces.append(retraced[True] / retraced[False])
    steps = -(-len(data) // BATCH)
    return median(plain) / steps * 1e3, median(recordings), median(retraces)


def main() -> None:
    """Print the table."""
    make_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    print_head("model", "a step", "recording", "retracing")
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(1280, 1, 28, 28, generator=generator)
    table = torch.randn(6400, 64, generator=generator)
    mlp = lambda: nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    for name, x, make_model in (
        ("MNIST CNN, 28 x 28", pictures, mnist_cnn),
        ("MLP 64-16-10, 64 features", table, mlp),
    ):
        data = MapStyle(x, torch.randint(0, 10, (len(x),), generator=generator))
        step, recording, retracing = measure(data, make_model)
        print_row(name, f"{step:.2f} ms", f"x {recording:.3f}", f"x {retracing:.3f}")


if __name__ == "__main__":
    main()
