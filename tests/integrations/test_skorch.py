"""skorch nets, recorded: the scores are those of the training as it was."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("skorch", reason="skorch is not installed")

from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import GradientNormClipping
from skorch.dataset import ValidSplit

from dross.errors import InputChanged, InvalidInput, NotSupported
from dross.integrations.skorch import DrossCallback
from tests.oracles import slope

random = np.random.default_rng(0)
X, Y = random.normal(size=(12, 4)), random.integers(3, size=12)
X_VAL, Y_VAL = random.normal(size=(6, 4)), random.integers(3, size=6)


class Net(nn.Module):
    def __init__(self, outputs=3, softmax=True):
        super().__init__()
        torch.manual_seed(0)
        last = [nn.Softmax(-1)] if softmax else []
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs), *last)
        self.double()

    def forward(self, X):
        return self.layers(X)


def weigh(kind, weights):
    """The same net with weights: the criterion's losses are weighed before their mean."""

    class Weighted(kind):
        def get_loss(self, y_pred, y_true, X=None, training=False):
            losses = super().get_loss(y_pred, y_true, X=X, training=training)
            rows = [int(np.argmin(np.abs(self.rows_ - float(x[0])))) for x in X]
            return (losses.flatten() * torch.tensor(weights)[rows]).mean()

    Weighted.rows_ = X[:, 0]
    return Weighted


def build(kind, callbacks, **options):
    given = {"max_epochs": 3, "batch_size": 4, "lr": 0.1, "train_split": None, "verbose": 0}
    given |= {
        "optimizer": torch.optim.SGD,
        "optimizer__momentum": 0.9,
        "iterator_train__shuffle": True,
    }
    return kind(callbacks=callbacks, **given | options)


KINDS = {
    "classifier": (NeuralNetClassifier, {"module": Net}, Y, Y_VAL),
    "binary": (
        NeuralNetBinaryClassifier,
        {"module": Net, "module__outputs": 1, "module__softmax": False},
        (Y > 0).astype(np.float64),
        (Y_VAL > 0).astype(np.float64),
    ),
    "regressor": (
        NeuralNetRegressor,
        {"module": Net, "module__outputs": 1, "module__softmax": False},
        Y[:, None].astype(np.float64),
        Y_VAL[:, None].astype(np.float64),
    ),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("clip", [None, 0.2])
def test_scores_against_finite_differences_through_fit(tmp_path, name, clip):
    kind, options, y, y_val = KINDS[name]
    clips = [] if clip is None else [("clip", GradientNormClipping(clip))]

    def train(kind, more=(), **reduction):
        torch.manual_seed(3)
        return build(kind, [*clips, *more], **options, **reduction).fit(X, y)

    net = train(kind, [("dross", DrossCallback(path=tmp_path / "tape"))])
    callback = dict(net.callbacks_)["dross"]
    run, query = callback.recorded_run(), callback.loss_of(X_VAL, y_val)
    scores = run.influence(query).values
    assert run.steps == 9
    objective, state = run.recording.objective, run.recording.state_at(run.steps)

    def loss_with(offset):
        weights = np.ones(len(X))
        weights[5] += offset
        other = train(weigh(kind, weights), criterion__reduction="none")
        flat = objective.layout.flatten(dict(other.module_.named_parameters()))
        return float(query.evaluate(objective, replace(state, theta=flat.detach())))

    np.testing.assert_allclose(-scores[5], slope(loss_with), atol=1e-8 * np.nanmax(np.abs(scores)))


def test_weights_in_get_loss_are_seen_and_rows_are_those_of_X(tmp_path):
    """Instance 5 has no weight: its score is 0. Others are left to the net's own validation."""
    weights = np.ones(len(X))
    weights[5] = 0
    callbacks = [("dross", DrossCallback(path=tmp_path / "tape"))]
    options = {"criterion__reduction": "none", "module": Net, "train_split": ValidSplit(4)}
    net = build(weigh(NeuralNetClassifier, weights), callbacks, **options).fit(X, Y)
    callback = dict(net.callbacks_)["dross"]
    scores = callback.recorded_run().influence(callback.loss_of(X_VAL, Y_VAL)).values
    used = np.unique(
        np.concatenate([s.ids for s in callback.recorded_run().recording.tape.read(0).steps])
    )
    assert len(used) == 9 and used.max() > 8  # ids are rows of X, not of the training part
    assert (np.flatnonzero(np.nan_to_num(scores)) == used[used != 5]).all() and scores[5] == 0
    assert (np.flatnonzero(~np.isnan(scores)) == used).all()  # nothing is known of the others


def test_refusals(tmp_path):
    weighted = {"module": Net, "criterion__weight": torch.ones(3, dtype=torch.float64)}
    with pytest.raises(NotSupported, match="divides the loss by the sum"):
        build(NeuralNetClassifier, [DrossCallback(path=tmp_path / "t")], **weighted).fit(X, Y)
    with pytest.raises(InvalidInput, match=r"call net\.fit first"):
        DrossCallback(path=tmp_path / "t").recorded_run()
    callbacks = [("dross", DrossCallback(path=tmp_path / "tape"))]
    net = build(NeuralNetClassifier, callbacks, module=Net).fit(X, Y)
    callback = dict(net.callbacks_)["dross"]
    callback.source_.dataset.X[2] += 1
    with pytest.raises(InputChanged, match="a different dataset"):
        callback.recorded_run()
    X[2] -= 1


@pytest.mark.parametrize("name", KINDS)
def test_margins(tmp_path, name):
    """Of logits, though the classifier gives probabilities; a regressor has none."""
    kind, options, y, _ = KINDS[name]
    callbacks = [("dross", DrossCallback(path=tmp_path / "tape"))]
    still = {"lr": 0.0, "optimizer__momentum": 0.0}
    net = build(kind, callbacks, **options, **still).fit(X, y)
    run = dict(net.callbacks_)["dross"].recorded_run()
    if name == "regressor":
        with pytest.raises(NotSupported, match="this net is a regressor"):
            run.margins()
        return
    outputs = net.module_(torch.tensor(X)).detach().numpy()
    if name == "binary":
        expected = np.where(y == 1, outputs[:, 0], -outputs[:, 0])
    else:
        others = np.where(np.eye(3, dtype=bool)[y], 0, outputs).max(1)
        expected = np.log(outputs[range(12), y] / others)
    np.testing.assert_allclose(run.margins(), expected, rtol=1e-9)
