"""Record a training loop that belongs to the user.

The recorder computes the forward pass, hands out one loss per instance and watches what the loop
does with them (watch.py). At the start of every segment the step is rehearsed from the
recorded state; a step that cannot be reproduced is refused at once.
"""

import atexit
import os
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_map

from .._checks import check_folder, check_function, check_number, check_whole
from ..data.augment import check_augment, check_repeatable
from ..data.batch import AUGMENT_STREAM, MODEL_STREAM, Augment, Batch, MicroBatch
from ..data.dataset import Instances, check_ids, move_to
from ..data.seeds import make_generator, mix_seeds
from ..data.strides import orders_of, put_all_in_order
from ..distributed import ddp, fsdp
from ..distributed.shards import refuse_with_shards
from ..engine.inspect import (
    check_optimizer,
    count_instances,
    device_and_dtype,
    unwrap_model,
    unwrap_optimizer,
)
from ..engine.losses import find_loss
from ..engine.objective import Penalty
from ..engine.precision import check_autocast
from ..engine.step import ClipNorm, ClipValue
from ..errors import DrossWarning, InvalidInput, NotSupported
from ..influence.run import Run, load
from ..tape.reader import Tape
from ..tape.retention import DefaultRetention, Keep, check_keep
from ..tape.writer import check_resume, prepare_folder
from .average import AverageWatch
from .replayable import check_batch
from .user_loop import LoopTape, UserLoop
from .watch import LossHandle, StepWatch

_STEPS_CHECKED = 2  # whose batches are compared with the data at the beginning
_STEPS_BETWEEN_CHECKS = 32

# by the optimizer they listen to
_RECORDERS: "weakref.WeakValueDictionary[int, Recorder]" = weakref.WeakValueDictionary()


@atexit.register
def _save_all() -> None:
    """Ctrl-C in a loop still leaves every step that was taken."""
    for recorder in list(_RECORDERS.values()):
        recorder._save_what_there_is()


