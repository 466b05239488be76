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


class Loop:
    """A loop in which the gradient of a bias is rounding only: BatchNorm takes it out again."""

    def __init__(self):
        torch.manual_seed(0)
        self.X = torch.randn(640, 20)
        self.Y = torch.randint(0, 3, (640,))
        layers = nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.after = []

    def run(self, folder, backward):
        options = {"path": folder, "keep": dross.tape.Checkpoints(every=5)}
        with dross.Recorder(self.model, "cross_entropy", self.optimizer, **options) as recorder:
            for ids in torch.randperm(640).split(32):
                with recorder.step(ids, self.X[ids], self.Y[ids]) as losses:
                    backward(losses)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                named = self.model.named_parameters()
                self.after.append({name: p.detach().clone() for name, p in named})
        return recorder.run((self.X, self.Y))


def test_a_replay_takes_the_threads_of_the_loop(tmp_path, two_threads):
    """Adam makes full steps of rounding errors, which depend on the number of threads."""
    loop = Loop()
    run = loop.run(tmp_path / "t", lambda losses: losses.mean().backward())
    assert run.recording.tape.manifest.threads == 2
    run.influence(dross.mean_loss((loop.X[:8], loop.Y[:8])))
    torch.set_num_threads(1)
    for name, value in run.parameters(18).items():  # from the state at step 15
        assert torch.equal(value, loop.after[17][name]), name


def test_a_step_made_of_rounding_errors_is_explained(tmp_path, two_threads):
    def in_another_order(losses):
        (losses[:16].sum() / 32).backward(retain_graph=True)
        (losses[16:].sum() / 32).backward()

    with pytest.raises(
        dross.NotSupported, match=r"'0\.bias' consists of rounding errors only.*bias=False"
    ):
        Loop().run(tmp_path / "t", in_another_order)


def test_nobody_decides_outside(two_threads):
    threads.set_threads_for(1)
    assert torch.get_num_threads() == 2
