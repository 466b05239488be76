"""Record a run of Lightning's Trainer.

from dross.integrations.lightning import DrossCallback

dross_callback = DrossCallback("cross_entropy", path="runs/x")
trainer = lightning.Trainer(callbacks=[dross_callback], ...)
trainer.fit(module, train_loader)
scores = dross_callback.recorded_run().influence(dross_callback.loss_of(validation_loader))
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .._extras import install_command

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities import GradClipAlgorithmType
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
except ImportError as error:
    raise ImportError(
        f"dross.integrations.lightning needs lightning: {install_command('lightning')}."
    ) from error

from ..data.dataset import Collated
from ..errors import InvalidInput, NotSupported
from ..influence.query import Query, mean_loss
from ..influence.run import Run, load
from ..record.recorder import Recorder
from ..record.watch import LossHandle
from ..tape.retention import Keep
from ..tape.writer import rewind
from .drawn_ids import DrawnIds, replace_batch_sampler


class DrossCallback(Callback):
    """Records the training of a LightningModule.

    The loss of each instance must be known. Either `training_step` returns it together with the
    mean loss, {"loss": losses.mean(), "losses": losses}; then any weighting of the losses is
    recorded as it was, and a replay calls training_step. Or the loss is passed to the callback, and
    the loss that training_step returns is its mean over the batch; then a replay calls the module
    itself, module(x). Automatic and manual optimization, accumulate_grad_batches, gradient_clip_val
    and schedulers are recorded as they happen.

    Arguments:
        loss: as for `dross.train`; None if training_step returns losses.
        path: the folder that the run is recorded in.
        split: splits a batch into (x, y), if it is not such a pair.
        keep, overwrite, seed: as for `dross.train`.
    """

    def __init__(
        self,
        loss: Any = None,
        *,
        path: str | os.PathLike,
        split: Callable[[Any], tuple[Any, Any]] | None = None,
        keep: Keep | None = None,
        overwrite: bool = False,
        seed: int = 0,
    ):
        self.path = path
        self.loss = loss
        self.split = split
        self.keep = keep
        self.overwrite = overwrite
        self.seed = seed
        self.recorder: Recorder | None = None
        self._drawn: DrawnIds | None = None
        self._loader: Any = None
        self._module: Any = None
        self._patches = ExitStack()  # undoes what this callback changes in module and trainer
        self._open: tuple[ExitStack, LossHandle] | None = None

    # --- before training --------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Request the training loader, in order to observe which instances it draws."""
        if stage != "fit":
            return
        if trainer.world_size > 1:
            raise NotSupported(
                f"This trainer runs on {trainer.world_size} processes, but dross can record only "
                "one. Use Trainer(devices=1), or write the loop with dross.Recorder, which "
                "supports DistributedDataParallel."
            )
        source = trainer.fit_loop._data_source
        load = type(source).dataloader.__get__(source)

        def noted() -> Any:
            self._loader = load()
            self._drawn = replace_batch_sampler(self._loader)
            return self._loader

        self._patch(source, "dataloader", noted)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Called when the optimizer is ready and a checkpoint is loaded, before the first step."""
        if len(trainer.optimizers) != 1:
            raise NotSupported(
                f"The module has {len(trainer.optimizers)} optimizers, but dross supports only one."
            )
        if resumes := trainer.global_step > 0:
            rewind(self.path, trainer.global_step)
        self._module = pl_module
        self.recorder = Recorder(
            self._replayed(pl_module),
            self._loss,
            trainer.optimizers[0],
            path=self.path,
            keep=self.keep,
            data=self._collated(self._loader),
            seed=self.seed,
            overwrite=self.overwrite and not resumes,
            resume=resumes,
            expected_steps=_count_steps(trainer),
            scaler=getattr(trainer.precision_plugin, "scaler", None),  # with "16-mixed"
        )
        self._follow_module(trainer, pl_module)

    def _follow_module(self, trainer: Any, module: Any) -> None:
        """Wrap the module's training_step and the trainer's clip."""
        step = module.training_step
        backward = module.manual_backward
        clip = trainer.precision_plugin.clip_gradients

        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            return self._training_step(trainer, module, step, batch, *args, **kwargs)

        def manual_backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            if self._open is not None:
                self._open[1](loss, 1 / self._size)
            backward(loss, *args, **kwargs)

        def clip_gradients(
            optimizer: Any,
            clip_val: Any = 0.0,
            gradient_clip_algorithm: Any = GradClipAlgorithmType.NORM,
        ) -> None:
            kind = "value" if gradient_clip_algorithm == "value" else "max_norm"
            if clip_val > 0 and self.recorder is not None:
                with self.recorder.clipping(**{kind: float(clip_val)}):
                    clip(optimizer, clip_val, gradient_clip_algorithm)

        self._patch(module, "training_step", training_step)
        self._patch(module, "manual_backward", manual_backward)
        self._patch(trainer.precision_plugin, "clip_gradients", clip_gradients)

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        vars(owner)[name] = value
        self._patches.callback(vars(owner).pop, name, None)

    # --- a batch ----------------------------------------------------------------------------------

    def _training_step(
        self, trainer: Any, module: Any, step: Callable, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        assert self.recorder is not None and self._drawn is not None
        ids = self._drawn.take()
        x, y = self._split(batch)
        self._size = len(ids)
        stack = ExitStack()
        observed = self.recorder.observe(ids, x, y, epoch=trainer.current_epoch)
        followed = stack.enter_context(observed)
        with stack:
            self._open = (stack, followed)
            outputs = step(batch, *args, **kwargs)
            if not module.automatic_optimization:
                self._open = None
                return outputs
            self._watch(outputs, followed)
            self._open = (stack.pop_all(), followed)  # until backward() has run
        return outputs

    def _watch(self, outputs: Any, followed: LossHandle) -> None:
        if outputs is None:
            raise NotSupported(
                "training_step returned None, so Lightning skips the batch, which dross cannot "
                "record. Leave such instances out of the dataset."
            )
        losses = outputs.get("losses") if isinstance(outputs, dict) else None
        if losses is not None:
            followed(losses)
            return
        if self.loss is None:
            raise _no_losses()
        followed(outputs["loss"] if isinstance(outputs, dict) else outputs, 1 / self._size)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Called when the gradient of a batch is computed; it is held until the optimizer's step."""
        if self._open is not None and pl_module.automatic_optimization:
            stack, _ = self._open
            self._open = None
            stack.close()

    # --- after it ---------------------------------------------------------------------------------

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """End the current segment of the tape, so that it can be rewound to this checkpoint."""
        if self.recorder is not None and not self.recorder.pending:
            self.recorder.save()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save every step taken before the exception."""
        if self._open is not None:
            stack, _ = self._open
            self._open = None
            stack.__exit__(type(exception), exception, exception.__traceback__)
        self._patches.close()
        if self.recorder is not None:
            self.recorder.__exit__(type(exception), exception, exception.__traceback__)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the tape."""
        if self.recorder is not None:
            self.recorder.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the module and the trainer as they were."""
        self._patches.close()

    # --- the recorded run -------------------------------------------------------------------------

    def recorded_run(self, module: Any = None, loader: Any = None) -> Run:
        """The run that was recorded.

        Arguments:
            module, loader: in a new process, the module as it was built and the training loader.

        Raises:
            InvalidInput: if nothing was recorded here and they are not passed.
            DrossError: if there is no tape, or it belongs to another model or other data.
        """
        module = self._module if module is None else module
        loader = self._loader if loader is None else loader
        if module is None or loader is None:
            raise InvalidInput(
                "This callback has not recorded anything yet. Call trainer.fit first, or pass the "
                "module and the training loader: recorded_run(module, loader)."
            )
        return load(self.path, self._replayed(module), self._collated(loader), self._loss)

    def loss_of(self, loader: Any) -> Query:
        """The mean loss over the instances of a loader, as a scalar query."""
        return mean_loss(self._collated(loader))

    @property
    def _loss(self) -> Any:
        return _own_losses if self.loss is None else self.loss

    def _collated(self, loader: Any) -> Collated:
        return Collated(loader.dataset, loader.collate_fn, self._split)

    def _split(self, batch: Any) -> tuple[Any, Any]:
        if self.loss is None:  # training_step gets all of the batch
            return batch, torch.zeros(len(tree_leaves(batch)[0]))
        if self.split is not None:
            return self.split(batch)
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise InvalidInput(
                f"A batch must be a pair (x, y), but has the type {type(batch).__name__}. Specify "
                "how to split it: DrossCallback(..., split=lambda batch: (x, y))."
            )
        return batch[0], batch[1]

    def _replayed(self, module: Any) -> nn.Module:
        if self.loss is not None:
            return module
        return type(type(module).__name__, (TrainingStep,), {})(module)  # the tape has its name


def _count_steps(trainer: Any) -> int | None:
    count = trainer.estimated_stepping_batches
    return int(count) if count < float("inf") else None


def _no_losses() -> InvalidInput:
    return InvalidInput(
        "The loss of each instance is not known. Let training_step return it with the mean, "
        '{"loss": losses.mean(), "losses": losses} with reduction="none", or pass it to the '
        'callback: DrossCallback("cross_entropy", path=...).'
    )


def _own_losses(outputs: Any, y: Any) -> Tensor:
    """What training_step returned as the losses of the instances."""
    losses = outputs.get("losses") if isinstance(outputs, dict) else None
    if losses is None:
        raise _no_losses()
    return losses


class TrainingStep(nn.Module):
    """A LightningModule whose forward pass is its training_step.

    It shares the module's parameters, buffers and children, under the same names.
    """

    def __init__(self, module: Any):
        object.__setattr__(self, "_module", module)
        super().__init__()
        for kind in ("_parameters", "_buffers", "_modules"):
            self.__dict__[kind] = module.__dict__[kind]
        self.__dict__["_is_made"] = True

    @property
    def training(self) -> bool:
        """The module's own mode."""
        return self.__dict__["_module"].training

    @training.setter
    def training(self, mode: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if "_is_made" in self.__dict__:  # torch sets it while a module is made
            self.__dict__["_module"].training = mode

    def forward(self, batch: Any) -> Any:
        """training_step of the batch; nothing is logged."""
        module: Any = self.__dict__["_module"]
        step: Any = type(module).training_step
        takes_index = is_param_in_hook_signature(step, "batch_idx", min_args=2)
        arguments = (batch, 0) if takes_index else (batch,)
        quiet = dict.fromkeys(("log", "log_dict"), lambda *args, **kwargs: None)
        module.__dict__.update(quiet)
        try:
            return step(module, *arguments)
        finally:
            for name in quiet:
                del module.__dict__[name]
