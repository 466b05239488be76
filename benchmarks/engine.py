"""What the engine costs, as ratios in one run on one thread.

    python -m benchmarks.engine [--rounds 20] [--device cpu|cuda] [--threads 1]

Every pair of timings alternates within one loop and is compared by its median, so that a noisy
machine disturbs both alike. The process is tuned as that of the command line.
"""

import datetime
import os
import platform
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from experiments.networks import cifar10_cnn, dense, mnist_cnn
from torch import nn

import dross
from dross._environment import prepare_environment
from dross.influence.retrace import reverse_step

from .tables import make_parser


def make_data(shape: tuple[int, ...], count: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs and labels of ten classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, *shape, generator=generator)
    y = torch.randint(0, 10, (count,), generator=generator)
    return x.to(device), y.to(device)


def medians(device: str, rounds: int, *functions) -> list[float]:
    """Median seconds of each function, all of them called in turn."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    times: list[list[float]] = [[] for _ in functions]
    for k in range(rounds + 2):
        for function, spent in zip(functions, times):
            wait()
            start = time.perf_counter()
            function()
            wait()
            if k >= 2:
                spent.append(time.perf_counter() - start)
    return [float(np.median(spent)) for spent in times]


def take_plain_step(model, optimizer, x, y, loss=F.cross_entropy) -> None:
    """One training step without dross."""
    loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def train(model, pair, optimizer, batches, folder: Path, **options) -> dross.Run:
    """Record a run over the given batches."""
    options = {"progress": False, "overwrite": True} | options
    loss = options.pop("loss", "cross_entropy")
    return dross.train(model, pair, loss, optimizer, path=folder, batches=batches, **options)


def record(model, pair, folder: Path, *, steps: int, batch: int = 64, **options) -> dross.Run:
    """Record a run over random batches with SGD."""
    rng = np.random.default_rng(0)
    batches = [rng.permutation(len(pair[0]))[:batch] for _ in range(steps)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return train(model, pair, optimizer, batches, folder, **options)


def retrace_over_training(
    make, shape, rounds: int, device: str, folder: Path
) -> tuple[float, float, float, str]:
    """Seconds of a training step and of two kinds of retrace steps, and the mode of the latter.

    In the second kind the adjoint of BatchNorm's statistics has died out.
    """
    pair = make_data(shape, 64, device)
    model = make().to(device)
    run = record(model, pair, folder, steps=3, keep=dross.tape.EveryStep())
    recording, query = run.recording, dross.mean_loss(pair)
    adjoint, _ = query.derivative(recording.objective, recording.state_at(2))
    segment = recording.segment(0)
    trained = make().to(device)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)

    early = replace(adjoint, buffers={})
    (batches,) = recording.batches(1, segment.steps[1:2])

    def retrace(adjoint) -> None:
        reverse_step(recording, segment.steps[1], batches, segment.states[1], None, adjoint)

    with recording.executor.training():
        training, retracing, retracing_early = medians(
            device,
            rounds,
            lambda: take_plain_step(trained, optimizer, *pair),
            lambda: retrace(adjoint),
            lambda: retrace(early),
        )
    plans = recording.executor.splitter.plans.values()
    mode = "forward" if any(plan.forward_mode for plan in plans) else "reverse"
    return training, retracing, retracing_early, mode


def recording_over_training(rounds: int, steps: int, device: str, folder: Path) -> float:
    """What recording costs, in plain trainings."""
    pair = make_data((1, 28, 28), 640, device)
    model = mnist_cnn().to(device)
    batches = [np.random.default_rng(t).permutation(640)[:64] for t in range(steps)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def plain() -> None:
        for ids in batches:
            at = torch.from_numpy(ids).to(device)
            take_plain_step(model, optimizer, pair[0][at], pair[1][at])

    recording = lambda: train(model, pair, optimizer, batches, folder)
    training, recording_time = medians(device, rounds, plain, recording)
    return recording_time / training


def checkpoints_over_every_step(rounds: int, steps: int, device: str, folder: Path) -> float:
    """What a retrace from checkpoints costs, in retraces from every state."""
    pair = make_data((1, 28, 28), 640, device)
    runs = [
        record(mnist_cnn().to(device), pair, folder / name, steps=steps, keep=keep)
        for name, keep in (
            ("every", dross.tape.EveryStep()),
            ("checkpoints", dross.tape.Checkpoints()),
        )
    ]
    query = dross.mean_loss((pair[0][:64], pair[1][:64]))
    retraces = [lambda run=run: run.influence(query) for run in runs]
    every, checkpoints = medians(device, rounds, *retraces)
    return checkpoints / every


def bytes_of_checkpoints(steps: int, folder: Path) -> float:
    """The size of a tape with checkpoints, in tapes with every step.

    Sizes do not depend on the arithmetic, so a stand-in of the same state size is recorded.
    """
    sizes = []
    for keep in (dross.tape.EveryStep(), dross.tape.Checkpoints()):
        x = torch.randn(4000, 1)
        model = _StandIn(13_750)
        batches = [np.random.default_rng(t).integers(0, 4000, 64) for t in range(steps)]
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        options = {"loss": "squared_error", "keep": keep}
        run = train(model, (x, x[:, 0]), optimizer, batches, folder, **options)
        sizes.append(run.recording.tape.nbytes)
    return sizes[1] / sizes[0]


class _StandIn(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return x[:, 0] * self.weight.mean()


def many_over_one(rounds: int, device: str, folder: Path, outputs: int) -> float:
    """200 counterfactual runs of 200 steps at batch 20, over one plain run of them."""
    x, y = make_data((64,), 400, device)
    pair, loss, mean_loss = (x, y), "cross_entropy", F.cross_entropy
    if outputs == 1:
        pair, loss = (x, (y > 4).float()), "binary_cross_entropy"
        mean_loss = lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], y)
    batches = [np.random.default_rng(t).permutation(400)[:20] for t in range(200)]
    model, trained = dense(64, 8, 8, outputs).to(device), dense(64, 8, 8, outputs).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = train(model, pair, optimizer, batches, folder, loss=loss)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)

    def one() -> None:
        for ids in batches:
            at = torch.from_numpy(ids).to(device)
            take_plain_step(trained, optimizer, pair[0][at], pair[1][at], mean_loss)

    query = dross.mean_loss((pair[0][:100], pair[1][:100]))
    alone, together = medians(device, rounds, one, lambda: run.leave_one_out(query, np.arange(200)))
    return together / alone


def queries_over_one(rounds: int, device: str, folder: Path) -> float:
    """What 32 queries cost, in single queries."""
    pair = make_data((1, 28, 28), 320, device)
    run = record(mnist_cnn().to(device), pair, folder, steps=10, keep=dross.tape.EveryStep())
    one = dross.losses((pair[0][:1], pair[1][:1]))
    many = dross.losses((pair[0][:32], pair[1][:32]))
    single, several = medians(
        device, rounds, lambda: run.influence(one), lambda: run.influence(many)
    )
    return several / single


def main() -> None:
    """Print every figure beside what it should be."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="timings per figure (default 20)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    prepare_environment()
    torch.set_num_threads(options.threads)
    device, rounds = options.device, options.rounds
    folder = Path(tempfile.mkdtemp(prefix="dross-benchmark-"))
    where = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    if device == "cuda":
        where = torch.cuda.get_device_name()
    print(
        f"{datetime.date.today()}  {where}, {options.threads} thread(s), "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
    print(f"{'figure':58} {'measured':>10} {'aim':>8}")
    try:
        print_steps(rounds, device, folder)
        print_runs(max(3, rounds // 4), device, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def print_figure(what: str, value: float, aim: str, note: str = "") -> None:
    """Print one line."""
    print(f"{what:58} {value:10.3g} {aim:>8}  {note}", flush=True)


def print_steps(rounds: int, device: str, folder: Path) -> None:
    """Print the figures of single steps."""
    for name, make, shape, aim in (
        ("MNIST", mnist_cnn, (1, 28, 28), "1.7"),
        ("CIFAR10", cifar10_cnn, (3, 32, 32), "3.0"),
    ):
        training, retracing, early, mode = retrace_over_training(
            make, shape, rounds, device, folder / "step"
        )
        what = f"retrace step / training step, {name} CNN, batch 64"
        note = f"{training * 1e3:.2f} ms and {retracing * 1e3:.2f} ms, {mode} mode"
        print_figure(what, retracing / training, aim, note)
        if name == "CIFAR10":
            what = "  the same, once the adjoint of the statistics is gone"
            print_figure(what, early / training, aim)


def print_runs(rounds: int, device: str, folder: Path) -> None:
    """Print the figures of whole runs."""
    ratio = recording_over_training(rounds, 100, device, folder / "r")
    print_figure("recording / plain training, MNIST CNN, 100 steps", ratio, "1.1")
    ratio = checkpoints_over_every_step(rounds, 60, device, folder / "c")
    print_figure("checkpoints / every step: retrace time, MNIST CNN", ratio, "1.5")
    ratio = bytes_of_checkpoints(2000, folder / "b")
    print_figure("checkpoints / every step: bytes, 2,000 steps", ratio, "0.03")
    for outputs, name in ((1, "two classes"), (10, "ten classes")):
        ratio = many_over_one(rounds, device, folder / "m", outputs)
        print_figure(f"200 leave-one-out runs / 1 run, 8-8 MLP, {name}", ratio, "5")
    ratio = queries_over_one(rounds, device, folder / "q")
    print_figure("32 queries / 1 query, MNIST CNN", ratio, "")


if __name__ == "__main__":
    main()
