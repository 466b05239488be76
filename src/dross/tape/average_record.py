"""What a tape keeps of averaged weights: when they were updated, by how much, and what they are."""

from dataclasses import dataclass

import torch
from torch import Tensor

#: how the average got its moving buffers: averaged as the parameters are, copied from the model at
#: the last update, or set by something else
HOW = ("averaged", "copied", "fixed")


@dataclass(frozen=True)
class AverageRecord:
    """The updates of an average in their order, and its tensors by the names of the model's."""

    steps: Tensor  # int64 [n]: how many steps had been taken
    rates: Tensor  # float64 [n]: how much the parameters counted beside the average so far
    tensors: dict[str, Tensor]  # of the parameters in training and of the moving buffers
    buffers: str  # one of HOW
    count: int  # updates that the averaged model itself has counted

    def encode(self) -> tuple[dict[str, Tensor], dict]:
        """The tensors of its file, and what the file says about them."""
        named = {f"model.{name}": t for name, t in self.tensors.items()}
        about = {"buffers": self.buffers, "count": self.count}
        return {"steps": self.steps, "rates": self.rates, **named}, about

    @staticmethod
    def decode(tensors: dict[str, Tensor], about: dict) -> "AverageRecord":
        """The record that `encode` wrote; raises ValueError or LookupError."""
        steps, rates = tensors["steps"], tensors["rates"]
        kinds = (steps.dtype, rates.dtype, steps.dim(), steps.shape == rates.shape)
        if kinds != (torch.int64, torch.float64, 1, True) or about["buffers"] not in HOW:
            raise ValueError("it is not the record of an average")
        prefix = "model."
        named = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        return AverageRecord(steps, rates, named, about["buffers"], int(about["count"]))
