"""What cannot be replayed is refused at the first step, and not when the training is over."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dross
from dross.errors import DrossError, InvalidInput, NotSupported

torch.manual_seed(0)
X = torch.randn(64, 8)
Y = torch.randint(0, 4, (64,))
WEIGHT = torch.tensor([1.0, 2.0, 3.0, 0.5])
QUERY = dross.mean_loss((X[:8], Y[:8]))
KEEP = dross.tape.Checkpoints(every=16)


def build(name="SGD", **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    return model, getattr(torch.optim, name)(model.parameters(), lr=0.05, **options)


def loop(folder, loss, reduce=lambda losses, y: losses.mean(), *, optimizer="SGD", epochs=4):
    """A loop of `recorder.step`."""
    model, optimizer = build(optimizer)
    recorder = dross.Recorder(model, loss, optimizer, path=folder, keep=KEEP)
    for ids, x, y in batches(epochs):
        with recorder.step(ids, x, y) as losses:
            reduce(losses, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder


def observed(folder, loss, own, share=None, *, optimizer="SGD", epochs=4):
    """A loop that computes `own` and tells the recorder of it."""
    model, optimizer = build(optimizer)
    recorder = dross.Recorder(model, loss, optimizer, path=folder, keep=KEEP)
    for ids, x, y in batches(epochs):
        with recorder.observe(ids, x, y) as watch:
            value = own(model(x), y)
            watch(value, share=None if share is None else share(y))
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder


def batches(epochs):
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(dross.data.indexed((X, Y)), 16, shuffle=True, generator=order)
    for _ in range(epochs):
        yield from loader


# --- losses ---------------------------------------------------------------------------------------


def noisy(outputs, y):
    noise = 0.3 * torch.randn_like(outputs)
    return F.cross_entropy(outputs + noise, y, reduction="none")


def in_place(outputs, y):
    outputs = outputs * 1
    outputs.sub_(outputs.detach().max(1, keepdim=True).values)
    return F.cross_entropy(outputs, y, reduction="none")


def weighted_mean(losses, y):
    return losses.sum() / WEIGHT[y].sum()


WORKS = {
    "label smoothing": (nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), None),
    "class weights": (nn.CrossEntropyLoss(reduction="none", weight=WEIGHT), weighted_mean),
    "random numbers of torch": (noisy, None),
    "in place": (in_place, None),
    "ignored labels": (nn.CrossEntropyLoss(reduction="none", ignore_index=3), None),
    "the hardest": ("cross_entropy", lambda losses, y: losses.topk(8).values.mean()),
}


@pytest.mark.parametrize("name", WORKS)
def test_losses_that_work(tmp_path, name):
    loss, reduce = WORKS[name]
    options = {} if reduce is None else {"reduce": reduce}
    run = loop(tmp_path / "t", loss, **options).run((X, Y))
    assert run.influence(QUERY).values.any()


def info_nce(outputs, y):
    z = F.normalize(outputs, dim=1)
    partner = (torch.arange(len(z)) + 1) % len(z)
    return F.cross_entropy(z @ z.T - 9 * torch.eye(len(z)), partner, reduction="none")


def over_the_mean(outputs, y):
    losses = F.cross_entropy(outputs, y, reduction="none")
    return losses / losses.detach().mean()


class RunningMean:
    mean = 1.0

    def __call__(self, outputs, y):
        losses = F.cross_entropy(outputs, y, reduction="none")
        self.mean = 0.99 * self.mean + 0.01 * losses.mean().item()
        return losses * self.mean


def numpy_noise(outputs, y):
    noise = torch.from_numpy(np.random.default_rng().normal(size=tuple(outputs.shape))).float()
    return F.cross_entropy(outputs + 0.001 * noise, y, reduction="none")


REFUSED = {
    "a mean": (nn.CrossEntropyLoss(label_smoothing=0.1), InvalidInput, "reduction='none'"),
    "pixels": (
        lambda outputs, y: F.mse_loss(outputs, F.one_hot(y, 4).float(), reduction="none"),
        InvalidInput,
        r"flatten\(1\).mean\(1\)",
    ),
    "contrastive": (
        info_nce,
        NotSupported,
        "depends on the other instances .* into the training loop",
    ),
    "normalized": (over_the_mean, NotSupported, "depends on the other instances"),
    "stateful": (RunningMean(), NotSupported, "different values when it is computed again"),
    "noise of numpy": (numpy_noise, NotSupported, "random numbers from numpy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_losses_that_are_refused(tmp_path, name):
    loss, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        loop(tmp_path / "t", loss, epochs=1)
    with pytest.raises(kind, match=message):
        model, optimizer = build()
        options = {"epochs": 1, "batch_size": 16, "progress": False}
        dross.train(model, (X, Y), loss, optimizer, path=tmp_path / "u", **options)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(
    "own, right, share",
    [
        ({"label_smoothing": 0.01}, {"label_smoothing": 0.01}, None),
        ({"reduction": "sum"}, {}, lambda y: 1.0),
        ({"weight": WEIGHT}, {"weight": WEIGHT}, lambda y: 1 / WEIGHT[y].sum()),
    ],
    ids=["label smoothing", "sum", "class weights"],
)
def test_a_loss_of_the_loop_that_the_recorder_does_not_have(tmp_path, own, right, share, optimizer):
    own = nn.CrossEntropyLoss(**own)
    message = "At step 0 the loss of the loop is .*label_smoothing=.* share="
    with pytest.raises(NotSupported, match=message):
        observed(tmp_path / "t", "cross_entropy", own, epochs=1, optimizer=optimizer)
    right = nn.CrossEntropyLoss(reduction="none", **right)
    recorder = observed(tmp_path / "u", right, own, share, optimizer=optimizer)
    assert recorder.run((X, Y)).influence(QUERY).values.any()


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_small_penalty_in_the_loop(tmp_path, optimizer):
    """It used to be noticed when the run was replayed."""
    model, optimizer = build(optimizer)
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "t")
    ids, x, y = next(batches(1))
    with pytest.raises(NotSupported, match=r"differ by .* %\. .*use penalty="):
        with recorder.step(ids, x, y) as losses:
            penalty = sum(p.pow(2).sum() for p in model.parameters())
            (losses.mean() + 1e-4 * penalty).backward()
            optimizer.step()


def test_an_optimizer_that_changes_gradients_in_place(tmp_path):
    model, optimizer = build(momentum=0.9, nesterov=True, foreach=True)
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "t")
    for ids, x, y in batches(1):
        with recorder.step(ids, x, y) as losses:
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert recorder.steps == 4


# --- data -----------------------------------------------------------------------------------------


class Flipped(Dataset):
    """Flips an instance now and then, as RandomHorizontalFlip does."""

    def __init__(self, share, kind=torch.Tensor):
        self.share = share
        self.kind = kind

    def __len__(self):
        return 64

    def __getitem__(self, i):
        x = X[i].flip(0) if random.random() < self.share else X[i]
        return x if self.kind is torch.Tensor else x.numpy(), Y[i]


def steps_until_noticed(folder, data, passed, workers=0):
    model, optimizer = build()
    taken = 0
    loader = DataLoader(dross.data.indexed(data), 16, num_workers=workers)
    with pytest.raises(DrossError, match=r"pass (them as|random transforms as) augment"):
        recorder = dross.Recorder(model, "cross_entropy", optimizer, path=folder, data=passed)
        for _ in range(3):
            for ids, x, y in loader:
                with recorder.step(ids, x, y) as losses:
                    losses.mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                taken += 1
    return taken


@pytest.mark.parametrize("kind", [torch.Tensor, np.ndarray])
@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_random_transforms_inside_a_data_set(tmp_path, passed, seed, kind):
    random.seed(seed)
    data = Flipped(0.5, kind)
    assert steps_until_noticed(tmp_path / "t", data, data if passed else None) == 0


@pytest.mark.slow  # the end of a worker takes five seconds
def test_random_transforms_in_a_worker(tmp_path):
    assert steps_until_noticed(tmp_path / "t", Flipped(0.5), None, workers=1) == 0


def test_a_transform_that_is_seldom_is_noticed_early(tmp_path):
    random.seed(0)
    data = Flipped(0.05)
    assert steps_until_noticed(tmp_path / "t", data, data) <= 1


def test_objects_that_say_where_they_lie_are_no_transforms():
    class Picture:
        def __init__(self, pixels):
            self.pixels = pixels

        def tobytes(self):
            return self.pixels.numpy().tobytes()

    class Pictures(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, i):
            return Picture(X[i]), object()

    data = dross.data.indexed(Pictures())
    assert data[3][0] == 3
