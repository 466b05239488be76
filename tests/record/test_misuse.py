"""Whatever is passed to a public function, the answer is a result or a sentence of ours."""

import itertools
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dross
from dross.errors import DrossError, InvalidInput
from dross.record import recorder

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % 3
_NAMES = itertools.count()


class Given(torch.utils.data.Dataset):
    """A dataset whose every instance is what `give` says."""

    def __init__(self, give):
        self.give = give

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return self.give(i)


def _fail(i):
    raise KeyError(i)


def detached(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none").detach()


def constant(outputs, targets):
    return torch.zeros(len(targets))


def failing(outputs, targets):
    return outputs["logits"]


def _start():
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def train(tmp_path):
    def run(**changes):
        model, optimizer = _start()
        given = {
            "model": model,
            "data": (X, Y),
            "loss": "cross_entropy",
            "optimizer": optimizer,
            "path": tmp_path / f"t{next(_NAMES)}",
            "epochs": 1,
            "batch_size": 5,
            "progress": False,
        }
        return dross.train(**(given | changes))

    return run


@pytest.fixture
def record(tmp_path):
    """Record one step, with other arguments of the recorder and of the step."""

    def run(made, stepped):
        model, optimizer = _start()
        given = {"optimizer": optimizer, "loss": "cross_entropy", "path": tmp_path / "t"} | made
        recorder = dross.Recorder(model, **given)
        with recorder.step(**({"ids": [0, 1], "x": X[:2], "y": Y[:2]} | stepped)) as losses:
            losses.mean().backward()
            optimizer.step()
        return recorder.run((X, Y))

    return run


def _describe(value) -> str:
    """The same name for a test in every process: without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


BATCHES = {"batch_size": None, "epochs": None}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": None}, "seed must be a whole number, not None"),
        ({"seed": "x"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"path": None}, "path must be the path to a folder, not None"),
        ({"path": 5}, "path"),
        ({"path": b"x"}, "path"),
        ({"path": ""}, "path"),
        ({"path": "a\0b"}, "path"),
        (
            {"data": Given(lambda i: (X[i], "cat"))},
            "The y of instance 0 .* contains 'cat', of type str",
        ),
        ({"data": Given(lambda i: ("text", 1))}, "The x of instance 0"),
        ({"data": Given(_fail)}, "failed to return instance 0"),
        ({"data": {"x": X}}, "failed to return instance 0"),
        ({"data": (X, np.array(["a"] * 20))}, "dross supports only numeric"),
        ({"data": (np.array([["a"]] * 20), Y)}, "dross supports only numeric"),
        ({"data": (X.numpy().astype(object), Y)}, "dross supports only numeric"),
        ({"data": None}, "map-style"),
        ({"loss": detached}, "does not depend on the model's parameters"),
        ({"loss": constant}, "does not depend on the model's parameters"),
        ({"loss": failing}, "The loss does not accept"),
        ({"loss": None}, "loss must be"),
        (BATCHES | {"batches": 5}, "batches must be a list"),
        (BATCHES | {"batches": [[0, [1]]]}, "one-dimensional list of integers"),
        (BATCHES | {"batches": [[[0, 1], [2, 3]]]}, "one-dimensional list of integers"),
        (BATCHES | {"batches": [[0], [1]], "epochs": 3}, "cannot be divided into 3 epochs"),
        ({"batches": [[0], [1]]}, "batch_size or batches, not both"),
        ({"lr": "quick"}, "lr must be a number"),
        ({"lr": {"a": 1}}, "lr must be a number"),
        ({"lr": 1j}, "lr must be a number"),
        ({"lr": lambda t: "x"}, "lr must be a number"),
        ({"lr": np.zeros((4, 7))}, r"lr has the shape \[4, 7\]"),
        ({"penalty": 5}, "penalty must be a function"),
        ({"penalty": lambda params: params["zzz"]}, "penalty"),
        ({"augment": 5}, "augment must be a function"),
        ({"augment": lambda x: x}, r"dross calls augment\(x, generator\)"),
        ({"clip_norm": "x"}, "clip"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "clip"),
        ({"device": 1.5}, "device"),
        ({"resume": 5}, "resume"),
        ({"keep": "all"}, "keep"),
        ({"optimizer": None}, "optimizer"),
        ({"model": None}, "model"),
    ],
    ids=_describe,
)
def test_train_says_what_cannot_be_used(train, change, says):
    with pytest.raises(InvalidInput, match=says):
        train(**change)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: dross.tape.Checkpoints("x"), "Checkpoints"),
        (lambda: dross.tape.LastEpochs(None), "LastEpochs"),
        (lambda: dross.tape.LastEpochs(1, "x"), "inside"),
        (lambda: dross.tape.Budget(None), "budget"),
        (lambda: dross.tape.Budget(10**7, "x"), "budget"),
        (lambda: dross.data.indexed(5), "map-style"),
    ],
)
def test_what_describes_a_run_is_checked_when_it_is_made(make, says):
    with pytest.raises(InvalidInput, match=says):
        make()


@pytest.mark.parametrize(
    ("made", "stepped"),
    [
        *[({key: value}, {}) for key in ("path", "seed", "optimizer") for value in (None, 1.5, [])],
        *[({key: value}, {}) for key in ("keep", "penalty", "augment") for value in (5, "x")],
        *[({"loss": loss}, {}) for loss in (None, detached, constant, failing)],
        *[({}, {"y": y}) for y in (None, 5, [0, 1], ["a", "b"], torch.tensor(1), [], {})],
        *[({}, {"ids": ids}) for ids in (None, "ab", [[0], [1, 2]], [[0], [1]], [0.5, 1.5])],
        *[({}, {"epoch": epoch}) for epoch in ("x", 1.5, [], float("nan"))],
        *[({}, {"x": x}) for x in (None, "ab", 5)],
    ],
    ids=_describe,
)
def test_a_recorder_says_what_cannot_be_used(record, made, stepped):
    with pytest.raises(InvalidInput):
        record(made, stepped)


@pytest.mark.parametrize("wrong", ["x", None, []])
@pytest.mark.parametrize("clip", ["clip_grad_norm_", "clip_grad_value_"])
def test_a_clip_of_a_recorder_needs_a_number(tmp_path, clip, wrong):
    model, optimizer = _start()
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "t")
    with (
        pytest.raises(InvalidInput, match="must be a number"),
        recorder.step([0], X[:1], Y[:1]) as losses,
    ):
        losses.mean().backward()
        getattr(recorder, clip)(wrong)


def test_what_is_asked_of_a_run_is_checked(train):
    run, query = train(), dross.mean_loss((X, Y))
    scores = run.influence(query)
    wrong = ["x", [], 1.5, object(), True]
    folders = [5, 1.5, [], b"x", "a\0b", object()]
    ids = [["a"], [0.5], [99], [None], [[1, 2]], [[1], [2, 3]], object(), []]
    asked = [
        *[lambda v=v: run.influence(query, epochs=v) for v in wrong],
        *[lambda v=v: run.influence(query, step=v) for v in wrong],
        *[lambda v=v: run.evaluate(query, step=v) for v in wrong],
        *[lambda v=v: run.parameters(step=v) for v in wrong],
        *[lambda v=v: run.counterfactual([[1]], epochs=v) for v in wrong],
        *[lambda v=v: run.leave_one_out(query, [1], step=v) for v in wrong],
        *[lambda v=v: run.verify(scores, n=v) for v in wrong],
        *[lambda v=v: scores.most_harmful(v) for v in wrong],
        *[lambda v=v: run.influence(query, resume=v) for v in folders if v != "a\0b"],
        *[lambda v=v: run.counterfactual([[1]], folder=v) for v in folders],
        *[lambda v=v: run.leave_one_out(query, [1], folder=v) for v in folders],
        *[lambda v=v: run.leave_one_out(query, v) for v in ids],
        *[lambda v=v: run.verify(scores, v) for v in ids],
        *[lambda v=v: run.parameter_influence(v) for v in ids],
        *[lambda v=v: dross.load(v, _start()[0], (X, Y), "cross_entropy") for v in folders],
        *[lambda v=v: run.influence(v) for v in (None, (X, Y), dross.mean_loss)],
    ]
    for ask in asked:
        with pytest.raises(DrossError):
            ask()


# --- gradients that are switched off, models that cannot be trained ---


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("first", [True, False])
def test_a_step_needs_gradients(tmp_path, around, first):
    model, optimizer = _start()
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "t")
    if not first:
        with recorder.step([0, 1], X[:2], Y[:2]) as losses:
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    with pytest.raises(InvalidInput, match="Gradient computation is disabled here"), around():
        recorder.step([0, 1], X[:2], Y[:2]).__enter__()
    with pytest.raises(InvalidInput, match="Gradient computation is disabled here"), around():
        recorder.observe([0, 1], X[:2], Y[:2]).__enter__()


def test_a_model_in_eval_mode_is_noticed_at_its_first_step(tmp_path):
    model, optimizer = _start()
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "t")
    with recorder.step([0, 1], X[:2], Y[:2]) as losses:
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()  # for a validation, and never train() again
    with pytest.raises(InvalidInput, match=r"eval mode: call model.train\(\)"):
        recorder.step([0, 1], X[:2], Y[:2]).__enter__()


def test_a_model_that_cannot_be_trained(tmp_path):
    model, optimizer = _start()
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "t")
    model.requires_grad_(False)
    with pytest.raises(InvalidInput, match="no trainable parameters"):
        recorder.step([0, 1], X[:2], Y[:2]).__enter__()
    with torch.inference_mode():
        model, optimizer = _start()
    with pytest.raises(InvalidInput, match=r"created inside torch.inference_mode\(\)"):
        dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "u")


def test_an_empty_batch(record):
    with pytest.raises(InvalidInput, match="The batch is empty"):
        record({}, {"ids": [], "x": X[:0], "y": Y[:0]})


@pytest.mark.parametrize("change", [Tensor.item, Tensor.detach])
def test_a_loss_that_is_no_tensor_with_a_gradient(tmp_path, change):
    model, optimizer = _start()
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "t")
    with (
        pytest.raises(InvalidInput, match=r"The loss has no gradient: pass it before backward\(\)"),
        recorder.observe([0, 1], X[:2], Y[:2]) as watch,
    ):
        watch(change(nn.functional.cross_entropy(model(X[:2]), Y[:2])))


def test_a_run_is_asked_without_gradients(train):
    run, query = train(), dross.mean_loss((X, Y))
    scores = run.influence(query)
    with torch.no_grad():
        assert torch.equal(torch.tensor(run.influence(query).values), torch.tensor(scores.values))
    asked = [
        lambda: run.influence(query),
        lambda: run.counterfactual([[1]]).evaluate(query),
        lambda: run.parameter_influence([1]),
    ]
    for ask in asked:
        with pytest.raises(InvalidInput, match=r"inference_mode\(\)"), torch.inference_mode():
            ask()


def test_a_recorder_that_was_refused_has_nothing_to_save(tmp_path):
    model = nn.Linear(4, 3)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidInput) as caught:
        dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "taken")
    assert caught.traceback  # which keeps the recorder alive until the interpreter ends
    recorder._save_all()


def loop_with_batch_norm(folder, steps, between=lambda model, t: None, **options):
    """A loop of a user's own, with something that is done before each step."""
    torch.manual_seed(0)
    X = torch.randn(60, 6)
    Y = torch.arange(60) % 3
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    options |= {"path": folder, "data": (X, Y)}
    with dross.Recorder(model, "cross_entropy", optimizer, **options) as recorder:
        for t in range(recorder.steps, steps):
            between(model, t)
            ids = torch.arange(20) + 20 * (t % 3)
            with recorder.step(ids, X[ids], Y[ids]) as losses:
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return recorder, X


def test_validation_in_train_mode_is_refused_at_the_next_step(tmp_path):
    def validate(model, t):
        if t == 4:
            with torch.no_grad():
                model(torch.ones(5, 6))

    with pytest.raises(dross.NotSupported, match=r"'1\.\w+' changed before step 4.*model\.eval"):
        loop_with_batch_norm(tmp_path / "t", 8, validate)


def test_validation_in_eval_mode_is_fine(tmp_path):
    def validate(model, t):
        model.eval()
        model(torch.ones(5, 6))
        model.train()

    recorder, X = loop_with_batch_norm(tmp_path / "t", 8, validate)
    scores = recorder.run().influence(dross.mean_loss((X[:5], torch.arange(5) % 3)))
    assert scores.values.any()


def test_a_checkpoint_that_is_loaded_after_the_resume_is_refused_at_once(tmp_path):
    checkpoint = {}

    def keep(model, t):
        if t == 3:
            checkpoint.update({name: value.clone() for name, value in model.state_dict().items()})

    def stop(model, t):
        keep(model, t)
        if t == 6:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        loop_with_batch_norm(tmp_path / "t", 9, stop)
    load = lambda model, t: model.load_state_dict(checkpoint) if t == 6 else None
    with (
        pytest.warns(dross.DrossWarning, match="continues at step 6"),
        pytest.raises(dross.NotSupported, match=r"before step 6.*loading a checkpoint"),
    ):
        loop_with_batch_norm(tmp_path / "t", 9, load, resume=True)
