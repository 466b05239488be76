"""A small training run with changes."""

import pytest
import torch
from torch import nn

import dross
from tests.zoo import problem


@pytest.fixture
def trained(tmp_path):
    """trained(**changes): dross.train on a small problem with some arguments replaced."""

    def train(**changes):
        p = problem("mlp", "sgd")
        model, optimizer = p.start()
        if isinstance(changes.get("model"), nn.Module):
            optimizer = torch.optim.SGD(changes["model"].parameters(), lr=0.1)
        arguments = {
            "model": model,
            "data": (p.X, p.Y),
            "loss": "cross_entropy",
            "optimizer": optimizer,
            "path": tmp_path / "t",
            "batches": p.batches,
            "progress": False,
            "overwrite": True,
        } | changes
        return dross.train(**arguments)

    return train
