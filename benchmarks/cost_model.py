"""What a retrace costs as a function of its size: a model of the cost, fitted to measured passes and tried on runs that it has not seen.

    PYTHONPATH=src python benchmarks/cost_model.py

    seconds = T (e + (r + h(Q)) tau)      tau: a training step's pass    r: how often a step is taken again    h(Q) = h0 + h1 Q for Q queries
                                          e: what goes on around the passes, whatever the model: looking up, updating, adding up, reading
    disk    = kept states x (1 + slots) 4 p  +  4 N E             p parameters, N instances, E epochs, float32
    memory  = states at once x (1 + slots) 4 p  +  Q (1 + slots) 4 p  +  8 E Q N  +  the passes' own

h0 and h1 are fitted by least squares to passes of 1 to 32 queries, e to the first whole run. The other runs are compared with what the model says of them.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import dross
from dross.datasets.models import dense, mnist_cnn

QUERIES = (1, 2, 4, 8, 16, 32)


class Texts(nn.Module):
    def __init__(self, words: int = 2000, width: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder, self.out = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(width, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.embedding(x)).mean(1))


@dataclass(frozen=True)
class Case:
    name: str
    model: nn.Module
    x: Tensor
    batch: int
    adam: bool = False

    def recorded(self, folder: Path, steps: int, keep) -> tuple[dross.Run, float]:
        torch.manual_seed(0)
        y = torch.randint(0, 10, (len(self.x),))
        optimizer = (torch.optim.AdamW if self.adam else torch.optim.SGD)(
            self.model.parameters(), lr=0.001
        )
        batches = [
            np.random.default_rng(t).choice(len(self.x), self.batch, replace=False)
            for t in range(steps)
        ]
        start = time.perf_counter()
        run = dross.train(
            self.model,
            (self.x, y),
            "cross_entropy",
            optimizer,
            tape=folder,
            batches=batches,
            keep=keep,
            progress=False,
            overwrite=True,
        )
        return run, (time.perf_counter() - start) / steps


def cases() -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(*shape, generator=generator)
    return [
        Case("MLP 64-32-10, batch 25", dense(64, 32, 10), random(500, 64), 25),
        Case("MNIST CNN, batch 64", mnist_cnn(), random(500, 1, 28, 28), 64),
        Case(
            "Transformer, 2 layers of 64, AdamW, batch 32 x 32 words",
            Texts(),
            torch.randint(0, 2000, (500, 32), generator=generator),
            32,
            True,
        ),
    ]


def median(function, times: int) -> float:
    spent = []
    for k in range(times + 20):  # the first calls are written down as a program
        start = time.perf_counter()
        function()
        spent.append(time.perf_counter() - start)
        if k > 25 and sum(spent) > 5:
            break
    return float(np.median(spent[18:]))


def fitted(case: Case, folder: Path) -> tuple[float, float, float]:
    """tau, h0 and h1."""
    run, _ = case.recorded(folder, 40, dross.Checkpoints())
    recording, objective = run.recording, run.recording.objective
    segment = recording.segment(0)
    state, (batch,) = segment.states[0], recording.batches(0, segment.steps[:1])[0]
    with objective.training():
        tau = median(lambda: objective.gradient(state.theta, state.buffers, batch), 40)
        pulls = []
        for count in QUERIES:
            a_g = torch.randn(
                count, len(state.theta), generator=torch.Generator().manual_seed(count)
            )
            pulls.append(
                median(
                    lambda a_g=a_g: objective.pull(state.theta, state.buffers, batch, a_g, {}), 20
                )
            )
    weights = 1 / np.array(pulls)  # relative errors count
    matrix = np.stack([np.ones(len(QUERIES)), np.array(QUERIES)], axis=1)
    (h0, h1), *_ = np.linalg.lstsq(
        matrix * weights[:, None], np.array(pulls) / tau * weights, rcond=None
    )
    print(
        f"| {case.name} | {tau * 1e3:.2f} | {h0:.2f} | {h1:.2f} | {', '.join(f'{p / tau:.2f}' for p in pulls)} |",
        flush=True,
    )
    return tau, float(h0), float(h1)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread\n")
    print(
        f"| model | tau, ms | h0 | h1 | measured h of {', '.join(map(str, QUERIES))} queries |\n| --- | --- | --- | --- | --- |"
    )
    with tempfile.TemporaryDirectory() as folder:
        found = [(case, *fitted(case, Path(folder) / "fit")) for case in cases()]
        print()
        around = None
        for case, tau, h0, h1 in found:
            steps = max(60, min(2000, int(1 / tau)))
            for keep, taken in ((dross.EveryStep(), int(case.adam)), (dross.Checkpoints(), 1)):
                run, _ = case.recorded(Path(folder) / "whole", steps, keep)
                for count in (1, 10):
                    query = dross.losses((case.x[:count], torch.zeros(count, dtype=torch.int64)))
                    start = time.perf_counter()
                    run.influence(query)
                    seconds, passes = (
                        (time.perf_counter() - start) / steps,
                        tau * (taken + h0 + h1 * count),
                    )
                    if around is None:
                        around = seconds - passes
                        print(
                            f"e = {around * 1e3:.2f} ms\n\n| model | T, kept, queries | the model says, ms a step | measured |\n| --- | --- | --- | --- |"
                        )
                        continue
                    says = f"{(around + passes) * 1e3:.2f} | {seconds * 1e3:.2f}"
                    print(
                        f"| {case.name.split(',')[0]} | {steps}, {keep}, {count} | {says} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
