"""Loops that dross does not own."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dross
from dross.errors import BadInput, NotFinite, NotReplayable, NotSupported, TapeExists, TapeMismatch
from dross.tape.reader import Tape
from oracles import derivative, literal_run
from zoo import MODELS, OPTIMIZERS, problem


def recorded_loop(p, folder, **options):
    """The problem's run as a user would write it, through a Recorder."""
    model, optimizer = p.start()
    model.train()
    recorder = dross.Recorder(
        model, optimizer, p.loss, folder, penalty=p.penalty, seed=p.seed, **options
    )
    for t, ids in enumerate(p.batches):
        if p.rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = p.rate(t)
        with recorder.step(ids, p.X[ids], p.Y[ids], epoch=t * p.epochs // len(p.batches)) as losses:
            losses.mean().backward()
            if p.clip_norm is not None:
                recorder.clip_grad_norm_(p.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
    return recorder, model


def close(found, expected, relative=1e-9):
    np.testing.assert_allclose(
        found, expected, rtol=relative, atol=relative * np.abs(expected).max()
    )


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


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
    run = recorded_loop(p, tmp_path / "mine", keep=dross.Checkpoints(every=3))[0].run((p.X, p.Y))
    close(run.influence(query(p)).values, record(p).influence(query(p)).values)


@pytest.mark.parametrize(
    "keep", [dross.EveryStep(), dross.Checkpoints(), dross.LastEpochs(2), dross.Budget(14_000)]
)
def test_every_storage_policy(record, tmp_path, keep):
    p = problem("batchnorm", "nesterov", epochs=40)
    run = recorded_loop(p, tmp_path / "mine", keep=keep)[0].run((p.X, p.Y))
    expected = record(p).influence(query(p))
    close(
        run.influence(query(p)).values,
        expected.last_epochs(2).values if isinstance(keep, dross.LastEpochs) else expected.values,
    )
    if isinstance(keep, dross.Budget):
        assert run.recording.tape.nbytes <= keep.bytes
        assert len(run.recording.tape.entries) < len(p.batches) / 16  # thinned out on the way


def test_clipping_schedule_and_penalty(tmp_path):
    p = problem(
        "mlp",
        "momentum",
        rate=lambda t: 0.1 / (t + 1),
        clip_norm=0.5,
        penalty=lambda params: 0.01 * sum((v**2).sum() for v in params.values()),
    )
    scores = recorded_loop(p, tmp_path / "mine")[0].run((p.X, p.Y)).influence(query(p)).values
    expected = np.array([derivative(p, j) for j in p.used])
    np.testing.assert_allclose(-scores[p.used], expected, atol=1e-8 * np.abs(scores).max())


def test_gradient_accumulation_and_instance_weights(tmp_path):
    """Three micro-batches of unequal size per step, BatchNorm in between, and a weighted loss."""
    p = problem("batchnorm", "adam")
    instance_weight = torch.linspace(0.5, 2, len(p.X), dtype=torch.float64)

    def loop(weights, recorder=None):
        model, optimizer = p.start()
        model.train()
        if recorder is not None:
            recorder = dross.Recorder(model, optimizer, p.loss, tmp_path / "mine")
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
    seed, _ = query(p).seed(run.recording.objective, run.recording.state_at(run.steps))
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
        np.testing.assert_allclose(-scores[j], slope, atol=1e-8 * np.abs(scores).max())
    removed = torch.ones(len(p.X), dtype=torch.float64)
    removed[5] = 0
    expected = loop(removed) - loop(torch.ones(len(p.X), dtype=torch.float64))
    np.testing.assert_allclose(run.leave_one_out(query(p), [5]), [expected], rtol=1e-9)


def test_a_loader_with_workers_and_a_scheduler_that_moves_the_betas(tmp_path):
    p = problem("mlp", "adam")
    model, optimizer = p.start()
    train_set = TensorDataset(p.X, p.Y)
    loader = DataLoader(
        dross.indexed(train_set),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        generator=torch.Generator().manual_seed(3),
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=12)
    with dross.Recorder(
        model, optimizer, "cross_entropy", tmp_path / "mine", train_set=train_set
    ) as recorder:
        for epoch in range(3):
            for ids, x, y in loader:
                with recorder.step(ids, x, y, epoch=epoch) as losses:
                    losses.mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                scheduler.step()
    run = recorder.run()
    numbers = [step.numbers[0] for step in run.recording.tape.read(0).steps]
    assert len({row[run.recording.optimizer.columns.index("betas.0")] for row in numbers}) > 1
    assert run.steps == 12
    scores = run.influence(query(p))
    assert scores.by_epoch.shape == (3, len(p.X))
    assert run.verify(scores, query(p)).tau > 0.5


def test_a_compiled_model_is_unwrapped(tmp_path, record):
    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    compiled = torch.compile(model, backend="eager")
    recorder = dross.Recorder(compiled, optimizer, p.loss, tmp_path / "mine")
    for ids in p.batches:
        with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    close(recorder.run((p.X, p.Y)).influence(query(p)).values, record(p).influence(query(p)).values)


def test_a_crash_in_the_middle_continues(tmp_path):
    p = problem("batchnorm", "adam", epochs=3)
    _, finished = recorded_loop(p, tmp_path / "whole")
    model, optimizer = p.start()
    model.train()
    with (
        pytest.raises(ZeroDivisionError),
        dross.Recorder(model, optimizer, p.loss, tmp_path / "mine") as recorder,
    ):
        for t, ids in enumerate(p.batches):
            with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
                if t == 7:
                    1 / 0  # noqa: B018
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    assert Tape(tmp_path / "mine").steps == 7 and not Tape(tmp_path / "mine").complete
    with pytest.warns(dross.DrossWarning, match="7 steps"):
        part = dross.Run.open(tmp_path / "mine", model, (p.X, p.Y), p.loss, progress=False)
    assert part.influence(
        query(p)
    ).values.any()  # the forward pass that had moved BatchNorm's statistics is undone

    model, optimizer = p.start()
    model.train()
    recorder = dross.Recorder(model, optimizer, p.loss, tmp_path / "mine", resume=True)
    assert recorder.steps == 7
    for ids in p.batches[recorder.steps :]:
        with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = recorder.run((p.X, p.Y))
    assert run.complete and run.steps == len(p.batches)
    for one, other in zip(model.state_dict().values(), finished.state_dict().values()):
        assert torch.equal(one, other)
    assert run.influence(query(p)).values.any()
    with pytest.raises(TapeMismatch, match="seed was 0 and is 9"):
        model, optimizer = p.start()
        other = dross.Recorder(model, optimizer, p.loss, tmp_path / "mine", resume=True, seed=9)
        with other.step(ids, p.X[ids], p.Y[ids]):
            pass
    with pytest.raises(TapeMismatch, match="Continue it with the same"):
        model, _ = p.start()
        dross.Recorder(
            model, torch.optim.SGD(model.parameters(), lr=1), p.loss, tmp_path / "mine", resume=True
        )


def test_only_the_head_is_in_the_optimizer(tmp_path):
    """The body has gradients that nobody clears; they are none of the run's business."""
    p = problem("mlp", "sgd")
    p.groups, p.clip_norm = (lambda model: model[2].parameters()), 0.5
    run = recorded_loop(p, tmp_path / "mine")[0].run((p.X, p.Y))
    assert list(run.parameters()) == ["2.weight", "2.bias"]
    assert run.influence(query(p)).values.any()


def test_an_abandoned_recorder_does_no_harm(tmp_path):
    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    ids = p.batches[0]

    def steps(recorder, optimizer, count):
        for _ in range(count):
            with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    first = dross.Recorder(model, optimizer, p.loss, tmp_path / "mine")
    steps(first, optimizer, 2)
    second = dross.Recorder(
        model, optimizer, p.loss, tmp_path / "mine", overwrite=True
    )  # on the same optimizer
    steps(second, optimizer, 5)
    other, other_optimizer = p.start()
    third = dross.Recorder(
        other, other_optimizer, p.loss, tmp_path / "mine", overwrite=True
    )  # on another, in the same folder
    steps(third, other_optimizer, 4)
    third.close()
    with pytest.raises(TapeExists, match="Another run"):
        second._save_what_there_is()  # what happens at exit
    assert Tape(tmp_path / "mine").steps == 4 and Tape(tmp_path / "mine").complete


def test_what_rehearsals_do_not_see_is_found_when_retraced(tmp_path):
    """A term that enters the loss only after the first step of a segment, on a tape that keeps every state."""
    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    recorder = dross.Recorder(model, optimizer, p.loss, tmp_path / "mine", keep=dross.EveryStep())
    for t, ids in enumerate(p.batches):
        with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            (losses.mean() + (0.1 * model[0].weight.pow(2).sum() if t else 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
    with pytest.raises(TapeMismatch, match="Step 1 replayed to a different theta"):
        recorder.run((p.X, p.Y)).influence(query(p))


class TestRefusals:
    """What a tape cannot represent is refused by name at the moment it happens."""

    @pytest.fixture
    def loop(self, tmp_path):
        self.p = problem("mlp", "sgd")
        self.model, self.optimizer = self.p.start()
        self.recorder = dross.Recorder(self.model, self.optimizer, self.p.loss, tmp_path / "mine")
        ids = self.p.batches[0]
        self.batch = (ids, self.p.X[ids], self.p.Y[ids])
        yield
        self.recorder._save_what_there_is()

    def good_step(self):
        with self.recorder.step(*self.batch) as losses:
            losses.mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def test_clipping_behind_its_back(self, loop):
        with pytest.raises(
            NotReplayable,
            match=r"changed between backward\(\) and optimizer.step\(\) at step 0.*clip_grad_norm_",
        ):
            with self.recorder.step(*self.batch) as losses:
                losses.mean().backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()

    def test_a_term_that_is_not_in_the_losses(self, loop):
        with pytest.raises(NotReplayable, match=r"Step 0 cannot be reproduced.*penalty="):
            with self.recorder.step(*self.batch) as losses:
                (losses.mean() + 0.1 * self.model[0].weight.pow(2).sum()).backward()
                self.optimizer.step()

    def test_a_skipped_step(self, loop):
        self.good_step()
        with self.recorder.step(*self.batch) as losses:
            losses.mean().backward()  # a GradScaler that finds an infinity does not step
            self.optimizer.zero_grad()
        with (
            pytest.raises(NotReplayable, match="cleared without a step"),
            self.recorder.step(*self.batch) as losses,
        ):
            losses.mean().backward()

    def test_gradients_left_over(self, loop):
        with self.recorder.step(*self.batch) as losses:
            losses.mean().backward()
            self.optimizer.step()
        with (
            pytest.raises(NotReplayable, match="left over"),
            self.recorder.step(*self.batch) as losses,
        ):
            losses.mean().backward()

    def test_a_step_outside_and_twice(self, loop):
        self.good_step()
        with pytest.raises(NotReplayable, match="outside"):
            self.optimizer.step()
        with pytest.raises(NotReplayable, match="twice"), self.recorder.step(*self.batch) as losses:
            losses.mean().backward()
            self.optimizer.step()
            self.optimizer.step()

    @pytest.mark.parametrize("touch", ["clamp", "load"])
    def test_parameters_changed_by_hand(self, loop, touch):
        best = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.good_step()
        if touch == "clamp":
            with torch.no_grad():
                self.model[0].weight.clamp_(-0.01, 0.01)
            with pytest.raises(NotReplayable, match="other than the optimizer"):
                self.good_step()
        else:
            self.model.load_state_dict(best)
            with pytest.raises(NotReplayable, match="other than the optimizer"):
                self.recorder.close()

    def test_momentum_that_comes_late(self, loop):
        self.good_step()
        self.optimizer.param_groups[0]["momentum"] = 0.9
        with pytest.raises(NotReplayable, match="momentum came in late"):
            self.good_step()

    def test_an_exception_after_backward_in_a_later_micro_batch(self, loop):
        with self.recorder.step(*self.batch) as losses:
            (losses.mean() / 2).backward()
        with pytest.raises(ZeroDivisionError), self.recorder.step(*self.batch) as losses:
            (losses.mean() / 2).backward()
            1 / 0  # noqa: B018
        with (
            pytest.raises(NotReplayable, match="left over"),
            self.recorder.step(*self.batch) as losses,
        ):
            losses.mean().backward()
        self.optimizer.zero_grad()
        self.good_step()

    def test_two_clips_in_one_step(self, loop):
        with pytest.raises(NotSupported, match="twice"), self.recorder.step(*self.batch) as losses:
            losses.mean().backward()
            self.recorder.clip_grad_norm_(0.5)
            self.recorder.clip_grad_value_(0.1)
        self.optimizer.zero_grad()
        self.good_step()  # the clip of the batch that failed is forgotten

    def test_last_epochs_without_epochs(self, tmp_path):
        p = problem("mlp", "sgd")
        model, optimizer = p.start()
        recorder = dross.Recorder(
            model, optimizer, p.loss, tmp_path / "other", keep=dross.LastEpochs(1)
        )
        ids = p.batches[0]
        with (
            pytest.raises(BadInput, match="has to know the epochs"),
            recorder.step(ids, p.X[ids], p.Y[ids]),
        ):
            pass

    def test_ids_beyond_the_data_set(self, loop):
        ids, x, y = self.batch
        with self.recorder.step(ids + 1000, x, y) as losses:
            losses.mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        with pytest.raises(
            TapeMismatch, match=r"used instance 10\d\d, but the data set has only 15"
        ):
            self.recorder.run((self.p.X, self.p.Y)).influence(query(self.p))

    def test_epochs_count_up(self, loop):
        ids, x, y = self.batch
        with self.recorder.step(ids, x, y, epoch=3) as losses:
            losses.mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        with (
            pytest.raises(BadInput, match="Epoch 0 came after epoch 3"),
            self.recorder.step(ids, x, y, epoch=0),
        ):
            pass

    def test_a_closure(self, loop):
        with (
            pytest.raises(NotSupported, match="closure"),
            self.recorder.step(*self.batch) as losses,
        ):
            losses.mean().backward()
            self.optimizer.step(lambda: losses.mean())

    def test_no_backward(self, loop):
        with (
            pytest.raises(NotReplayable, match=r"backward\(\) was not called"),
            self.recorder.step(*self.batch),
        ):
            pass

    def test_autocast(self, loop):
        with (
            torch.autocast("cpu"),
            pytest.raises(NotSupported, match="Autocast"),
            self.recorder.step(*self.batch),
        ):
            pass

    def test_a_nan(self, loop):
        ids, x, y = self.batch
        with (
            pytest.raises(NotFinite, match="Step 0"),
            self.recorder.step(ids, x * float("nan"), y) as losses,
        ):
            losses.mean().backward()
            self.optimizer.step()

    def test_bad_batches(self, loop):
        ids, x, y = self.batch
        with pytest.raises(BadInput, match="whole numbers"), self.recorder.step(ids + 0.5, x, y):
            pass
        with pytest.raises(BadInput, match="3 ids came with"), self.recorder.step(ids[:3], x, y):
            pass

    def test_eval_mode(self, loop):
        self.model.eval()
        with pytest.raises(BadInput, match="eval mode"), self.recorder.step(*self.batch):
            pass

    def test_closing_with_pending_gradients(self, loop):
        self.good_step()
        with self.recorder.step(*self.batch) as losses:
            losses.mean().backward()
        with pytest.warns(dross.DrossWarning, match="no optimizer step followed"):
            run = self.recorder.run((self.p.X, self.p.Y))
        assert run.steps == 1 and run.complete and run.influence(query(self.p)).values.any()

    def test_inputs_that_are_not_the_data_sets(self, tmp_path):
        p = problem("mlp", "sgd")
        model, optimizer = p.start()
        recorder = dross.Recorder(
            model, optimizer, p.loss, tmp_path / "other", train_set=(p.X, p.Y)
        )
        ids = p.batches[0]
        with (
            pytest.raises(NotReplayable, match="augment="),
            recorder.step(ids, p.X[ids] + 1, p.Y[ids]),
        ):
            pass
        with (
            pytest.raises(BadInput, match=r"must lie in 0\.\.14"),
            recorder.step(ids + 100, p.X[ids], p.Y[ids]),
        ):
            pass

    @pytest.mark.parametrize("name", ["LBFGS", "SparseAdam", "Adafactor"])
    def test_unsupported_optimizers(self, tmp_path, name):
        p = problem("mlp", "sgd")
        model, _ = p.start()
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
        recorder = dross.Recorder(model, optimizer, p.loss, tmp_path / "mine")
        ids = p.batches[0]
        with (
            pytest.raises(NotSupported, match=f"{name} is not supported yet.*AdamW"),
            recorder.step(ids, p.X[ids], p.Y[ids]),
        ):
            pass

    def test_compiled_inside(self, tmp_path):
        p = problem("mlp", "sgd")
        model, optimizer = p.start()
        model[0] = torch.compile(model[0], backend="eager")
        with pytest.raises(NotSupported, match="'0' is compiled"):
            dross.Recorder(model, optimizer, p.loss, tmp_path / "mine")
