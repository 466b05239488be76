"""Runs of Lightning's Trainer, recorded: the scores are those of the training as it was."""

import logging
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="lightning is not installed")

import lightning

import dross
from dross.errors import InvalidInput, NotSupported
from dross.integrations.lightning import DrossCallback
from tests.oracles import slope
from tests.record.user_loops import check_bitwise, close

random = np.random.default_rng(0)
X, Y = torch.tensor(random.normal(size=(11, 4))), torch.tensor(random.integers(3, size=11))
X_VAL, Y_VAL = torch.tensor(random.normal(size=(6, 4))), torch.tensor(random.integers(3, size=6))


class Classifier(lightning.LightningModule):
    """Weights of the instances come with the batch, where it has any."""

    def __init__(self, returns="losses", clip=None):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))
        self.double()
        self.returns, self.automatic_optimization, self.clip = returns, returns != "manual", clip

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y, *weights = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        if weights:
            losses = losses * weights[0]
        loss = losses.mean()
        self.log("train_loss", loss)
        if self.returns == "manual":
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            if self.clip is not None:
                self.clip_gradients(optimizer, self.clip, "norm")
            optimizer.step()
        return {"loss": loss, "losses": losses} if self.returns == "losses" else loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05, eps=1e-4)
        if self.returns == "manual":
            return optimizer
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def fit(module, tensors, callbacks=(), **options):
    """Train; returns the mean loss on the validation set."""
    checkpoint = options.pop("ckpt_path", None)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(1)
    trainer = lightning.Trainer(
        **{
            "max_epochs": 2,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": list(callbacks),
            **options,
        }
    )
    loader = DataLoader(TensorDataset(*tensors), batch_size=3, shuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning on the number of workers
        trainer.fit(module, loader, ckpt_path=checkpoint)
    asked = X_VAL.to(next(module.parameters()).dtype)
    with torch.no_grad():
        return float(F.cross_entropy(module.eval()(asked), Y_VAL))


CASES = {
    "losses": ("losses", {}),
    "accumulated": ("losses", {"accumulate_grad_batches": 2}),
    "clipped": ("losses", {"gradient_clip_val": 0.2}),
    "clipped by value": ("loss", {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"}),
    "loss": ("loss", {"accumulate_grad_batches": 2}),
    "manual": ("manual", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_scores_against_finite_differences_through_fit(tmp_path, case):
    returns, options = CASES[case]
    clip = 0.2 if case == "manual" else None
    given = None if returns == "losses" else "cross_entropy"
    callback = DrossCallback(given, path=tmp_path / "tape")
    value = fit(Classifier(returns, clip), (X, Y), [callback], **options)
    run = callback.recorded_run()
    validation = DataLoader(TensorDataset(X_VAL, Y_VAL), batch_size=4)
    query = callback.loss_of(validation)
    np.testing.assert_allclose(run.evaluate(query), value, rtol=1e-12)
    scores = run.influence(query).values
    assert next(iter(run.parameters())) == "net.0.weight"
    for j in (2, 7):

        def loss_with(offset, j=j):
            weights = torch.ones(len(X), dtype=torch.float64)
            weights[j] += offset
            return fit(Classifier(returns, clip), (X, Y, weights), **options)

        np.testing.assert_allclose(
            -scores[j], slope(loss_with), atol=1e-8 * np.nanmax(np.abs(scores))
        )


def test_a_run_that_is_opened_again(tmp_path):
    callback = DrossCallback("cross_entropy", path=tmp_path / "tape")
    fit(Classifier("loss"), (X, Y), [callback])
    query = dross.mean_loss((X_VAL, Y_VAL))
    expected = callback.recorded_run().influence(query).values
    again = dross.load(
        tmp_path / "tape",
        Classifier("loss"),
        callback._collated(DataLoader(TensorDataset(X, Y))),
        "cross_entropy",
    )
    close(again.influence(query).values, expected)


def test_a_run_goes_on_from_a_checkpoint(tmp_path):
    callback = DrossCallback(path=tmp_path / "whole")
    fit(Classifier(), (X, Y), [callback], max_epochs=4)
    validation = DataLoader(TensorDataset(X_VAL, Y_VAL), batch_size=4)
    whole = callback.recorded_run()

    saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path / "kept", save_last=True)
    first = DrossCallback(path=tmp_path / "cut")
    options = {"enable_checkpointing": True}
    fit(Classifier(), (X, Y), [first, saving], max_epochs=2, **options)
    second = DrossCallback(path=tmp_path / "cut")
    last = str(tmp_path / "kept" / "last.ckpt")
    fit(Classifier(), (X, Y), [second, saving], max_epochs=4, ckpt_path=last, **options)
    run = second.recorded_run()
    assert run.steps == whole.steps == 16
    scores = run.influence(second.loss_of(validation))
    assert scores.by_epoch.shape == (4, 11) and np.isfinite(scores.values).all()


def test_a_run_continues_from_a_checkpoint_within_an_epoch(tmp_path):
    """Lightning then draws a new order for the rest of the epoch, and that is what is recorded."""
    saving = lightning.pytorch.callbacks.ModelCheckpoint(
        tmp_path / "kept", every_n_train_steps=6, save_top_k=-1, filename="{step}"
    )
    options = {"enable_checkpointing": True}
    keep = dross.tape.Checkpoints(every=100)
    first = DrossCallback(path=tmp_path / "tape", keep=keep)
    fit(Classifier(), (X, Y), [first, saving], max_epochs=2, **options)
    before = [first.recorded_run().recording.tape.step(t).ids.tolist() for t in range(8)]
    second = DrossCallback(path=tmp_path / "tape", keep=keep)
    middle = str(tmp_path / "kept" / "step=6.ckpt")
    fit(Classifier(), (X, Y), [second], max_epochs=3, ckpt_path=middle)
    run = second.recorded_run()
    after = [run.recording.tape.step(t).ids.tolist() for t in range(run.steps)]
    assert len(after) == 12 and after[:6] == before[:6] and after[6:8] != before[6:]
    # the end of every replay is compared with the tape
    validation = DataLoader(TensorDataset(X_VAL, Y_VAL), batch_size=4)
    assert np.isfinite(run.influence(second.loss_of(validation)).values).all()


class Unnamed(lightning.LightningModule):
    """The second argument of its training_step has a name of its own, as Lightning allows."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3).double()

    def training_step(self, batch, number):
        losses = F.cross_entropy(self.net(batch[0]), batch[1], reduction="none")
        return {"loss": losses.mean(), "losses": losses}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_training_step_with_other_names(tmp_path):
    callback = DrossCallback(path=tmp_path / "tape")
    trained = Unnamed()
    trained.forward = trained.net.forward
    fit(trained, (X, Y), [callback])
    assert callback.recorded_run().steps == 8


class TestRefusals:
    """Each with a sentence, at the first batch."""

    def test_losses_that_nobody_knows(self, tmp_path):
        with pytest.raises(InvalidInput, match="loss of each instance is not known"):
            fit(Classifier("loss"), (X, Y), [DrossCallback(path=tmp_path / "tape")])

    def test_a_loss_that_is_not_the_mean(self, tmp_path):
        class Summed(Classifier):
            def training_step(self, batch, batch_idx):
                return super().training_step(batch, batch_idx) * 3

        with pytest.raises(NotSupported, match="the loss of the loop is"):
            fit(Summed("loss"), (X, Y), [DrossCallback("cross_entropy", path=tmp_path / "tape")])
        assert not list((tmp_path / "tape").iterdir())
        fit(Classifier("loss"), (X, Y), [DrossCallback("cross_entropy", path=tmp_path / "tape")])

    def test_two_optimizers(self, tmp_path):
        class Two(Classifier):
            def configure_optimizers(self):
                return [torch.optim.SGD(self.parameters(), 0.1) for _ in range(2)]

        with pytest.raises(NotSupported, match="2 optimizers"):
            fit(Two("manual"), (X, Y), [DrossCallback("cross_entropy", path=tmp_path / "tape")])

    def test_a_batch_that_is_no_pair(self, tmp_path):
        callback = DrossCallback("cross_entropy", path=tmp_path / "tape")
        with pytest.raises(InvalidInput, match="split=lambda batch"):
            fit(Classifier("loss"), (X, Y, torch.ones(11)), [callback])

    def test_nothing_recorded(self, tmp_path):
        with pytest.raises(InvalidInput, match=r"Call trainer\.fit first"):
            DrossCallback(path=tmp_path / "tape").recorded_run()

    def test_a_training_step_that_skips(self, tmp_path):
        class Skips(Classifier):
            def training_step(self, batch, batch_idx):
                return None

        with pytest.raises(NotSupported, match="returned None"):
            fit(Skips("loss"), (X, Y), [DrossCallback("cross_entropy", path=tmp_path / "tape")])


class Still(Classifier):
    """Its weights do not move, so that every margin is that of the first model."""

    returned = ("loss", "losses", "logits", "labels")

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        losses = F.cross_entropy(logits, y, reduction="none")
        named = {"loss": losses.mean(), "losses": losses, "logits": logits, "labels": y}
        return {name: named[name] for name in self.returned}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.parametrize("loss", [None, "cross_entropy"])
def test_margins(tmp_path, loss):
    """Of a module that is called, and of a training_step that returns logits and labels."""
    module = Still()
    callback = DrossCallback(loss, path=tmp_path / "tape")
    fit(module, (X, Y), [callback])
    logits = module(X).detach().numpy()
    others = np.where(np.eye(3, dtype=bool)[Y], -np.inf, logits)
    expected = logits[range(11), Y] - others.max(1)
    np.testing.assert_allclose(callback.recorded_run().margins(), expected, rtol=1e-12)


def test_margins_of_losses_alone_are_refused(tmp_path):
    module = Still()
    module.returned = ("loss", "losses")
    callback = DrossCallback(path=tmp_path / "tape")
    fit(module, (X, Y), [callback])
    with pytest.raises(NotSupported, match='must return "logits" and "labels"'):
        callback.recorded_run().margins()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_channels_last(tmp_path, precision):
    """A replay gives the module the order in memory that training_step gave it."""
    torch.manual_seed(2)
    images = torch.randn(24, 3, 10, 10)
    labels = torch.randint(0, 3, (24,))

    class Images(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2)
            self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(72, 3))
            self.net.to(memory_format=torch.channels_last)

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            x, y = batch
            return F.cross_entropy(self(x.to(memory_format=torch.channels_last)), y)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    keep = dross.tape.Checkpoints(every=1000)
    callback = DrossCallback("cross_entropy", path=tmp_path / "tape", keep=keep)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning on the number of workers
        trainer.fit(Images(), DataLoader(TensorDataset(images, labels), 8, shuffle=True))
    check_bitwise(callback.recorded_run())
