"""Augmentations: those that a replay can repeat work, all others are refused at step 0."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross.errors import InvalidInput

torch.manual_seed(0)
X = torch.randn(24, 4)
Y = torch.arange(24) % 3
NUMPY = np.random.default_rng(0)


def start():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(folder, augment):
    model, optimizer = start()
    options = {"epochs": 2, "batch_size": 8, "progress": False}
    return dross.train(
        model, (X, Y), "cross_entropy", optimizer, path=folder, augment=augment, **options
    )


def loop(folder, augment):
    model, optimizer = start()
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=folder, augment=augment)
    for ids in torch.arange(24).split(8):
        with recorder.step(ids, X[ids], Y[ids]) as losses:
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder.run((X, Y))


def rare(x, generator):
    """It draws from the wrong generator, and the number almost never changes the result."""
    return x + (torch.rand(()) > 0.9999).float()


REFUSED = {
    "torch": (lambda x, g: x + torch.randn_like(x), "draws random numbers from torch's global"),
    "numpy": (lambda x, g: x + float(np.random.rand()), "draws random numbers from numpy.random"),
    "random": (lambda x, g: x.flip(0) if random.random() < 0.5 else x, "numbers from random, not"),
    "rare": (rare, "draws random numbers from torch's global generator, not from the generator"),
    "own": (
        lambda x, g: x + float(NUMPY.random()),
        "returns different inputs when it is called again",
    ),
    "arguments": (lambda x: x, r"takes \(x\), but dross calls augment\(x, generator\)"),
    "fails": (lambda x, g: x @ x, r"augment\(x, generator\) failed on the first batch"),
    "nothing": (lambda x, g: None, "returned None: it must return the inputs"),
}


@pytest.mark.parametrize("record", [train, loop])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_step_0(tmp_path, name, record):
    augment, message = REFUSED[name]
    with pytest.raises(InvalidInput, match=message):
        record(tmp_path / "tape", augment)
    record(tmp_path / "tape", from_generator)  # the script, once it is corrected


def from_generator(x, generator):
    return x + 0.1 * torch.randn(x.shape, generator=generator)


def seeded(x, generator):
    """As the message says, for transforms that accept no generator."""
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        return x + 0.1 * torch.randn_like(x)


def seeded_for_all(x, generator):
    torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
    return x + 0.1 * torch.randn_like(x)


@pytest.mark.parametrize("record", [train, loop])
@pytest.mark.parametrize("augment", [from_generator, seeded, seeded_for_all])
def test_augmentations_that_can_be_repeated(tmp_path, augment, record):
    run = record(tmp_path / "tape", augment)
    query = dross.mean_loss((X[:6], Y[:6]))
    left_out = run.leave_one_out(query, [3])
    assert np.isfinite(run.influence(query).values).all() and np.isfinite(left_out).all()


def test_the_check_leaves_global_generators_alone(tmp_path):
    def states():
        return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()

    model, optimizer = start()
    recorder = dross.Recorder(
        model, "cross_entropy", optimizer, path=tmp_path / "tape", augment=from_generator
    )
    before = states()
    with recorder.step([0, 1], X[:2], Y[:2]) as losses:
        losses.mean().backward()
        optimizer.step()
    assert states() == before


def test_not_with_observe(tmp_path):
    model, optimizer = start()
    recorder = dross.Recorder(
        model, "cross_entropy", optimizer, path=tmp_path / "tape", augment=from_generator
    )
    with pytest.raises(InvalidInput, match=r"Use recorder\.step instead"):
        recorder.observe([0, 1], X[:2], Y[:2]).__enter__()
