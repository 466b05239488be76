"""Channels last and other orders in memory: a replay gives the model the order that it had.

Kernels round differently for different orders. In 16 bits that is so much that a replay ended
elsewhere, after the training.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dross
from dross.errors import NotSupported
from tests.record.user_loops import check_bitwise

LAST = torch.channels_last
torch.manual_seed(0)
X = torch.randn(40, 3, 12, 12)
Y = torch.randint(0, 4, (40,))
QUERY = dross.mean_loss((X[:8], Y[:8]))
KEEP = dross.tape.Checkpoints(every=1000)


class Images(Dataset):
    """Each image by itself, its channels last."""

    images = X.to(memory_format=LAST)

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return self.images[i], Y[i]


DATA = {"plain": (X, Y), "channels last": (X.to(memory_format=LAST), Y), "images": Images()}


def build(last):
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2))
    model = nn.Sequential(
        *layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )
    if last:
        model.to(memory_format=LAST)  # pyright: ignore[reportCallIssue]
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def batches(data, last):
    order = torch.Generator().manual_seed(1)
    for _ in range(4):
        loader = DataLoader(dross.data.indexed(data), 16, shuffle=True, generator=order)
        for ids, x, y in loader:  # the last batch is smaller
            yield ids, x.contiguous(memory_format=LAST) if last else x, y


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("model_last", [False, True])
@pytest.mark.parametrize("batch_last", [False, True])
@pytest.mark.parametrize("data", DATA)
def test_a_loop_replays_to_the_same_bits(tmp_path, data, batch_last, model_last, dtype):
    model, optimizer = build(model_last)
    options = {"path": tmp_path / "t", "keep": KEEP, "autocast": dtype}
    recorder = dross.Recorder(model, "cross_entropy", optimizer, data=DATA[data], **options)
    for ids, x, y in batches(DATA[data], batch_last):
        with recorder.step(ids, x, y) as losses:
            losses.mean().backward()
            recorder.clip_grad_norm_(0.5)
            optimizer.step()
            optimizer.zero_grad()
    run = recorder.run()
    check_bitwise(run)
    assert run.influence(QUERY).values.any()
    # in another process: from the data in an order of their own, with a model of another order
    again = dross.load(run.path, build(False)[0], (X, Y), "cross_entropy", progress=False)
    check_bitwise(again)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("model_last", [False, True])
def test_a_loop_that_is_observed_replays_the_order_that_its_model_saw(tmp_path, model_last, dtype):
    model, optimizer = build(model_last)
    recorder = dross.Recorder(
        model, "cross_entropy", optimizer, path=tmp_path / "t", keep=KEEP, data=(X, Y)
    )
    for ids, x, y in batches((X, Y), False):
        cast = torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None)
        with cast, recorder.observe(ids, x, y) as watch:
            loss = F.cross_entropy(model(x.contiguous(memory_format=LAST)), y)
            watch(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    run = recorder.run()
    check_bitwise(run)
    assert run.verify(run.influence(QUERY), n=2).sentence
    assert run.influence(dross.losses((X[:3], Y[:3]))).values.shape == (3, 40)


def test_training_on_a_transposed_table_replays_from_a_copy_of_it(tmp_path):
    """The columns of a pandas table lie one after the other in memory."""
    x = torch.randn(64, 40)
    y = torch.randint(0, 3, (64,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    columns = x.T.contiguous().T
    options = {"epochs": 5, "batch_size": 16, "keep": KEEP, "progress": False}
    run = dross.train(
        model, (columns, y), "cross_entropy", optimizer, path=tmp_path / "t", **options
    )
    check_bitwise(run)
    check_bitwise(dross.load(run.path, model, (x, y), "cross_entropy", progress=False))


def test_a_resumed_loop_keeps_the_order(tmp_path):
    ends = []
    for stop in (None, 5):
        folder = tmp_path / str(stop)
        model, optimizer = build(True)
        options = {"path": folder, "keep": KEEP, "autocast": torch.bfloat16}
        recorder = dross.Recorder(model, "cross_entropy", optimizer, **options)
        for t, (ids, x, y) in enumerate(batches((X, Y), True)):
            if t == stop:
                recorder._save_what_there_is()
                model, optimizer = build(True)
                with pytest.warns(dross.DrossWarning, match="continues at step 5"):
                    recorder = dross.Recorder(
                        model, "cross_entropy", optimizer, resume=True, **options
                    )
            with recorder.step(ids, x, y) as losses:
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        recorder.close()
        ends.append(model.state_dict())
    for name, value in ends[0].items():
        assert torch.equal(ends[1][name], value), name


def test_autocast_for_the_call_of_the_model_alone_is_refused(tmp_path):
    model, optimizer = build(False)
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "t")
    ids, x, y = next(batches((X, Y), False))
    with pytest.raises(NotSupported, match=r"autocast around .* is off"):
        with recorder.observe(ids, x, y), torch.autocast("cpu", torch.bfloat16):
            model(x)
