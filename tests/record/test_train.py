"""dross.train: what it accepts, what it leaves behind, what it refuses."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dross
from dross.errors import BadInput, NotFinite, NotSupported
from oracles import literal_run
from zoo import OPTIMIZERS, problem


@pytest.fixture
def trained(tmp_path):
    """trained(**changes): dross.train on a small problem with some arguments replaced."""

    def train(**changes):
        p = problem("mlp", "sgd")
        model, optimizer = p.start()
        if (
            "model" in changes
            and "optimizer" not in changes
            and isinstance(changes["model"], nn.Module)
        ):
            optimizer = torch.optim.SGD(changes["model"].parameters(), lr=0.1)
        arguments = {
            "model": model,
            "train_set": (p.X, p.Y),
            "loss": "cross_entropy",
            "optimizer": optimizer,
            "tape": tmp_path / "t",
            "batches": p.batches,
            "progress": False,
            "overwrite": True,
        } | changes
        return dross.train(**arguments)

    return train


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_model_and_optimizer_end_up_as_after_the_loop(record, tmp_path, optimizer):
    """So that their owner can go on: one more literal step from either place leads to the same parameters."""
    p = problem("batchnorm", optimizer)
    model, torch_optimizer = p.start()
    dross.train(
        model,
        (p.X, p.Y),
        p.loss,
        torch_optimizer,
        tape=tmp_path / "t",
        batches=p.batches[:-1],
        progress=False,
    )
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
            run = dross.train(
                model,
                (p.X, p.Y),
                p.loss,
                optimizer,
                tape=tmp_path / "t",
                batches=part,
                progress=False,
                overwrite=True,
            )
        for one, other in zip(model.parameters(), literal_run(p).parameters()):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
        query = dross.mean_loss((p.X_val, p.Y_val))
        assert run.verify(run.influence(query), query).tau > 0.5


def test_batches_are_drawn_from_the_seed(trained):
    ids = lambda run: np.concatenate([step.ids for step in run.recording.tape.read(0).steps])
    options = {"batches": None, "epochs": 2, "batch_size": 4, "keep": dross.EveryStep()}
    one, same, other = (ids(trained(**options, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert sorted(one[:15]) == list(range(15)) and (one[:15] != one[15:]).any()


@pytest.mark.parametrize(
    "eta",
    [0.05, [0.05] * 8, lambda t: 0.05, np.full((8, 1), 0.05), torch.full((8,), 0.05)],
    ids=["one", "list", "function", "groups", "tensor"],
)
def test_rates_in_every_form(trained, eta):
    expected = trained(eta=0.05).parameters()
    for name, value in trained(eta=eta).parameters().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-7, atol=1e-9)


def test_a_scheduler_is_stepped_once_per_step(tmp_path):
    p = problem("mlp", "sgd", rate=lambda t: 0.1 / (t + 1))
    model, optimizer = p.start()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (t + 1))
    dross.train(
        model,
        (p.X, p.Y),
        p.loss,
        optimizer,
        tape=tmp_path / "t",
        batches=p.batches,
        eta=scheduler,
        progress=False,
    )
    for one, other in zip(model.parameters(), literal_run(p).parameters()):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_augmentation_is_replayed(trained):
    def augment(x, generator):
        return x + torch.randn(x.shape, generator=generator, dtype=x.dtype)

    p = problem("mlp", "sgd")
    query = dross.mean_loss((p.X_val, p.Y_val))
    every, replayed = (
        trained(augment=augment, keep=keep).influence(query).values
        for keep in (dross.EveryStep(), dross.Checkpoints(every=3))
    )
    np.testing.assert_array_equal(every, replayed)
    assert (every != trained().influence(query).values).any()


def test_empty_batches_are_steps(trained):
    p = problem("mlp", "momentum")
    for name in ("momentum", "adam"):
        model, _ = p.start()
        optimizer = OPTIMIZERS[name](model.parameters())
        run = trained(
            model=model,
            optimizer=optimizer,
            batches=[[], *p.batches[:3], [], p.batches[4], []],
            keep=dross.Checkpoints(every=2),
        )
        assert run.steps == 7
        query = dross.mean_loss((p.X_val, p.Y_val))
        scores = run.influence(query)
        delta = run.parameter_influence([2])
        seed, _ = query.seed(run.recording.objective, run.recording.state_at(7))
        np.testing.assert_allclose(
            scores.values[2],
            float(run.recording.objective.layout.flatten(delta.parameters)[0] @ seed.theta[0]),
            rtol=1e-9,
        )


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
        run = trained(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            loss=loss,
            train_set=(p.X, targets),
        )
        query = dross.mean_loss((p.X[:5], targets[:5]))
        assert run.verify(run.influence(query), query).tau > 0.7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": F.cross_entropy}, r"one loss per instance, not\s+their mean.*reduction='none'"),
        ({"loss": nn.CrossEntropyLoss()}, "one loss per instance"),
        ({"loss": "hinge"}, "no loss named 'hinge'"),
        ({"loss": 3}, "must be a function"),
        ({"batches": [[0, 99]]}, r"0\.\.14; found 99"),
        ({"batches": [[0.5]]}, "whole numbers"),
        ({"batches": []}, "nothing to train on"),
        ({"batches": None}, "epochs and batch_size"),
        ({"batches": None, "epochs": 0, "batch_size": 4}, "epochs must be at least 1"),
        ({"batches": None, "epochs": 1, "batch_size": 0}, "batch_size must be at least 1"),
        ({"batches": None, "epochs": 1.5, "batch_size": 4}, "whole, not 1.5"),
        ({"batches": [[], []]}, "nothing to train on"),
        ({"keep": "all"}, "EveryStep"),
        ({"clip": 1.0}, "ClipNorm"),
        ({"train_set": torch.utils.data.DataLoader([1, 2])}, "map-style"),
        ({"train_set": [(torch.zeros(6), 0), (torch.zeros(5), 0)]}, "one batch"),
        (
            {
                "model": type("Two", (nn.Linear,), {"forward": lambda self, x: (x, x)})(
                    6, 3
                ).double()
            },
            "a tuple",
        ),
        (
            {
                "loss": "binary_cross_entropy",
                "model": nn.Linear(6, 1).double(),
                "train_set": (torch.zeros(15, 6), torch.full((15,), 2)),
            },
            "takes 0 to 1",
        ),
        ({"eta": [0.1, 0.1]}, "2 rates for 8 steps"),
        ({"eta": -1.0}, "not negative"),
        ({"eta": float("nan")}, "finite"),
        ({"train_set": (torch.zeros(0, 6), torch.zeros(0).long())}, "empty"),
        ({"train_set": (torch.zeros(4, 6), torch.zeros(3).long())}, "same number of instances"),
        ({"train_set": iter([1, 2])}, "map-style"),
        ({"train_set": [1, 2, 3]}, "pairs"),
        (
            {"train_set": (torch.zeros(15, 9).double(), torch.zeros(15).long())},
            "does not take the training inputs",
        ),
        ({"model": lambda x: x}, "torch.nn.Module"),
        ({"optimizer": "sgd"}, "torch.optim optimizer"),
        ({"device": "cuda:7"}, "'cuda:7' is not there"),
        ({"device": "toaster"}, "'toaster' is not there"),
        ({"penalty": lambda params: sum(p.norm() for p in params)}, "dict of name -> tensor"),
        ({"penalty": lambda params: 3.0}, "one number as a tensor"),
    ],
    ids=range(32),
)
def test_bad_input(trained, changes, message, tmp_path):
    with pytest.raises(BadInput, match=f"(?s){message}"):
        trained(**changes)
    assert not (tmp_path / "t" / "manifest.json").exists()  # nothing half-made is left behind


def test_labels_out_of_range_anywhere(trained):
    p = problem("mlp", "sgd")
    p.Y[-1] = 3  # an instance that no batch uses first
    with pytest.raises(BadInput, match="Labels run from 0 to 3, but the model has 3 outputs"):
        trained(train_set=(p.X, p.Y))


def test_other_refusals(trained):
    p = problem("mlp", "sgd")
    model, _ = p.start()
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1)
    with pytest.raises(BadInput, match="not one of the model's"):
        trained(optimizer=stranger)
    plateau = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NotSupported, match="ReduceLROnPlateau"):
        trained(
            model=model, optimizer=plateau, eta=torch.optim.lr_scheduler.ReduceLROnPlateau(plateau)
        )
    with pytest.raises(NotSupported, match="LBFGS"):
        trained(model=model, optimizer=torch.optim.LBFGS(model.parameters()))
    sparse = nn.Sequential(nn.Embedding(10, 3, sparse=True), nn.Flatten()).double()
    with pytest.raises(NotSupported, match="sparse"):
        trained(model=sparse, optimizer=torch.optim.SGD(sparse.parameters(), lr=0.1))
    with pytest.raises(NotSupported, match="DataParallel"):
        trained(model=nn.DataParallel(model), optimizer=plateau)

    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen += 1
            return self.layer(x)

    moving = Moving().double()
    with pytest.raises(NotSupported, match="'seen'"):
        trained(model=moving, optimizer=torch.optim.SGD(moving.parameters(), lr=0.1))
    mixed = nn.Sequential(nn.Linear(6, 4).double(), nn.Linear(4, 3))
    with pytest.raises(NotSupported, match="one dtype"):
        trained(model=mixed, optimizer=torch.optim.SGD(mixed.parameters(), lr=0.1))


def test_rates_of_zero(record):
    """A warm-up from 0, and a decay to it."""
    from oracles import derivative

    for optimizer in ("sgd", "momentum", "adamw"):
        p = problem("mlp", optimizer, rate=lambda t: 0.0 if t in (0, 7) else 0.05)
        run, query = record(p), dross.mean_loss((p.X_val, p.Y_val))
        scores = run.influence(query).values
        np.testing.assert_allclose(
            -scores[p.used], [derivative(p, j) for j in p.used], atol=1e-8 * np.abs(scores).max()
        )
        assert run.parameter_influence([2]).flat.abs().max() > 0


def test_losses_that_are_objects(trained):
    import functools

    p = problem("mlp", "sgd")
    for loss in (
        nn.CrossEntropyLoss(reduction="none"),
        functools.partial(F.cross_entropy, reduction="none"),
    ):
        assert trained(loss=loss).influence(dross.mean_loss((p.X_val, p.Y_val))).values.any()


def test_models_that_change_underway(trained):
    class Late(nn.Module):
        """The second layer has a part only in batches without instance 0."""

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.first(x) if len(x) == 4 else self.first(x) + self.second(x)

    late = Late().double()
    with pytest.raises(NotSupported, match=r"'second.weight' had no part in the first batch"):
        trained(model=late, optimizer=torch.optim.SGD(late.parameters(), lr=0.1))

    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)  # assigned, not written into
            return self.layer(x - self.mean)

    averaging = Averaging().double()
    with pytest.raises(NotSupported, match="'mean'"):
        trained(model=averaging, optimizer=torch.optim.SGD(averaging.parameters(), lr=0.1))

    class InPlace(nn.Linear):
        def forward(self, x):
            x -= 0.5
            return super().forward(x)

    in_place = InPlace(6, 3).double()
    with pytest.raises(NotSupported, match="input in place"):
        trained(model=in_place, optimizer=torch.optim.SGD(in_place.parameters(), lr=0.1))


def test_operators_and_types_that_cannot_be_retraced(trained):
    p = problem("embedding", "sgd")
    bag = nn.Sequential(nn.EmbeddingBag(12, 4, mode="max"), nn.Linear(4, 3)).double()
    with pytest.raises(NotSupported, match="second derivative"):
        trained(
            model=bag, optimizer=torch.optim.SGD(bag.parameters(), lr=0.1), train_set=(p.X, p.Y)
        )
    half = nn.Linear(6, 3).bfloat16()
    with pytest.raises(NotSupported, match="bfloat16 are not supported"):
        trained(model=half, optimizer=torch.optim.SGD(half.parameters(), lr=0.1))


def test_structured_inputs_and_labels_scalars_and_foreign_keys(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(6, 2), nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return self.scale * self.layer(x["a"] + x["b"])

    p = problem("mlp", "sgd")
    model = Model().double()
    optimizer = torch.optim.Adam(
        [{"params": model.parameters(), "lr_scale": 0.1, "name": "all"}], lr=0.02
    )
    data = [
        ({"a": p.X[i], "b": p.X[i] ** 2}, {"left": p.X[i, 0], "right": p.X[i, 1]})
        for i in range(len(p.X))
    ]
    loss = lambda out, y: (out[:, 0] - y["left"]) ** 2 + (out[:, 1] - y["right"]) ** 2
    run = dross.train(
        model, data, loss, optimizer, tape=tmp_path / "t", batches=p.batches, progress=False
    )
    query = dross.mean_loss(data[:5])
    scores = run.influence(query)
    assert run.verify(scores, query).tau > 0.5
    assert run.parameter_influence([0, 3]).flat.shape == (2, 15)


def test_a_data_set_with_random_transforms(trained):
    class Random:
        def __len__(self):
            return 15

        def __getitem__(self, i):
            return torch.randn(6, dtype=torch.float64), 0

    with pytest.raises(BadInput, match=r"augment\(x, generator\)"):
        trained(train_set=Random())


def test_a_single_instance_and_batchnorm(trained):
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    with pytest.raises(BadInput, match=r"Step 1 cannot be taken.*single instance"):
        trained(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            batches=[[0, 1], [2]],
        )


def test_an_interrupt_tells_how_to_go_on(trained):
    def loss(out, y):
        if len(out) == 5:
            raise KeyboardInterrupt
        return F.cross_entropy(out, y, reduction="none")

    with pytest.raises(KeyboardInterrupt) as caught:
        trained(loss=loss)
    assert "resume=True" in caught.value.__notes__[0]


def test_a_nan_names_its_step_and_its_instances(trained, tmp_path):
    p = problem("mlp", "sgd")
    bad = int(p.batches[2][1])
    p.X[bad] = float("nan")
    first = next(t for t, ids in enumerate(p.batches) if bad in ids)
    with pytest.raises(
        NotFinite, match=f"Step {first}: the loss of instance {bad} is not finite"
    ) as caught:
        trained(train_set=(p.X, p.Y))
    assert caught.value.step == first
    assert dross.tape.reader.Tape(tmp_path / "t").steps == first  # what went well is kept


def test_a_rate_that_explodes(trained):
    with pytest.raises(NotFinite, match=r"Step \d+: .*lower the rate"):
        trained(eta=1e308)


def test_an_adjoint_that_explodes_names_the_step(tmp_path):
    """Float32 and a rate far beyond stability: the parameters still fit, their derivative does not."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    X, Y = torch.ones(2, 1) * 1e3, torch.zeros(2)
    run = dross.train(
        model,
        (X, Y),
        "squared_error",
        torch.optim.SGD(model.parameters(), lr=1e3),
        tape=tmp_path / "t",
        batches=[[0, 1]] * 8,
        progress=False,
    )
    with pytest.raises(NotFinite, match=r"no longer finite at step \d"):
        run.influence(dross.query(lambda params, buffers: params["weight"].sum()))


