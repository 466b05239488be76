"""What a retrace costs as a function of its size.

    PYTHONPATH=src python benchmarks/cost_model.py

A model of the cost is fitted to measured passes and tried on runs that it has not seen:

    seconds = T (e + (r + h(Q)) tau)
    disk    = kept states x (1 + slots) 4 p  +  4 N E
    memory  = states at once x (1 + slots) 4 p  +  Q (1 + slots) 4 p  +  8 E Q N  +  the passes' own

    tau     a training step's pass          p   parameters, in float32
    r       how often a step is replayed    N   instances
    h(Q)    h0 + h1 Q for Q queries         E   epochs
    e       what goes on around the passes, whatever the model: looking up, updating, reading

h0 and h1 are fitted by least squares to passes of 1 to 32 queries, e to the first whole run. The
other runs are compared with the model's predictions.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from dross.datasets.models import dense, mnist_cnn
from tables import make_parser, print_head, print_row
from torch import Tensor, nn

import dross

QUERIES = (1, 2, 4, 8, 16, 32)


class Texts(nn.Module):
    """A small Transformer over word ids."""

    def __init__(self, words: int = 2000, width: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L] -> [B, 10]."""
        return self.out(self.encoder(self.embedding(x)).mean(1))


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and how it is trained."""

    name: str
    model: nn.Module
    x: Tensor
    batch: int
    adam: bool = False

    def record(self, folder: Path, steps: int, keep) -> dross.Run:
        """Record a run of so many steps with random batches."""
        torch.manual_seed(0)
        y = torch.randint(0, 10, (len(self.x),))
        kind = torch.optim.AdamW if self.adam else torch.optim.SGD
        batches = [
            np.random.default_rng(t).choice(len(self.x), self.batch, replace=False)
            for t in range(steps)
        ]
        return dross.train(
            self.model,
            (self.x, y),
            "cross_entropy",
            kind(self.model.parameters(), lr=0.001),
            path=folder,
            batches=batches,
            keep=keep,
            progress=False,
            overwrite=True,
        )


def cases() -> list[Case]:
    """Three models of different kinds."""
    generator = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(*shape, generator=generator)
    mlp = Case("MLP 64-32-10, batch 25", dense(64, 32, 10), random(500, 64), 25)
    cnn = Case("MNIST CNN, batch 64", mnist_cnn(), random(500, 1, 28, 28), 64)
    words = torch.randint(0, 2000, (500, 32), generator=generator)
    name = "Transformer, 2 layers of 64, AdamW, batch 32 x 32 words"
    return [mlp, cnn, Case(name, Texts(), words, 32, adam=True)]


def median_seconds(function, times: int) -> float:
    """The median time of a call, once it runs as a program."""
    spent = []
    for k in range(times + 20):  # the first calls are written down as a program
        start = time.perf_counter()
        function()
        spent.append(time.perf_counter() - start)
        if k > 25 and sum(spent) > 5:
            break
    return float(np.median(spent[18:]))


def fit(case: Case, folder: Path) -> tuple[float, float, float]:
    """Measure passes, and fit tau, h0 and h1 to them."""
    run = case.record(folder, 40, dross.tape.Checkpoints())
    recording, executor = run.recording, run.recording.executor
    segment = recording.segment(0)
    state, (batch,) = segment.states[0], recording.batches(0, segment.steps[:1])[0]
    with executor.training():
        gradient = lambda: executor.gradient(state.theta, state.buffers, batch)
        tau = median_seconds(gradient, 40)
        pulls = []
        for count in QUERIES:
            generator = torch.Generator().manual_seed(count)
            a_g = torch.randn(count, len(state.theta), generator=generator)
            pull = lambda a_g=a_g: executor.pull(state.theta, state.buffers, batch, a_g, {})
            pulls.append(median_seconds(pull, 20))
    weights = 1 / np.array(pulls)  # relative errors count
    matrix = np.stack([np.ones(len(QUERIES)), np.array(QUERIES)], axis=1)
    costs = np.array(pulls) / tau
    (h0, h1), *_ = np.linalg.lstsq(matrix * weights[:, None], costs * weights, rcond=None)
    shown = ", ".join(f"{cost:.2f}" for cost in costs)
    print_row(case.name, f"{tau * 1e3:.2f}", f"{h0:.2f}", f"{h1:.2f}", shown)
    return tau, float(h0), float(h1)


def main() -> None:
    """Print the fitted numbers, and the predictions beside what is measured."""
    make_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread\n")
    queries = ", ".join(map(str, QUERIES))
    print_head("model", "tau, ms", "h0", "h1", f"measured h of {queries} queries")
    with tempfile.TemporaryDirectory() as folder:
        fits = [(case, *fit(case, Path(folder) / "fit")) for case in cases()]
        print()
        around = None
        for case, tau, h0, h1 in fits:
            steps = max(60, min(2000, int(1 / tau)))
            for keep, replays in (
                (dross.tape.EveryStep(), int(case.adam)),
                (dross.tape.Checkpoints(), 1),
            ):
                run = case.record(Path(folder) / "whole", steps, keep)
                for count in (1, 10):
                    query = dross.losses((case.x[:count], torch.zeros(count, dtype=torch.int64)))
                    start = time.perf_counter()
                    run.influence(query)
                    seconds = (time.perf_counter() - start) / steps
                    passes = tau * (replays + h0 + h1 * count)
                    if around is None:
                        around = seconds - passes
                        print(f"e = {around * 1e3:.2f} ms\n")
                        print_head("model", "T, kept, queries", "predicted, ms a step", "measured")
                        continue
                    figures = f"{(around + passes) * 1e3:.2f}", f"{seconds * 1e3:.2f}"
                    print_row(case.name.split(",")[0], f"{steps}, {keep}, {count}", *figures)


if __name__ == "__main__":
    main()
