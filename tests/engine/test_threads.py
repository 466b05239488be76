"""Small passes run on one thread, large ones on all, and afterwards everything is as it was."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dross
from dross.engine import device as threads


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def trained(folder, width, seen=None, fail=False):
    model = nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, 3))

    def loss(outputs, targets):
        if seen is not None:
            seen.append(torch.get_num_threads())
        if fail and torch.get_num_threads() == 1:  # in the middle of a pass
            raise RuntimeError("no")
        return F.cross_entropy(outputs, targets, reduction="none")

    data = (torch.randn(64, 20), torch.arange(64) % 3)
    return dross.train(
        model,
        data,
        loss,
        torch.optim.SGD(model.parameters(), lr=0.1),
        path=folder,
        epochs=1,
        batch_size=32,
        progress=False,
        overwrite=True,
    )


def test_a_small_pass_takes_one_thread_and_a_large_one_all(tmp_path, two_threads):
    for width, expected in ((8, 1), (8192, 2)):
        seen = []
        run = trained(tmp_path, width, seen)
        assert seen[-1] == expected  # the passes come after what is tried out at the beginning
        seen.clear()
        run.influence(dross.mean_loss((torch.randn(8, 20), torch.arange(8) % 3)))
        assert expected in seen and torch.get_num_threads() == 2


def test_threads_come_back_whatever_happens(tmp_path, two_threads):
    with pytest.raises(RuntimeError):
        trained(tmp_path, 8, fail=True)
    assert torch.get_num_threads() == 2
    with threads.manage_threads():
        threads.set_threads_for(1)
        with threads.manage_threads():  # of another model
            threads.set_threads_for(1e12)
            assert torch.get_num_threads() == 2
        threads.set_threads_for(1)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_nobody_decides_outside(two_threads):
    threads.set_threads_for(1)
    assert torch.get_num_threads() == 2
