"""Loops of the user's own, recorded as they happen."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dross
from dross.errors import InputChanged
from tests.oracles import derivative, literal_run
from tests.record.user_loops import close, query, recorded_loop, take_step
from tests.zoo import MODELS, OPTIMIZERS, problem


@pytest.mark.filterwarnings("ignore:All scores are 0")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_gives_the_scores_of_train(record, tmp_path, optimizer):
    p = problem("mlp", optimizer)
    recorder, model = recorded_loop(p, tmp_path / "mine")
    run = recorder.run((p.X, p.Y))
    for one, other in zip(model.parameters(), literal_run(p).parameters()):
        assert torch.equal(one, other)  # recording does not change what the loop does
    close(run.influence(query(p)).values, record(p).influence(query(p)).values)


@pytest.mark.parametrize("model", MODELS)
def test_every_model(record, tmp_path, model):
    p = problem(model, "adamw")
    run = recorded_loop(p, tmp_path / "mine", keep=dross.tape.Checkpoints(every=3))[0].run(
        (p.X, p.Y)
    )
    close(run.influence(query(p)).values, record(p).influence(query(p)).values)


@pytest.mark.parametrize(
    "keep",
    [
        dross.tape.EveryStep(),
        dross.tape.Checkpoints(),
        dross.tape.LastEpochs(2),
        dross.tape.Budget(20_000, steps=160),
    ],
)
def test_every_storage_policy(record, tmp_path, keep):
    p = problem("batchnorm", "nesterov", epochs=40)
    run = recorded_loop(p, tmp_path / "mine", keep=keep)[0].run((p.X, p.Y))
    expected = record(p).influence(query(p))
    expected = expected.last_epochs(2) if isinstance(keep, dross.tape.LastEpochs) else expected
    close(run.influence(query(p)).values, expected.values)
    if isinstance(keep, dross.tape.Budget):
        assert run.recording.tape.nbytes <= keep.bytes
        assert len(run.recording.tape.entries) < len(p.batches) / 8


def test_clipping_schedule_and_penalty(tmp_path):
    penalty = lambda params: 0.01 * sum((v**2).sum() for v in params.values())
    rate = lambda t: 0.1 / (t + 1)
    p = problem("mlp", "momentum", rate=rate, clip_norm=0.5, penalty=penalty)
    scores = recorded_loop(p, tmp_path / "mine")[0].run((p.X, p.Y)).influence(query(p)).values
    expected = np.array([derivative(p, j) for j in p.used])
    np.testing.assert_allclose(-scores[p.used], expected, atol=1e-8 * np.nanmax(np.abs(scores)))


def test_gradient_accumulation_and_instance_weights(tmp_path):
    """Three micro-batches of unequal size per step, BatchNorm in between, and a weighted loss."""
    p = problem("batchnorm", "adam")
    instance_weight = torch.linspace(0.5, 2, len(p.X), dtype=torch.float64)

    def loop(weights, recorder=None):
        model, optimizer = p.start()
        model.train()
        if recorder is not None:
            recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine")
        for start in range(3):
            for k, ids in enumerate(np.split(np.random.default_rng(start).permutation(14), [3, 9])):
                if recorder is None:
                    losses = p.loss(model(p.X[ids]), p.Y[ids]) * weights[ids]
                    ((losses * instance_weight[ids]).sum() / 14).backward()
                    if k == 2:
                        optimizer.step()
                        optimizer.zero_grad()
                    continue
                with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
                    ((losses * instance_weight[ids]).sum() / 14).backward()
                    if k == 2:
                        optimizer.step()
                        optimizer.zero_grad()
        if recorder is not None:
            return recorder.run((p.X, p.Y))
        with torch.no_grad():
            return float(p.loss(model.eval()(p.X_val), p.Y_val).mean())

    run = loop(None, recorder=True)
    scores = run.influence(query(p)).values
    delta = run.parameter_influence([2, 5])
    seed, _ = query(p).derivative(run.recording.objective, run.recording.state_at(run.steps))
    u = run.recording.objective.layout.unflatten(seed.theta[0])
    products = sum((delta[name] * u[name]).flatten(1).sum(1) for name in delta)
    products = products + sum(
        (delta.buffers[name] * seed.buffers[name][0]).flatten(1).sum(1) for name in delta.buffers
    )
    close(products.numpy(), scores[[2, 5]])
    h = 1e-4
    for j in (2, 5):
        values = []
        for offset in (2 * h, h, -h, -2 * h):
            weights = torch.ones(len(p.X), dtype=torch.float64)
            weights[j] += offset
            values.append(loop(weights))
        slope = (-values[0] + 8 * values[1] - 8 * values[2] + values[3]) / (12 * h)
        np.testing.assert_allclose(-scores[j], slope, atol=1e-8 * np.nanmax(np.abs(scores)))
    removed = torch.ones(len(p.X), dtype=torch.float64)
    removed[5] = 0
    expected = loop(removed) - loop(torch.ones(len(p.X), dtype=torch.float64))
    np.testing.assert_allclose(run.leave_one_out(query(p), [5]), [expected], rtol=1e-9)


def test_a_loader_with_workers_and_a_scheduler_that_moves_the_betas(tmp_path):
    p = problem("mlp", "adam")
    model, optimizer = p.start()
    train_set = TensorDataset(p.X, p.Y)
    options = {"batch_size": 4, "shuffle": True, "num_workers": 2}
    options["generator"] = torch.Generator().manual_seed(3)
    loader = DataLoader(dross.data.indexed(train_set), **options)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=12)
    given = (model, "cross_entropy", optimizer)
    with dross.Recorder(*given, path=tmp_path / "mine", data=train_set) as recorder:
        for epoch in range(3):
            for ids, x, y in loader:
                take_step(recorder, optimizer, ids, x, y, epoch=epoch)
                scheduler.step()
    run = recorder.run()
    numbers = [step.hyperparams[0] for step in run.recording.tape.read(0).steps]
    assert len({row[run.recording.optimizer.columns.index("betas.0")] for row in numbers}) > 1
    assert run.steps == 12
    scores = run.influence(query(p))
    assert scores.by_epoch.shape == (3, len(p.X))
    assert run.verify(scores).tau > 0.5


def test_a_compiled_model_is_unwrapped(tmp_path, record):
    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    compiled = torch.compile(model, backend="eager")
    recorder = dross.Recorder(compiled, p.loss, optimizer, path=tmp_path / "mine")
    for ids in p.batches:
        take_step(recorder, optimizer, ids, p.X[ids], p.Y[ids])
    close(recorder.run((p.X, p.Y)).influence(query(p)).values, record(p).influence(query(p)).values)


def test_only_the_head_is_in_the_optimizer(tmp_path):
    """The body has gradients that are never cleared; they have no part in the run."""
    p = problem("mlp", "sgd")
    p.groups, p.clip_norm = (lambda model: model[2].parameters()), 0.5
    run = recorded_loop(p, tmp_path / "mine")[0].run((p.X, p.Y))
    assert list(run.parameters()) == ["2.weight", "2.bias"]
    assert run.influence(query(p)).values.any()


def test_what_rehearsals_do_not_see_is_found_when_retraced(tmp_path):
    """A term that enters the loss after the first step of a segment, on a tape of every state."""
    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    recorder = dross.Recorder(
        model, p.loss, optimizer, path=tmp_path / "mine", keep=dross.tape.EveryStep()
    )
    for t, ids in enumerate(p.batches):
        with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            (losses.mean() + (0.1 * model[0].weight.pow(2).sum() if t else 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    with pytest.raises(InputChanged, match="step 1 leads to a different theta"):
        recorder.run((p.X, p.Y)).influence(query(p))
