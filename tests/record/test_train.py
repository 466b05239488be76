"""dross.train: what it accepts, and what it leaves behind."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dross
from tests.oracles import derivative, literal_run
from tests.zoo import OPTIMIZERS, problem


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_model_and_optimizer_end_up_as_after_the_loop(record, tmp_path, optimizer):
    """One more literal step from either place leads to the same parameters."""
    # a bias before BatchNorm has a gradient of rounding, which Adafactor makes as large as any
    p = problem("mlp" if "adafactor" in optimizer else "batchnorm", optimizer)
    model, torch_optimizer = p.start()
    options = {"path": tmp_path / "t", "batches": p.batches[:-1], "progress": False}
    dross.train(model, (p.X, p.Y), p.loss, torch_optimizer, **options)
    ids = p.batches[-1]
    p.loss(model(p.X[ids]), p.Y[ids]).mean().backward()
    torch_optimizer.step()
    for one, other in zip(model.parameters(), literal_run(p).parameters()):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_an_optimizer_that_has_stepped_before(tmp_path):
    p = problem("mlp", "adam")
    for name in ("adam", "momentum", "rmsprop"):
        p.optimizer = OPTIMIZERS[name]
        model, optimizer = p.start()
        for part in (p.batches[:3], p.batches[3:]):
            options = {"path": tmp_path / "t", "progress": False, "overwrite": True}
            run = dross.train(model, (p.X, p.Y), p.loss, optimizer, batches=part, **options)
        for one, other in zip(model.parameters(), literal_run(p).parameters()):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
        query = dross.mean_loss((p.X_val, p.Y_val))
        assert run.verify(run.influence(query)).tau > 0.5


def test_batches_are_drawn_from_the_seed(trained):
    ids = lambda run: np.concatenate([step.ids for step in run.recording.tape.read(0).steps])
    options = {"batches": None, "epochs": 2, "batch_size": 4, "keep": dross.tape.EveryStep()}
    one, same, other = (ids(trained(**options, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert sorted(one[:15]) == list(range(15)) and (one[:15] != one[15:]).any()


@pytest.mark.parametrize(
    "lr",
    [0.05, [0.05] * 8, lambda t: 0.05, np.full((8, 1), 0.05), torch.full((8,), 0.05)],
    ids=["one", "list", "function", "groups", "tensor"],
)
def test_rates_in_every_form(trained, lr):
    expected = trained(lr=0.05).parameters()
    for name, value in trained(lr=lr).parameters().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-7, atol=1e-9)


def test_a_scheduler_is_stepped_once_per_step(tmp_path):
    p = problem("mlp", "sgd", rate=lambda t: 0.1 / (t + 1))
    model, optimizer = p.start()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (t + 1))
    options = {"path": tmp_path / "t", "batches": p.batches, "progress": False}
    dross.train(model, (p.X, p.Y), p.loss, optimizer, lr=scheduler, **options)
    for one, other in zip(model.parameters(), literal_run(p).parameters()):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_augmentation_is_replayed(trained):
    def augment(x, generator):
        return x + torch.randn(x.shape, generator=generator, dtype=x.dtype)

    p = problem("mlp", "sgd")
    query = dross.mean_loss((p.X_val, p.Y_val))
    every, replayed = (
        trained(augment=augment, keep=keep).influence(query).values
        for keep in (dross.tape.EveryStep(), dross.tape.Checkpoints(every=3))
    )
    np.testing.assert_array_equal(every, replayed)
    assert (every != trained().influence(query).values).any()


def test_empty_batches_are_steps(trained):
    p = problem("mlp", "momentum")
    for name in ("momentum", "adam"):
        model, _ = p.start()
        optimizer = OPTIMIZERS[name](model.parameters())
        batches = [[], *p.batches[:3], [], p.batches[4], []]
        options = {"batches": batches, "keep": dross.tape.Checkpoints(every=2)}
        run = trained(model=model, optimizer=optimizer, **options)
        assert run.steps == 7
        query = dross.mean_loss((p.X_val, p.Y_val))
        scores = run.influence(query)
        delta = run.parameter_influence([2])
        seed, _ = query.derivative(run.recording.objective, run.recording.state_at(7))
        flat = run.recording.objective.layout.flatten(delta.parameters)[0]
        np.testing.assert_allclose(scores.values[2], float(flat @ seed.theta[0]), rtol=1e-9)


def test_the_dtype_is_kept(trained):
    assert all(value.dtype == torch.float64 for value in trained().parameters().values())
    model = nn.Linear(6, 3)
    run = trained(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(value.dtype == torch.float32 for value in run.parameters().values())


def test_other_losses(trained):
    p = problem("mlp", "sgd")
    for loss, outputs, targets in (
        ("squared_error", 1, p.X[:, 0]),
        ("binary_cross_entropy", 1, (p.Y > 0).long()),
        ("squared_error", 2, p.X[:, :2]),
    ):
        model = nn.Linear(6, outputs).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        run = trained(model=model, optimizer=optimizer, loss=loss, data=(p.X, targets))
        query = dross.mean_loss((p.X[:5], targets[:5]))
        assert run.verify(run.influence(query)).tau > 0.7


def test_rates_of_zero(record):
    """A warm-up from 0, and a decay to it."""
    for optimizer in ("sgd", "momentum", "adamw"):
        p = problem("mlp", optimizer, rate=lambda t: 0.0 if t in (0, 7) else 0.05)
        run, query = record(p), dross.mean_loss((p.X_val, p.Y_val))
        scores = run.influence(query).values
        np.testing.assert_allclose(
            -scores[p.used],
            [derivative(p, j) for j in p.used],
            atol=1e-8 * np.nanmax(np.abs(scores)),
        )
        assert run.parameter_influence([2]).flat.abs().max() > 0


def test_losses_that_are_objects(trained):
    p = problem("mlp", "sgd")
    for loss in (
        nn.CrossEntropyLoss(reduction="none"),
        functools.partial(F.cross_entropy, reduction="none"),
    ):
        assert trained(loss=loss).influence(dross.mean_loss((p.X_val, p.Y_val))).values.any()


def test_structured_inputs_and_labels_scalars_and_foreign_keys(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(6, 2), nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return self.scale * self.layer(x["a"] + x["b"])

    p = problem("mlp", "sgd")
    model = Model().double()
    group = {"params": model.parameters(), "lr_scale": 0.1, "name": "all"}
    optimizer = torch.optim.Adam([group], lr=0.02)
    data = [
        ({"a": p.X[i], "b": p.X[i] ** 2}, {"left": p.X[i, 0], "right": p.X[i, 1]})
        for i in range(len(p.X))
    ]
    loss = lambda out, y: (out[:, 0] - y["left"]) ** 2 + (out[:, 1] - y["right"]) ** 2
    options = {"path": tmp_path / "t", "batches": p.batches, "progress": False}
    run = dross.train(model, data, loss, optimizer, **options)
    query = dross.mean_loss(data[:5])
    scores = run.influence(query)
    assert run.verify(scores).tau > 0.5
    assert run.parameter_influence([0, 3]).flat.shape == (2, 15)


def test_an_interrupt_says_how_to_continue(trained):
    def loss(out, y):
        if len(out) == 5:
            raise KeyboardInterrupt
        return F.cross_entropy(out, y, reduction="none")

    with pytest.raises(KeyboardInterrupt) as caught:
        trained(loss=loss)
    assert "resume=True" in caught.value.__notes__[0]
