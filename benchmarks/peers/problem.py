"""A trained model with everything that a method may look at.

It is made once per setting and read by every process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dross

from .settings import FLIPPED, SETTINGS, Setting, quick


@dataclass(frozen=True)
class Problem:
    """A setting, and the folder where its data, its tape and all results lie."""

    setting: Setting
    folder: Path

    @staticmethod
    def of(name: str, folder: Path, small: bool) -> "Problem":
        """The problem of a setting's name, in full size or small."""
        setting = SETTINGS[name]
        return Problem(quick(setting) if small else setting, folder / name)

    # --- data ---

    @cached_property
    def data(self) -> dict[str, Tensor]:
        """x, y (with its flipped labels), x_val, y_val, flipped."""
        return torch.load(self.folder / "data.pt")

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """The training inputs and labels."""
        return self.data["x"], self.data["y"]

    @property
    def validation(self) -> tuple[Tensor, Tensor]:
        """The validation inputs and labels."""
        return self.data["x_val"], self.data["y_val"]

    @property
    def asked(self) -> tuple[Tensor, Tensor]:
        """The validation instances that are asked one by one."""
        count = self.setting.queries
        return self.data["x_val"][:count], self.data["y_val"][:count]

    def asked_for(self, kind: str) -> tuple[Tensor, Tensor]:
        """The data of a kind of query: [1, V, ...] for "mean", [Q, 1, ...] for "singles"."""
        x, y = self.validation if kind == "mean" else self.asked
        return (x[None], y[None]) if kind == "mean" else (x[:, None], y[:, None])

    # --- the run ---

    def batches(self, seed: int = 0) -> list[np.ndarray]:
        """The ids of every step."""
        rng, s = np.random.default_rng(seed), self.setting
        orders = [rng.permutation(s.train) for _ in range(s.epochs)]
        return [ids for order in orders for ids in np.array_split(order, s.train // s.batch)]

    def fresh_model(self, seed: int = 0) -> nn.Module:
        """The model before its training."""
        torch.manual_seed(seed)
        return self.setting.model()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer that the setting names."""
        return getattr(torch.optim, self.setting.optimizer)(model.parameters(), lr=self.setting.lr)

    def record(self, tape: Path, seed: int = 0, **options) -> dross.Run:
        """Train with dross and record it."""
        model = self.fresh_model(seed)
        return dross.train(
            model,
            self.pair,
            "cross_entropy",
            self.optimizer(model),
            path=tape,
            batches=self.batches(seed),
            epochs=self.setting.epochs,
            progress=False,
            overwrite=True,
            **options,
        )

    @cached_property
    def run(self) -> dross.Run:
        """The recorded run."""
        tape, model = self.folder / "tape", self.fresh_model()
        return dross.load(tape, model, self.pair, "cross_entropy", progress=False)

    @cached_property
    def checkpoints(self) -> list[Path]:
        """State dicts at the end of each epoch; the last one is the trained model."""
        return [self.folder / f"epoch-{epoch}.pt" for epoch in range(self.setting.epochs)]

    def load_trained(self) -> nn.Module:
        """The trained model in eval mode."""
        model = self.fresh_model()
        model.load_state_dict(torch.load(self.checkpoints[-1]))
        return model.eval()

    def training_steps(self, model: nn.Module) -> Iterator[tuple[int, np.ndarray]]:
        """The plain loop that all costs are relative to; yields (epoch, ids) before each step."""
        x, y = self.pair
        optimizer, batches = self.optimizer(model), self.batches()
        for t, ids in enumerate(batches):
            yield t * self.setting.epochs // len(batches), ids
            at = torch.from_numpy(ids)
            F.cross_entropy(model(x[at]), y[at]).backward()
            optimizer.step()
            optimizer.zero_grad()

    def train_plainly(self) -> nn.Module:
        """Train without recording anything."""
        model = self.fresh_model()
        for _ in self.training_steps(model):
            pass
        return model

    def query(self, kind: str) -> "dross.influence.query.Query":
        """The mean validation loss ("mean"), or single validation losses ("singles")."""
        return dross.mean_loss(self.validation) if kind == "mean" else dross.losses(self.asked)


def make(problem: Problem) -> str:
    """Draw the data, flip labels, train and record. Returns a sentence about the model."""
    setting, rng = problem.setting, np.random.default_rng(1)
    problem.folder.mkdir(parents=True, exist_ok=True)
    x, y, x_val, y_val = setting.data(setting)
    flipped = rng.choice(len(y), int(FLIPPED * len(y)), replace=False)
    shift = torch.from_numpy(rng.integers(1, setting.classes, len(flipped)))
    y[flipped] = (y[flipped] + shift) % setting.classes
    data = {"x": x, "y": y, "x_val": x_val, "y_val": y_val, "flipped": torch.from_numpy(flipped)}
    torch.save(data, problem.folder / "data.pt")
    run = problem.record(problem.folder / "tape")
    steps = len(problem.batches()) // setting.epochs
    for epoch, path in enumerate(problem.checkpoints):
        parameters = run.parameters(step=(epoch + 1) * steps)
        torch.save({name: value.clone() for name, value in parameters.items()}, path)
    model = problem.load_trained()
    with torch.no_grad():
        right = (model(x_val).argmax(1) == y_val).double().mean()
    count = sum(p.numel() for p in model.parameters())
    return (
        f"{len(y):,} instances ({len(flipped)} flipped), {count:,} parameters, "
        f"{run.steps} steps of {setting.batch}, {setting.optimizer} at {setting.lr:g}; "
        f"{100 * float(right):.1f} % of {len(y_val)} validation instances right"
    )
