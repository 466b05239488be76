"""What dross.train refuses, and runs that diverge."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dross
from dross.errors import Diverged, InvalidInput, NotSupported
from tests.zoo import problem

BINARY = {"loss": "binary_cross_entropy", "model": nn.Linear(6, 1).double()}

HUGE = (torch.zeros(1000, 6).double(), torch.zeros(1000).long())


class Twice(nn.Linear):
    """Has two outputs."""

    def forward(self, x):
        return x, x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": F.cross_entropy}, r"one loss per instance, not\s+their mean.*reduction='none'"),
        ({"loss": nn.CrossEntropyLoss()}, "one loss per instance"),
        ({"loss": "hinge"}, "no loss named 'hinge'"),
        ({"loss": 3}, "must be a function"),
        ({"batches": [[0, 99]]}, "between 0 and 14; found 99"),
        ({"batches": [[0.5]]}, "must be integers"),
        ({"batches": []}, "nothing to train on"),
        ({"batches": None}, "epochs and batch_size"),
        (
            {"batches": None, "epochs": 0, "batch_size": 4},
            "`epochs` must be a whole number of at least 1",
        ),
        (
            {"batches": None, "epochs": 10**40, "batch_size": 4},
            "`epochs` must be at most 1,000,000",
        ),
        ({"epochs": 10**40}, "`epochs` must be at most 1,000,000, not 10000"),
        (
            {"batches": None, "epochs": 10**6, "batch_size": 1, "data": HUGE},
            "steps must be at most 100,000,000, not 1000000000: the learning rates of all",
        ),
        ({"batches": None, "epochs": 1, "batch_size": 10**40}, "`batch_size` must be at most"),
        (
            {"batches": None, "epochs": 1, "batch_size": 0},
            "`batch_size` must be a whole number of at least 1",
        ),
        (
            {"batches": None, "epochs": 1.5, "batch_size": 4},
            "a whole number of at least 1, not 1.5",
        ),
        ({"batches": [[], []]}, "nothing to train on"),
        ({"keep": "all"}, "EveryStep"),
        ({"clip_value": -1.0}, "clip"),
        ({"data": torch.utils.data.DataLoader([1, 2])}, "map-style"),
        ({"data": [(torch.zeros(6), 0), (torch.zeros(5), 0)]}, "one batch"),
        ({"model": Twice(6, 3).double()}, "of type tuple"),
        (BINARY | {"data": (torch.zeros(15, 6), torch.full((15,), 2))}, "needs labels from 0 to 1"),
        ({"lr": [0.1, 0.1]}, "2 values for 8 steps"),
        ({"lr": -1.0}, "not negative"),
        ({"lr": float("nan")}, "finite"),
        ({"data": (torch.zeros(0, 6), torch.zeros(0).long())}, "empty"),
        ({"data": (torch.zeros(4, 6), torch.zeros(3).long())}, "same number of instances"),
        ({"data": iter([1, 2])}, "map-style"),
        ({"data": [1, 2, 3]}, "pairs"),
        (
            {"data": (torch.zeros(15, 9).double(), torch.zeros(15).long())},
            "does not accept the training inputs",
        ),
        ({"model": lambda x: x}, "torch.nn.Module"),
        ({"optimizer": "sgd"}, "torch.optim optimizer"),
        ({"device": "cuda:7"}, "'cuda:7' is not available"),
        ({"device": "toaster"}, "There is no device 'toaster'"),
        ({"penalty": lambda params: sum(p.norm() for p in params)}, "dict of name -> tensor"),
        ({"penalty": lambda params: 3.0}, "must return a scalar tensor"),
    ],
    ids=range(36),
)
def test_bad_input(trained, changes, message, tmp_path):
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        trained(**changes)
    assert not (tmp_path / "t" / "manifest.json").exists()  # nothing half-made is left behind


@pytest.mark.parametrize("what", ["penalty", "loss"])
def test_a_function_of_the_live_model(trained, what):
    """Its derivative would be 0: the parameters that it uses are not those of the step."""
    model, optimizer = problem("mlp", "sgd").start()
    penalty = lambda params: model[0].weight.square().sum()
    loss = lambda outputs, y: F.cross_entropy(outputs, y, reduction="none") + penalty({})
    changes = {"penalty": penalty} if what == "penalty" else {"loss": loss}
    with pytest.raises(InvalidInput, match="uses parameters of the live model"):
        trained(model=model, optimizer=optimizer, **changes)


def test_labels_out_of_range_anywhere(trained):
    p = problem("mlp", "sgd")
    p.Y[-1] = 3  # an instance that no batch uses first
    with pytest.raises(InvalidInput, match="Labels run from 0 to 3, but the model has 3 outputs"):
        trained(data=(p.X, p.Y))


def test_other_refusals(trained):
    p = problem("mlp", "sgd")
    model, _ = p.start()
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1)
    with pytest.raises(InvalidInput, match="does not belong to the model"):
        trained(optimizer=stranger)
    plateau = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NotSupported, match="ReduceLROnPlateau"):
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(plateau)
        trained(model=model, optimizer=plateau, lr=scheduler)
    with pytest.raises(NotSupported, match="LBFGS"):
        trained(model=model, optimizer=torch.optim.LBFGS(model.parameters()))
    sparse = nn.Sequential(nn.Embedding(10, 3, sparse=True), nn.Flatten()).double()
    with pytest.raises(NotSupported, match="sparse"):
        trained(model=sparse, optimizer=torch.optim.SGD(sparse.parameters(), lr=0.1))
    with pytest.raises(NotSupported, match="DataParallel"):
        trained(model=nn.DataParallel(model), optimizer=plateau)
    mixed = nn.Sequential(nn.Linear(6, 4).double(), nn.Linear(4, 3))
    with pytest.raises(NotSupported, match="one dtype"):
        trained(model=mixed, optimizer=torch.optim.SGD(mixed.parameters(), lr=0.1))


def test_models_that_change_underway(trained):
    class Late(nn.Module):
        """The second layer has a part only in batches without instance 0."""

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.first(x) if len(x) == 4 else self.first(x) + self.second(x)

    late = Late().double()
    with pytest.raises(NotSupported, match=r"'second.weight' was not used in the first batch"):
        trained(model=late, optimizer=torch.optim.SGD(late.parameters(), lr=0.1))

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
        trained(model=bag, optimizer=torch.optim.SGD(bag.parameters(), lr=0.1), data=(p.X, p.Y))
    odd = nn.Linear(6, 3, bias=False)
    odd.weight = nn.Parameter(odd.weight.to(torch.complex64))
    with pytest.raises(NotSupported, match="complex64 are not supported"):
        trained(model=odd, optimizer=torch.optim.SGD(odd.parameters(), lr=0.1))


def test_a_data_set_with_random_transforms(trained):
    class Random:
        def __len__(self):
            return 15

        def __getitem__(self, i):
            return torch.randn(6, dtype=torch.float64), 0

    with pytest.raises(InvalidInput, match=r"augment\(x, generator\)"):
        trained(data=Random())


def test_a_single_instance_and_batchnorm(trained):
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    with pytest.raises(InvalidInput, match=r"Step 1 cannot be taken.*1 value per channel"):
        trained(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            batches=[[0, 1], [2]],
        )


def test_a_tensor_that_is_a_parameter_and_a_buffer_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[1].register_buffer("again", model[0].weight)
    data = (torch.randn(8, 3), torch.randint(0, 2, (8,)))
    with pytest.raises(InvalidInput, match=r"'0\.weight' and '1\.again' are the same tensor"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"path": tmp_path, "epochs": 1, "batch_size": 4, "progress": False}
        dross.train(model, data, "cross_entropy", optimizer, **options)


def test_a_nan_names_its_step_and_its_instances(trained, tmp_path):
    p = problem("mlp", "sgd")
    bad = int(p.batches[2][1])
    p.X[bad] = float("nan")
    first = next(t for t, ids in enumerate(p.batches) if bad in ids)
    message = f"Step {first}: the loss of instance {bad} is not finite"
    with pytest.raises(Diverged, match=message) as caught:
        trained(data=(p.X, p.Y))
    assert caught.value.step == first
    assert dross.tape.reader.Tape(tmp_path / "t").steps == first  # what went well is kept


def test_a_rate_that_explodes(trained):
    with pytest.raises(Diverged, match=r"Step \d+: .*lower the learning rate"):
        trained(lr=1e308)


def test_an_adjoint_that_explodes_names_the_step(tmp_path):
    """Float32 and a rate far beyond stability: the parameters fit, their derivative does not."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    X, Y = torch.ones(2, 1) * 1e3, torch.zeros(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e3)
    options = {"path": tmp_path / "t", "batches": [[0, 1]] * 8, "progress": False}
    run = dross.train(model, (X, Y), "squared_error", optimizer, **options)
    with pytest.raises(Diverged, match=r"Step \d: the adjoint overflows"):
        run.influence(dross.query(lambda params, buffers: params["weight"].sum()))


def test_a_loss_of_another_signature(trained):
    given = "what the model returns for a batch, and its labels"
    for loss, takes in ((lambda outputs: outputs, "outputs"), (lambda a, b, c: a, "a, b, c")):
        sentence = rf"takes \({takes}\), but dross calls loss\(outputs, targets\): {given}"
        with pytest.raises(InvalidInput, match=sentence):
            trained(loss=loss)


def test_models_without_weights_and_inference_mode_are_refused(tmp_path):
    x = torch.randn(8, 3)
    y = torch.zeros(8, dtype=torch.long)

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        dross.train(
            model, (x, y), "cross_entropy", optimizer, path=tmp_path, epochs=1, batch_size=4
        )

    with pytest.raises(InvalidInput, match="call it once on a batch"):
        train(torch.nn.LazyLinear(2))
    with pytest.raises(InvalidInput, match="meta device"):
        train(torch.nn.Linear(3, 2, device="meta"))
    with torch.inference_mode(), pytest.raises(InvalidInput, match="inference_mode"):
        train(torch.nn.Linear(3, 2))
