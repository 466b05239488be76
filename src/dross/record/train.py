"""`dross.train`: train a model and record the run. For your own loop see recorder.py."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._checks import check_folder, check_function, check_whole
from .._progress import progress_bar
from ..data.augment import check_augment, check_repeatable
from ..data.batch import Augment, LazyBatch, MicroBatch
from ..data.dataset import Instances
from ..data.fingerprint import checksum
from ..data.strides import orders_of
from ..engine.binding import TorchBinding
from ..engine.device import HostCopy, find_device, side_stream
from ..engine.executor import Executor
from ..engine.inspect import device_and_dtype, inspect_run, unwrap_model
from ..engine.losses import check_labels
from ..engine.objective import Objective, Penalty
from ..engine.optim import Optimizer
from ..engine.precision import Precision, check_autocast
from ..engine.state import State
from ..engine.step import Clip, Step, clip_of, take_step
from ..engine.step_stacks import take_steps
from ..errors import DrossError, InvalidInput
from ..influence.run import Run
from ..replay.recording import Recording
from ..tape.format import describe
from ..tape.reader import Tape
from ..tape.retention import DefaultRetention, Keep, check_keep
from ..tape.writer import TapeWriter, check_resume, prepare_folder
from .plan import BatchPlan, LearningRate, plan_hyperparams
from .replayable import check_finite

_MAX_UNCHECKED_STEPS = 64
_MAX_UNCHECKED_BYTES = 256 << 20


def train(
    model: torch.nn.Module,
    data: Any,
    loss: Any,
    optimizer: torch.optim.Optimizer,
    *,
    path: str | os.PathLike,
    epochs: int | None = None,
    batch_size: int | None = None,
    batches: Sequence[Any] | None = None,
    lr: LearningRate | None = None,
    penalty: Penalty | None = None,
    augment: Augment | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    keep: Keep | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool = True,
    overwrite: bool = False,
    resume: bool | str | os.PathLike = False,
    autocast: torch.dtype | None = None,
) -> Run:
    """Train a model and record the run on a tape.

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = dross.train(model, (X, y), "cross_entropy", optimizer,
                          epochs=30, batch_size=32, path="runs/digits")
        scores = run.influence(dross.mean_loss((X_val, y_val)))

    Arguments:
        model: trained in place.
        data: a map-style dataset of (x, y) or of dicts with a column "label", or a pair of
            tensors X [N, ...], Y [N, ...]. An instance's id is its index.
        loss: loss(outputs, targets) -> one loss per instance [B], or "cross_entropy",
            "binary_cross_entropy", "squared_error".
        optimizer: of torch.optim.
        path: the folder that the run is recorded in.
        epochs, batch_size: how long to train, and on how many instances at a time.
        batches: a list with the ids of every step of the whole training; `epochs` then only divides
            this list into that many parts (1 by default), and batch_size is left out. Without
            batches, they are drawn from `seed`, in a new order each epoch.
        lr: the learning rate: a number, one per step [T] (or per step and parameter group [T, G]),
            a function of the step (from 0), or a torch scheduler, which is stepped once per
            training step. By default that of the optimizer.
        penalty: penalty(params) -> scalar, added to every instance's loss; removing an instance
            removes its penalty, too.
        augment: augment(x, generator) -> x, for random transforms. It draws all random numbers
            from the generator, which starts from the same seed when a step is replayed.
        clip_norm: the gradient is scaled down to this norm.
        clip_value: or its entries are clamped to this absolute value.
        keep: which states the tape keeps: EveryStep(), Checkpoints(every=k), LastEpochs(e),
            Budget(bytes). By default every step while all states take no more than 128 MB, and
            about sqrt(T) checkpoints otherwise.
        seed: of the order of instances and of everything random.
        device: where to train; by default where the model is.
        progress: show a bar.
        overwrite: replace an existing tape.
        resume: True continues what a crash or Ctrl-C left in `path`. Passing that folder is
            equivalent.
        autocast: torch.bfloat16 or torch.float16: the forward pass and the loss are computed inside
            `torch.autocast`, and so are queries of the run.

    Returns:
        The recorded run. The model and the optimizer are as if the loop had run on them.

    Raises:
        InvalidInput: for arguments that cannot be used, or if there is already a tape.
        NotSupported: for a model or an optimizer that cannot be retraced.
        Diverged: if the training diverges; the tape is complete up to that step.
        InputChanged: if the tape to be continued belongs to another run.
    """
    check_keep(keep)
    check_function(penalty, "penalty")
    check_augment(augment)
    clip = clip_of(clip_norm, clip_value)
    check_folder(path, "path")
    seed = check_whole(seed, "seed")
    model = _prepare_model(model, device)
    device, dtype = device_and_dtype(model)
    keep = DefaultRetention() if keep is None else keep
    instances = Instances(data, device, dtype, keep.memory)
    plan = BatchPlan.make(instances, epochs, batch_size, batches, seed)
    first = next(plan.from_step(0))[0]
    x, y = instances[first if len(first) else np.arange(1)]
    instances.orders = orders_of((x, y))
    if augment is not None:
        check_repeatable(augment, x, device)
        x = augment(x, torch.Generator(device).manual_seed(seed))
    precision = Precision(autocast=check_autocast(autocast, device, dtype))
    objective, pure = inspect_run(model, optimizer, loss, penalty, x, y, precision=precision)
    _check_all_labels(objective, instances, x)

    binding = TorchBinding(model, optimizer, objective.layout, pure)
    hyperparams = plan_hyperparams(binding, lr, plan.steps)
    earlier = prepare_folder(path, overwrite=overwrite, resume=check_resume(resume, path))
    manifest = describe(
        objective,
        pure,
        augment=augment,
        keep=keep,
        seed=seed,
        device=device,
        instances=instances,
        orders=instances.orders,
        planned=plan.steps,
        schedule=hashlib.sha256(hyperparams.tobytes() + repr(clip).encode()).hexdigest(),
        earlier=earlier,
    )
    if earlier is None:
        state = binding.read(hyperparams[0])
    else:
        state = Tape(path).end_state().map(lambda t: t.to(device))
    writer = TapeWriter(
        path, manifest, keep, state.nbytes, plan.steps, step_bytes=16 + 4 * len(first)
    )
    if earlier is None:
        writer.flush(state)
    executor = Executor(objective)
    loop = TrainingLoop(executor, pure, instances, plan, hyperparams, augment, clip, seed)
    binding.write(loop.run(writer, state, progress))
    return Run(Recording(Tape(path), executor, pure, instances, augment, seed), progress)


def _prepare_model(model: Any, device: str | torch.device | None) -> torch.nn.Module:
    """The bare module on its device, in train mode."""
    model = unwrap_model(model)
    otherwise = "Leave out `device` to train on the device of the model."
    here = device_and_dtype(model)[0] if device is None else find_device(device, otherwise)
    model.to(here)
    if not model.training:
        model.train()
    return model


def _check_all_labels(objective: Objective, instances: Instances, x: Any) -> None:
    """Find a bad label now, before it ends a long run in its last batch."""
    if instances.stored and objective.loss_name == "cross_entropy":
        theta, buffers = objective.layout.read(objective.model)
        with objective.evaluating(), torch.no_grad():
            outputs = objective.predict(theta, buffers, x)
        check_labels(outputs, instances.stored[1], objective.loss_name)


# --- the loop -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingLoop:
    """Algorithm 1: all that the steps of a run depend on."""

    executor: Executor
    optimizer: Optimizer
    instances: Instances
    plan: BatchPlan
    hyperparams: np.ndarray  # [T, G, H]: the optimizer's at every step
    augment: Augment | None
    clip: Clip | None
    seed: int

    def run(self, writer: TapeWriter, state: State, progress: bool) -> State:
        """Take the steps that are left. The tape keeps those that were taken, whatever happens."""
        writer.end_states = {writer.next_step: state}
        left = self.plan.steps - writer.next_step
        coming = self._steps_at_once(writer.next_step, _count_unchecked(state))
        waiting: list[_TakenSteps] = []  # not yet checked: a GPU computes the next ones
        complete = False
        with self.executor.training(), progress_bar("training", left, show=progress) as advance:
            try:
                for first, steps, batches in coming:
                    waiting.append(self.take(state, steps, batches, first))
                    state = waiting[-1].states[-1]
                    if len(waiting) > int(state.theta.is_cuda):
                        self._write(waiting.pop(0), writer, advance)
                for taken in waiting:
                    self._write(taken, writer, advance)
                complete = True
            except ValueError as error:  # such as BatchNorm's, for a batch of one instance
                if isinstance(error, DrossError):
                    raise
                raise InvalidInput(f"Step {writer.next_step} cannot be taken: {error}") from error
            except BaseException as error:
                if writer.next_step:
                    error.add_note(
                        f"dross: the run at {writer.folder} is kept; dross.train(..., resume=True) "
                        "continues from there."
                    )
                raise
            finally:
                if complete or writer.next_step:
                    writer.finish(complete=complete)
                else:
                    writer.discard()
        return state

    def _steps_at_once(
        self, first: int, at_once: int
    ) -> Iterator[tuple[int, list[Step], list[list[LazyBatch]]]]:
        """The steps from `first` on, `at_once` at a time, with the number of the first of them."""
        coming = self.plan.from_step(first)
        while block := list(islice(coming, _MAX_UNCHECKED_STEPS)):
            steps = []
            for t, (ids, epoch) in enumerate(block, start=first):
                micros = (MicroBatch(ids),) if len(ids) else ()
                steps.append(Step(micros, self.hyperparams[t], epoch, self.clip))
            batches = self.instances.lazy_batches(
                [step.micros for step in steps], first, self.seed, self.augment
            )
            for k in range(0, len(steps), at_once):
                yield first + k, steps[k : k + at_once], batches[k : k + at_once]
            first += len(steps)

    def take(
        self, state: State, steps: list[Step], batches: list[list[LazyBatch]], first: int
    ) -> "_TakenSteps":
        """Take these steps; what tells whether they are finite is on its way to the host."""
        states = [state]
        finite: list[Tensor] = []
        if self.clip is None:
            states += take_steps(self.executor, self.optimizer, state, steps, batches)
        else:
            for step, micros in zip(steps, batches):
                after, g, _ = take_step(self.executor, self.optimizer, states[-1], step, micros)
                states.append(after)
                finite.append(torch.isfinite(g).all())  # clipping can make it finite again
        seen = {"total": states[-1].theta.sum()}  # finite only if theta is
        if finite:
            seen["finite"] = torch.stack(finite)
        return _TakenSteps(first, steps, batches, states, HostCopy(seen))

    def _write(
        self, taken: "_TakenSteps", writer: TapeWriter, advance: Callable[[int], None]
    ) -> None:
        if not taken.is_finite:
            self._find_break(taken)
        with side_stream(taken.states[0].theta.device):
            pairs = zip(taken.states, taken.states[1:])
            for step, batches, (before, after) in zip(taken.steps, taken.batches, pairs):
                writer.make_room(step.epoch)
                opens = bool(batches) and writer.opens_segment()
                writer.add(step, before, after, checksum(batches[0]) if opens else 0)
                advance(1)

    def _find_break(self, taken: "_TakenSteps") -> None:
        """Raise Diverged for the step that is not finite, if there is one.

        Theta stays so after it, so the last step's theta shows that there is one.
        """
        each = zip(taken.steps, taken.batches, taken.states)
        for t, (step, batches, before) in enumerate(each, start=taken.first):
            after, g, losses = take_step(self.executor, self.optimizer, before, step, batches)
            check_finite(t, after.theta, g, losses, step.ids, kept=taken.first)


@dataclass(frozen=True)
class _TakenSteps:
    """Steps that have been taken."""

    first: int
    steps: list[Step]
    batches: list[list[LazyBatch]]
    states: list[State]  # before the first step, and after each
    seen: HostCopy

    @property
    def is_finite(self) -> bool:
        seen = self.seen.wait()
        total = bool(torch.isfinite(seen["total"]))
        return total and ("finite" not in seen or bool(seen["finite"].all()))


def _count_unchecked(state: State) -> int:
    """How many steps to take before checking that they were finite: a GPU waits for the check."""
    if not state.theta.is_cuda:
        return 1
    return max(1, min(_MAX_UNCHECKED_STEPS, _MAX_UNCHECKED_BYTES // max(state.nbytes, 1)))
