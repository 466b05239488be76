"""What a Recorder refuses: steps that could not be replayed, and arguments that cannot be used."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross.errors import Diverged, InputChanged, InvalidInput, NotSupported
from dross.record.recorder import _save_all
from tests.record.user_loops import query, recorded_loop, take_step
from tests.zoo import problem


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("leave", ["error", "close", "exit"])
def test_a_recorder_that_recorded_nothing_leaves_nothing(tmp_path, leave, is_held):
    """The corrected script can use the same folder."""
    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    ids = p.batches[0]
    made = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine")
    try:
        with made if leave == "error" else nullcontext():
            with made.step(ids, p.X[ids], p.Y[ids]) as losses:
                (losses.mean() + 0.1 * model[0].weight.pow(2).sum()).backward()
                if is_held:
                    made._tape.writer._poll(wait_for_it=True)  # the manifest is on the disk
                    assert (tmp_path / "mine" / "manifest.json").exists()
                if leave == "close":
                    raise NotSupported
                optimizer.step()
    except NotSupported:
        pass
    if leave == "close":
        with pytest.raises(InvalidInput, match="Nothing was recorded"):
            made.run((p.X, p.Y))
    if leave == "exit":
        _save_all()
    assert not list((tmp_path / "mine").iterdir())
    recorder, _ = recorded_loop(p, tmp_path / "mine")
    assert recorder.steps == len(p.batches)


def test_a_refused_recorder_leaves_a_later_run_in_its_folder_alone(tmp_path):
    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    ids = p.batches[0]
    refused = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine")
    with pytest.raises(NotSupported), refused.step(ids, p.X[ids], p.Y[ids]) as losses:
        (losses.mean() + 0.1 * model[0].weight.pow(2).sum()).backward()
        optimizer.step()
    refused._tape.writer._poll(wait_for_it=True)  # its manifest is on the disk
    later, _ = recorded_loop(replace(p, batches=p.batches[:1]), tmp_path / "mine")
    later.save()
    kept = sorted(tmp_path.rglob("*"))
    refused._save_what_there_is()  # as at the end of the script
    assert sorted(tmp_path.rglob("*")) == kept
    assert later.run((p.X, p.Y)).steps == 1


class TestRefusals:
    """What a tape cannot represent is refused at the moment it happens."""

    @pytest.fixture
    def loop(self, tmp_path):
        self.p = problem("mlp", "sgd")
        self.model, self.optimizer = self.p.start()
        self.recorder = dross.Recorder(
            self.model, self.p.loss, self.optimizer, path=tmp_path / "mine"
        )
        ids = self.p.batches[0]
        self.batch = (ids, self.p.X[ids], self.p.Y[ids])
        yield
        self.recorder._save_what_there_is()

    def good_step(self):
        take_step(self.recorder, self.optimizer, *self.batch)

    def test_clipping_behind_its_back(self, loop):
        message = r"changed between backward\(\) and optimizer.step\(\) at step 0.*clip_grad_norm_"
        with pytest.raises(NotSupported, match=message):
            with self.recorder.step(*self.batch) as losses:
                losses.mean().backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()

    def test_a_term_that_is_not_in_the_losses(self, loop):
        with pytest.raises(NotSupported, match=r"Step 0 cannot be reproduced.*penalty="):
            with self.recorder.step(*self.batch) as losses:
                (losses.mean() + 0.1 * self.model[0].weight.pow(2).sum()).backward()
                self.optimizer.step()

    def test_a_skipped_step(self, loop):
        self.good_step()
        with self.recorder.step(*self.batch) as losses:
            losses.mean().backward()  # a GradScaler that finds an infinity does not step
            self.optimizer.zero_grad()
        with (
            pytest.raises(NotSupported, match="cleared without a step"),
            self.recorder.step(*self.batch) as losses,
        ):
            losses.mean().backward()

    def test_gradients_that_are_cleared_before_the_first_step(self, loop):
        for message in (None, r"for step 0 were cleared .*Call optimizer.step\(\) before"):
            with pytest.raises(NotSupported, match=message) if message else nullcontext():
                with self.recorder.step(*self.batch) as losses:
                    losses.mean().backward()
                self.optimizer.zero_grad()

    def test_a_loop_without_optimizer_steps(self, loop):
        with self.recorder.step(*self.batch) as losses:
            losses.mean().backward()
        with pytest.raises(InvalidInput, match=r"the optimizer has taken no step.*\.step\(\)"):
            self.recorder.run((self.p.X, self.p.Y))

    @pytest.mark.parametrize("steps", [0, 1])
    @pytest.mark.parametrize("stepping", [True, False])
    def test_a_loss_that_is_not_watched(self, loop, steps, stepping):
        for _ in range(steps):
            self.good_step()
        ids, x, y = self.batch
        message = rf"of step {steps} is not known.*as watch: loss = ...; watch\(loss\);"
        with pytest.raises(NotSupported, match=message), self.recorder.observe(ids, x, y):
            self.p.loss(self.model(x), y).mean().backward()
            if stepping:
                self.optimizer.step()

    def test_a_batch_that_failed_after_its_loss_was_watched(self, loop):
        """Its loss is not compared with that of the next batch."""
        ids, x, y = self.batch
        with self.recorder.step(ids, x, y) as losses:
            (losses.mean() / 2).backward()
        with pytest.raises(ZeroDivisionError), self.recorder.step(ids, -x, y):
            raise ZeroDivisionError
        with self.recorder.step(ids, 2 * x, y) as losses:
            (losses.mean() / 2).backward()
            self.optimizer.step()
        assert self.recorder.steps == 1

    def test_gradients_left_over(self, loop):
        with self.recorder.step(*self.batch) as losses:
            losses.mean().backward()
            self.optimizer.step()
        with (
            pytest.raises(NotSupported, match="left over"),
            self.recorder.step(*self.batch) as losses,
        ):
            losses.mean().backward()

    def test_a_step_outside_and_twice(self, loop):
        self.good_step()
        with pytest.raises(NotSupported, match="outside"):
            self.optimizer.step()
        with pytest.raises(NotSupported, match="twice"), self.recorder.step(*self.batch) as losses:
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
            with pytest.raises(NotSupported, match="other than the optimizer"):
                self.good_step()
        else:
            self.model.load_state_dict(best)
            with pytest.raises(NotSupported, match="other than the optimizer"):
                self.recorder.close()

    def test_momentum_that_comes_late(self, loop):
        self.good_step()
        self.optimizer.param_groups[0]["momentum"] = 0.9
        with pytest.raises(NotSupported, match="momentum was introduced late"):
            self.good_step()

    def test_an_exception_after_backward_in_a_later_micro_batch(self, loop):
        with self.recorder.step(*self.batch) as losses:
            (losses.mean() / 2).backward()
        with pytest.raises(ZeroDivisionError), self.recorder.step(*self.batch) as losses:
            (losses.mean() / 2).backward()
            raise ZeroDivisionError
        with (
            pytest.raises(NotSupported, match="left over"),
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
            model, p.loss, optimizer, path=tmp_path / "other", keep=dross.tape.LastEpochs(1)
        )
        ids = p.batches[0]
        with (
            pytest.raises(InvalidInput, match="needs the epochs"),
            recorder.step(ids, p.X[ids], p.Y[ids]),
        ):
            pass

    def test_ids_beyond_the_data_set(self, loop):
        ids, x, y = self.batch
        take_step(self.recorder, self.optimizer, ids + 1000, x, y)
        message = r"used instance 10\d\d, but the dataset has only 15"
        with pytest.raises(InputChanged, match=message):
            self.recorder.run((self.p.X, self.p.Y)).influence(query(self.p))

    @pytest.mark.parametrize("last", [True, False])
    def test_ids_that_begin_at_1(self, loop, tmp_path, last):
        data = (self.p.X, self.p.Y)
        ids = np.array([3, 14]) if last else np.array([0, 5])
        batch = (ids + 1, self.p.X[ids], self.p.Y[ids])
        take_step(self.recorder, self.optimizer, *batch)
        message = r"index in the dataset, from 0: subtract 1"
        with pytest.raises(InputChanged, match=message):
            self.recorder.run(data).influence(query(self.p))
        options = {"path": tmp_path / "other", "data": data}
        recorder = dross.Recorder(self.model, self.p.loss, self.optimizer, **options)
        with pytest.raises(InvalidInput, match=message):
            recorder.step(*batch).__enter__()

    def test_epochs_count_up(self, loop):
        ids, x, y = self.batch
        take_step(self.recorder, self.optimizer, ids, x, y, epoch=3)
        with (
            pytest.raises(InvalidInput, match="Epoch 0 came after epoch 3"),
            self.recorder.step(ids, x, y, epoch=0),
        ):
            pass
        with (
            pytest.raises(InvalidInput, match=r"epoch must be at most .*a 32-bit number"),
            self.recorder.step(ids, x, y, epoch=10**40),
        ):
            pass

    def test_a_closure(self, loop):
        with (
            pytest.raises(NotSupported, match="no recorded batch is waiting"),
        ):
            self.optimizer.step(lambda: self.p.loss(self.model(self.batch[1]), self.batch[2]))

    def test_parameters_changed_while_a_batch_waits(self, loop):
        with self.recorder.step(*self.batch) as losses:
            losses.mean().backward()
        with torch.no_grad():
            self.model[0].weight.clamp_(-0.01, 0.01)
        with pytest.raises(NotSupported, match="changed before step 0 by something"):
            self.optimizer.step()

    def test_a_loss_that_is_not_the_mean(self, loop):
        ids, x, y = self.batch
        with pytest.raises(
            NotSupported, match=r"the loss of the loop is .* watch\(loss, share=1\) for a sum"
        ):
            with self.recorder.observe(ids, x, y) as watch:
                loss = self.p.loss(self.model(x), y).sum()
                watch(loss)
                loss.backward()
            self.optimizer.step()

    def test_a_loss_of_another_shape(self, loop):
        ids, x, y = self.batch
        with pytest.raises(InvalidInput, match=r"shape \(2,\) for a batch of 4"):
            with self.recorder.observe(ids, x, y) as watch:
                watch(self.p.loss(self.model(x), y)[:2])

    def test_no_backward(self, loop):
        with (
            pytest.raises(NotSupported, match=r"backward\(\) was not called"),
            self.recorder.step(*self.batch),
        ):
            pass

    def test_a_nan(self, loop):
        ids, x, y = self.batch
        with (
            pytest.raises(Diverged, match="Step 0"),
            self.recorder.step(ids, x * float("nan"), y) as losses,
        ):
            losses.mean().backward()
            self.optimizer.step()

    def test_bad_batches(self, loop):
        ids, x, y = self.batch
        for wrong, kind in ((ids + 0.5, "floating-point numbers"), (["a"] * len(ids), "text")):
            with (
                pytest.raises(InvalidInput, match=f"must be integers, not {kind}"),
                self.recorder.step(wrong, x, y),
            ):
                pass
        with (
            pytest.raises(InvalidInput, match="Got 3 ids for"),
            self.recorder.step(ids[:3], x, y),
        ):
            pass

    def test_eval_mode(self, loop):
        self.model.eval()
        with pytest.raises(InvalidInput, match="eval mode"), self.recorder.step(*self.batch):
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
            model, p.loss, optimizer, path=tmp_path / "other", data=(p.X, p.Y)
        )
        ids = p.batches[0]
        with (
            pytest.raises(NotSupported, match="pass them as augment"),
            recorder.step(ids, p.X[ids] + 1, p.Y[ids]),
        ):
            pass
        with (
            pytest.raises(InvalidInput, match=r"must be between 0 and 14"),
            recorder.step(ids + 100, p.X[ids], p.Y[ids]),
        ):
            pass

    @pytest.mark.parametrize("name", ["LBFGS", "SparseAdam"])
    def test_unsupported_optimizers(self, tmp_path, name):
        p = problem("mlp", "sgd")
        model, _ = p.start()
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
        recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine")
        ids = p.batches[0]
        with (
            pytest.raises(NotSupported, match=f"{name} cannot be retraced: .*Use .*Adam"),
            recorder.step(ids, p.X[ids], p.Y[ids]),
        ):
            pass

    def test_a_torchscript_module_inside(self, tmp_path):
        p = problem("mlp", "sgd")
        model, optimizer = p.start()
        model[0] = torch.jit.script(model[0])
        with pytest.raises(NotSupported, match="'0' is a TorchScript module"):
            dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine")
