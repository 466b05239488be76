"""bergson's MAGIC: it trains with its own functional optimizer.

It then goes backward through every step, once per query.
"""

import tempfile

import numpy as np
import torch
import torch.nn.functional as F
import torchopt
from bergson.magic import BackwardState, Trainer, TrainerState
from torch import Tensor, nn
from torchopt.pytree import tree_iter

from ..problem import Problem


class WeightedLoss(nn.Module):
    """A model that returns the weighted loss of its batch.

    bergson's Trainer takes such models besides those of HuggingFace.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self, x: Tensor, y: Tensor, example_weight: Tensor, shift_loss_mask: Tensor
    ) -> Tensor:
        """The weighted loss of the batch; the mask, which is for tokens, is not used."""
        losses = F.cross_entropy(self.model(x), y, reduction="none").reshape(len(y), -1).mean(1)
        return (losses * example_weight).sum() / len(y)


class Stream:
    """The recorded batches with one weight per instance, as bergson's DataStream has for tokens."""

    def __init__(self, problem: Problem, dtype: torch.dtype):
        x, y = problem.pair
        self.x, self.y = x.to(dtype) if x.is_floating_point() else x, y
        self.batches = [torch.from_numpy(ids) for ids in problem.batches()]
        self.weights = nn.Parameter(torch.ones(len(y), dtype=dtype))
        self.device = torch.device("cpu")
        self.requires_grad = True

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, t: int) -> dict[str, Tensor]:
        ids = self.batches[t]
        return {
            "x": self.x[ids],
            "y": self.y[ids],
            "example_weight": self.weights[ids],
            "shift_loss_mask": torch.ones(len(ids), dtype=torch.bool),
        }


class Magic:
    """A training of bergson's, whose checkpoints serve every query."""

    def __init__(
        self,
        problem: Problem,
        folder: str,
        dtype: torch.dtype = torch.float32,
        eps_root: float = 1e-17,
    ):
        setting, self.folder, self.problem = problem.setting, folder, problem
        # bergson's default for eps_root; 0 gives NaN where a gradient is always 0
        adam = {"lr": setting.lr, "eps_root": eps_root}
        optimizer = {
            "SGD": lambda: torchopt.sgd(setting.lr),
            "Adam": lambda: torchopt.adam(**adam),
            "AdamW": lambda: torchopt.adamw(**adam, weight_decay=0.01),
        }[setting.optimizer]()
        self.model = WeightedLoss(problem.fresh_model().to(dtype))
        self.stream = Stream(problem, dtype)
        self.trainer, state = Trainer.initialize(self.model, optimizer)
        self.state: TrainerState = self.trainer.train(
            state, self.stream, inplace=True, save_dir=folder, save_mode="sqrt"
        )
        self.final = self.state.to("cpu").detach_()

    def scores(self, x: Tensor, y: Tensor) -> np.ndarray:
        """The scores of the mean loss over (x, y)."""
        self.state.detach_()
        self.state.copy_(self.final)
        x = x.to(self.stream.weights.dtype) if x.is_floating_point() else x
        with self.state.activate(self.model) as params:
            loss = F.cross_entropy(self.model.model(x), y)
            gradients = torch.autograd.grad(loss, list(params.values()))
        slots = [
            torch.zeros_like(t)
            for t in tree_iter(self.state.opt_state)
            if isinstance(t, Tensor) and t.is_floating_point()
        ]
        weights = torch.zeros_like(self.stream.weights)
        start = BackwardState(dict(zip(params, gradients)), slots, weights)
        options = {"cleanup": False, "inplace": True, "save_mode": "sqrt"}
        end = self.trainer.backward(self.folder, self.stream, start, self.state, **options)
        return -end.weight_grads.detach().double().numpy()


def magic(problem: Problem, kind: str) -> np.ndarray:
    """MAGIC's scores, its own training included."""
    with tempfile.TemporaryDirectory(prefix="magic-") as folder:
        made = Magic(problem, folder)
        rows = np.stack([made.scores(x, y) for x, y in zip(*problem.asked_for(kind))])
    return rows[0] if kind == "mean" else rows