class Recorder:
    """Record your own training loop on a tape.

        recorder = dross.Recorder(model, "cross_entropy", optimizer, path="runs/mine")
        for epoch in range(20):
            for ids, x, y in loader:                     # DataLoader(dross.data.indexed(train_set), ...)
                with recorder.step(ids, x, y, epoch=epoch) as losses:
                    losses.mean().backward(); optimizer.step(); optimizer.zero_grad()
        run = recorder.run(train_set)

    A `with recorder.step(...)` in which the optimizer takes no step is a micro-batch: gradient
    accumulation is recorded as it happens. The optimizer may step later, too, once the `with` has
    ended; and a closure that is passed to optimizer.step may contain the `with`.

    Any weighting that is linear in the losses is recorded, too. One that is not linear, such as
    (losses ** 2).mean(), is recorded with the weights that it had; the scores do not see that the
    weights would change. Put such a function into `loss`.

    Clip with `recorder.clip_grad_norm_(1.0)` or `recorder.clip_grad_value_(0.1)`.

    Mixed precision: pass `autocast=torch.bfloat16` to the recorder, or enter torch.autocast around
    recorder.step, or let the model's own forward do it. It is recorded as it was and must be the
    same at every step; queries of the run are computed in it, too.
    With float16, pass the loop's GradScaler as `scaler=` and use it as usual:

        with recorder.step(ids, x, y) as losses:
            scaler.scale(losses.mean()).backward()
            scaler.unscale_(optimizer); recorder.clip_grad_norm_(1.0)           # if you clip
            scaler.step(optimizer); scaler.update(); optimizer.zero_grad()

    The scale of each step is recorded. A step that the scaler skips did nothing and is left out;
    `skipped` counts them, `steps` does not.

    Under DistributedDataParallel each rank makes its own recorder, with the wrapped model, and
    steps it with its own batches. They write one tape: the first rank where states are small, and
    of large ones (64 MB) each rank its shard. The folder must be one that every rank sees.

    The same holds under fully_shard (FSDP2), where each rank writes its own shards (docs/scale.md).

    A recorder is a context manager, too: at the end of `with dross.Recorder(...) as recorder:` the
    tape is closed, and after an error it keeps every step that was taken.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        optimizer: torch.optim.Optimizer,
        *,
        path: str | os.PathLike,
        penalty: Penalty | None = None,
        augment: Augment | None = None,
        keep: Keep | None = None,
        data: Any = None,
        seed: int = 0,
        overwrite: bool = False,
        resume: bool | str | os.PathLike = False,
        autocast: torch.dtype | None = None,
        scaler: torch.amp.GradScaler | None = None,
        expected_steps: int | None = None,
    ):
        """Listen to an optimizer from now on.

        Arguments:
            model: the model that the loop trains.
            loss: as for `dross.train`.
            optimizer: its torch.optim optimizer.
            path: the folder that the run is recorded in.
            penalty, augment, keep, seed, overwrite: as for `dross.train`.
            data: the training set. If given, the first batches and one now and then are compared
                with it, so that random transforms are noticed. A
                `dross.data.Collated` is a dataset whose batches are put together by a collator.
            resume: True continues what an interrupted loop left in `path`: model and optimizer are
                restored to where it stopped, and `steps` is the number of the loop's steps to skip.
                A warning reports the step from which the run continues. Passing that folder is
                equivalent.
            autocast: torch.bfloat16 or torch.float16: the recorder computes the forward pass and
                the losses inside `torch.autocast`. See "Mixed precision" above.
            scaler: the GradScaler by which the loop scales its losses.
            expected_steps: about how many steps the loop will take. If this is passed and `keep` is
                not, a small run keeps every state.

        Raises:
            InvalidInput: for arguments that cannot be used, or if there is already a tape.
            NotSupported: for a model that cannot be retraced.
            InputChanged: if the tape to be continued belongs to another model, loss or optimizer.
        """
        optimizer = unwrap_optimizer(optimizer)
        check_optimizer(optimizer)
        check_keep(keep)
        check_folder(path, "path")
        check_function(penalty, "penalty")
        check_augment(augment)
        seed = check_whole(seed, "seed")
        for former in list(_RECORDERS.values()):
            # it must not listen to the same optimizer, and a refused one is not in the way
            if former._loop.optimizer is optimizer or former._is_empty_at(path):
                former._save_what_there_is()
        called = model
        model = unwrap_model(ddp.bare_module(called))
        device, dtype = device_and_dtype(model)
        keep = DefaultRetention() if keep is None else keep
        loss_name, loss_function = find_loss(loss)
        self._sharded = fsdp.is_sharded(model)
        if self._sharded:
            refuse_with_shards(penalty=penalty, scaler=scaler)
        self._loop = UserLoop(
            model=model,
            called=called,
            optimizer=optimizer,
            loss_name=loss_name,
            loss=loss_function,
            penalty=penalty,
            augment=augment,
            keep=keep,
            seed=seed,
            device=device,
            dtype=dtype,
            instances=None if data is None else Instances(data, device, dtype, keep.memory),
            ranks=fsdp.ranks_of(model) if self._sharded else ddp.ranks_of(called),
            autocast=check_autocast(autocast, device, dtype),
            expected_steps=expected_steps,
        )
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            raise InvalidInput(
                f"scaler must be a torch.amp.GradScaler, not {type(scaler).__name__}."
            )
        wants_resume = check_resume(resume, path)
        earlier = self._loop.ranks.on_first(
            lambda: prepare_folder(path, overwrite=overwrite, resume=wants_resume)
        )
        self._tape = LoopTape(self._loop, path, earlier)
        self._watch = StepWatch(self._loop, self._tape)
        self._listeners = ExitStack()
        self._closed = False
        self._tape.restore()
        # last: a recorder that could not be made listens to nothing, and has nothing to save
        self._listen(scaler)
        _RECORDERS[id(optimizer)] = self
        if wants_resume and self._loop.ranks.rank == 0:
            left = (
                f"The run in {path} continues at step {self.steps}: the earlier steps are on the "
                "tape."
            )
            none = f"There is no recorded step in {path} to continue: the run starts at step 0."
            warnings.warn(left if self.steps else none, DrossWarning, stacklevel=2)

    @property
    def instances(self) -> Instances | None:
        """The training set, if it was passed to the recorder."""
        return self._loop.instances

    def _listen(self, scaler: torch.amp.GradScaler | None) -> None:
        """Get notified of gradients, and of every step of the optimizer, until this is closed.

        The hooks keep the recorder alive for as long as the optimizer lives.
        """
        optimizer = self._loop.optimizer
        handles = (
            optimizer.register_step_pre_hook(
                lambda _, args, kwargs: self._watch.before_step(args, kwargs)
            ),
            optimizer.register_step_post_hook(lambda *_: self._watch.after_step()),
            *self._watch.gradients.handles,
        )
        for handle in handles:
            self._listeners.callback(handle.remove)
        if scaler is not None and scaler.is_enabled():
            self._watch.listen_to(scaler, self._listeners)

    @property
    def steps(self) -> int:
        """Number of recorded steps; after a resume, the number of steps for the loop to skip."""
        return self._tape.steps

    @property
    def pending(self) -> int:
        """Number of micro-batches accumulated since the last optimizer step."""
        return self._watch.pending

    @property
    def skipped(self) -> int:
        """Number of steps that a GradScaler has skipped since the recorder was created."""
        return self._watch.skipped

    @contextmanager
    def step(self, ids: Any, x: Any, y: Any, *, epoch: int | None = None) -> Iterator[Tensor]:
        """Yield the loss of each instance of the batch [B], ready for backward().

        Arguments:
            ids: the instances' ids [B].
            x: the inputs, as the dataset has them.
            y: the labels.
            epoch: the number of the epoch, which must not decrease; needed by keep=LastEpochs.

        Raises:
            InvalidInput: for ids, inputs or epochs that cannot be used.
            NotSupported: for a model or an optimizer that cannot be retraced, or a step that cannot
                be reproduced.
            Diverged: if the training diverges; the tape is complete up to that step.
        """
        batch, ids = self._enter(ids, x, y, epoch)
        with self._watch.micro_batch(ids, batch) as losses:
            yield losses

    @contextmanager
    def observe(
        self, ids: Any, x: Any, y: Any, *, epoch: int | None = None
    ) -> Iterator[LossHandle]:
        """Record a loop that computes its own loss, as trainers do.

            with recorder.observe(ids, x, y) as watch:
                loss = F.cross_entropy(model(x), y)
                watch(loss)                        # the mean over the batch
                loss.backward()

        `watch(loss, share=1/len(ids))` takes the loss before backward(): a scalar, which is `share`
        times the sum of the losses of the instances, or the losses [B] themselves. This is checked
        at the first step of every segment. Random numbers that are drawn inside the `with` are
        drawn again on replay, by the model: draw none before it.

        Arguments:
            ids, x, y, epoch: as for `step`.

        Raises:
            DrossError: as for `step`.
        """
        if self._loop.augment is not None:
            raise InvalidInput(
                "augment= was passed to the recorder, but a loop that uses recorder.observe calls "
                "the model itself, with inputs that are not augmented. Use recorder.step instead: "
                "with recorder.step(ids, x, y) as losses: losses.mean().backward(); ..."
            )
        batch, ids = self._enter(ids, x, y, epoch)
        with self._watch.observe(ids, batch) as watch:
            yield watch

    def _enter(self, ids: Any, x: Any, y: Any, epoch: int | None) -> tuple[Batch, np.ndarray]:
        if self._closed:
            raise InvalidInput("This recorder is closed.")
        if self._watch.inside:
            raise InvalidInput("recorder.step was entered twice: finish one batch before the next.")
        if not torch.is_grad_enabled():
            raise InvalidInput(
                "Gradient computation is disabled here. Do not run the training step under "
                "torch.no_grad() or torch.inference_mode()."
            )
        loop = self._loop
        if not loop.model.training:
            raise InvalidInput(
                "The model is in eval mode: call model.train() before recording a step."
            )
        if not self._tape.is_open:
            device_and_dtype(loop.model)  # it may have been frozen since the recorder was made
        self._watch.set_epoch(epoch)
        instances = loop.instances
        most = len(instances) if instances else np.iinfo(np.int32).max
        ids = check_ids(ids, most, "Instance ids")
        x, y = (tree_map(lambda t: move_to(t, loop.device, loop.dtype), part) for part in (x, y))
        if not len(ids):
            raise InvalidInput("The batch is empty: it has no ids.")
        if len(ids) != count_instances(y):
            raise InvalidInput(
                f"Got {len(ids)} ids for {count_instances(y)} labels: pass the id of every "
                "instance in the batch."
            )
        if instances is not None:
            # data that are not in memory take long to read
            now_and_then = bool(instances.stored) and self.steps % _STEPS_BETWEEN_CHECKS == 0
            if not self._tape.is_open or self.steps < _STEPS_CHECKED or now_and_then:
                check_batch(instances, ids, x, y, self.steps)
        if self._tape.orders is None:
            self._tape.orders = orders_of((x, y))
        x, y = put_all_in_order((x, y), self._tape.orders)
        step, place = self._watch.position
        if loop.augment is not None:
            if not self._tape.is_open:
                check_repeatable(loop.augment, x, loop.device)
            x = loop.augment(x, make_generator(loop.device, loop.seed, step, place, AUGMENT_STREAM))
        c = self._watch.weights_on_device(MicroBatch(ids))
        return Batch(x, y, c, seed=mix_seeds(loop.seed, step, place, MODEL_STREAM)), ids

    def save(self) -> None:
        """Write all steps so far to disk, and begin a new segment with the next step.

        A trainer calls it when it saves a checkpoint: the tape can be rewound to such a place.
        """
        if not self._tape.is_open or self._closed:
            return
        if self._watch.pending:
            raise InvalidInput(
                "Save a tape between two steps, not while micro-batches are waiting for an "
                "optimizer step."
            )
        self._watch.check_untouched()
        self._tape.save()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """torch.nn.utils.clip_grad_norm_ over the trainable parameters, recorded.

        Call it between backward() and optimizer.step().

        Arguments:
            max_norm: the largest norm that the gradient may have.

        Returns:
            The norm of the gradient before clipping.

        Raises:
            NotSupported: if this step has been clipped already.
        """
        max_norm = check_number(max_norm, "max_norm")
        with self.clipping(max_norm=max_norm) as parameters:
            return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def clip_grad_value_(self, limit: float) -> None:
        """torch.nn.utils.clip_grad_value_ over the trainable parameters, recorded.

        Call it between backward() and optimizer.step().

        Arguments:
            limit: the largest absolute value that an entry of the gradient may have.

        Raises:
            NotSupported: if this step has been clipped already.
        """
        limit = check_number(limit, "limit")
        with self.clipping(value=limit) as parameters:
            torch.nn.utils.clip_grad_value_(parameters, limit)

    @contextmanager
    def clipping(
        self, *, max_norm: float | None = None, value: float | None = None
    ) -> Iterator[list[Tensor]]:
        """Record gradient clipping that other code performs inside, such as a trainer.

            with recorder.clipping(max_norm=1.0):
                accelerator.clip_grad_norm_(model.parameters(), 1.0)

        Arguments:
            max_norm: the largest norm that the gradient may have; infinity clips nothing.
            value: or the largest absolute value that an entry of it may have.

        Yields:
            The trainable parameters.

        Raises:
            NotSupported: if this step has been clipped already.
        """
        if (max_norm is None) == (value is None):
            raise InvalidInput("Pass either max_norm or value to clipping.")
        if max_norm is not None:
            limit = check_number(max_norm, "max_norm")
            clip = None if limit == float("inf") else ClipNorm(limit)
        else:
            clip = ClipValue(check_number(value, "value"))
        yield self._watch.declare_clip(clip)
        self._watch.gradients.accept()

    def watch_average(self, averaged: AveragedModel) -> None:
        """Record averaged weights, for run.influence(query, weights="average").

            averaged = torch.optim.swa_utils.AveragedModel(model)
            recorder.watch_average(averaged)          # then train, and call averaged.update_parameters

        Arguments:
            averaged: any torch.optim.swa_utils.AveragedModel of the recorded model, with equal or
                exponential weights. Call this before the average is first updated. After a resume,
                the average is restored from the tape.

        Raises:
            InvalidInput: if it is not an AveragedModel.
            NotSupported: if it has already been updated, and these updates are not on the tape.
        """
        if self._sharded:
            refuse_with_shards(average=True)
        earlier = None if self._tape.earlier is None else Tape(self._tape.folder).average()
        watch = AverageWatch(averaged, earlier)
        if watch.count and earlier is None:
            raise NotSupported(
                f"The averaged model was updated {watch.count} times before it was watched, and "
                "these updates are not on the tape. Call recorder.watch_average before training, "
                "or start a new average."
            )
        if self._tape.earlier is not None and self.steps and earlier is None:
            warnings.warn(
                f"The tape contains no average of the first {self.steps} steps (a killed run "
                f"leaves none), so this average begins at step {self.steps}.",
                DrossWarning,
                stacklevel=2,
            )
        self._watch.average = watch

    def close(self) -> None:
        """Write the open segment and mark the tape complete.

        Raises:
            InvalidInput: if nothing was recorded.
            NotSupported: if the parameters were changed since the last step.
        """
        if self._closed:
            return
        if self._watch.pending and self.steps:
            warnings.warn(
                f"{self._watch.pending} micro-batches were computed after step {self.steps - 1}, "
                "but no optimizer step followed. They did not change the parameters and are left "
                "out of the recording.",
                DrossWarning,
                stacklevel=2,
            )
        self._watch.check_untouched()
        self._watch.poll_average()
        self._finish(complete=True)
        self._loop.ranks.from_first(None)  # the tape is there before anyone opens it

    def run(self, data: Any = None) -> Run:
        """Close the tape and open it as a run.

        Arguments:
            data: the training set, if it was not passed to the recorder.

        Returns:
            The recorded run.

        Raises:
            InvalidInput: if nothing was recorded, or the dataset is not known.
            InputChanged: if it is not the dataset that was recorded.
        """
        if self._sharded:
            fsdp.refuse_to_open()
        self.close()
        loop = self._loop
        if data is None and loop.instances is not None:
            data = loop.instances.source
        if data is None:
            raise InvalidInput("Pass the training set: recorder.run(data).")
        return load(
            self._tape.folder,
            loop.model,
            data,
            loop.loss_argument,
            penalty=loop.penalty,
            augment=loop.augment,
        )

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is None:
            self.close()
        else:
            self._save_what_there_is()

    def _save_what_there_is(self) -> None:
        """After an exception or at exit.

        If that was inside the optimizer's step, the open segment has no known end and is lost.
        """
        if not self._closed:
            self._finish(complete=False)

    def _is_empty_at(self, path: str | os.PathLike) -> bool:
        """Whether this records into that folder, and has not recorded a step."""
        return not self.steps and Path(self._tape.folder).resolve() == Path(path).resolve()

    def _finish(self, complete: bool) -> None:
        self._closed = True
        self._listeners.close()
        whole = not self._watch.stepping and (complete or self._watch.is_untouched)
        buffers = self._watch.buffers_before_pending
        average = self._watch.average
        if average is not None and not average.is_current:
            average = None  # its updates since the last step are not known
        self._tape.finish(
            whole=whole,
            complete=complete,
            buffers=buffers,
            before=self._watch.state_before_segment,
            average=average,
        )