def test_quicker_arithmetic_is_asked_for_written_down_and_used_again(tmp_path):
    torch.manual_seed(0)
    data = (torch.randn(60, 5), torch.randint(0, 3, (60,)))
    found = {}
    for kind in ("strict", "bf16"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
        options = {"epochs": 4, "batch_size": 10, "progress": False, "arithmetic": kind}
        run = dross.train(
            model,
            data,
            "cross_entropy",
            torch.optim.SGD(model.parameters(), lr=0.1),
            tape=tmp_path / kind,
            **options,
        )
        query = dross.mean_loss(data)
        found[kind] = run.influence(query).values
        again = dross.Run.open(tmp_path / kind, model, data, "cross_entropy")
        assert again.recording.objective.arithmetic == kind
        np.testing.assert_array_equal(again.influence(query).values, found[kind])
    assert not np.allclose(found["strict"], found["bf16"], rtol=1e-4)  # it is another arithmetic
    assert np.corrcoef(found["strict"], found["bf16"])[0, 1] > 0.98
    for kind, dtype, message in (
        ("tf32", torch.float32, "NVIDIA"),
        ("bf16", torch.float64, "float32 models"),
        ("tf23", None, "tf32"),
    ):
        model = nn.Linear(5, 3, dtype=dtype)
        with pytest.raises(BadInput, match=message):
            dross.train(
                model,
                data,
                "cross_entropy",
                torch.optim.SGD(model.parameters(), lr=0.1),
                tape=tmp_path / "no",
                epochs=1,
                batch_size=9,
                arithmetic=kind,
            )
    assert not (tmp_path / "no").exists()


def test_a_tensor_that_is_a_parameter_and_a_buffer_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[1].register_buffer("again", model[0].weight)
    data = (torch.randn(8, 3), torch.randint(0, 2, (8,)))
    with pytest.raises(BadInput, match=r"'0\.weight' and '1\.again' are one tensor"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        dross.train(
            model,
            data,
            "cross_entropy",
            optimizer,
            tape=tmp_path,
            epochs=1,
            batch_size=4,
            progress=False,
        )
