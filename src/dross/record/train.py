"""`dross.train`: train a model and record the run. For a loop of your own see recorder.py."""

import hashlib
import os
from collections.abc import Sequence
from types import NoneType
from typing import Any

import numpy as np
import torch

from .._checks import check_folder, check_function, check_whole
from ..data.batch import Augment
from ..data.dataset import Instances
from ..engine.device import find_device
from ..engine.executor import Executor
from ..engine.inspect import device_and_dtype, inspect_run, unwrap_model
from ..engine.losses import check_labels
from ..engine.objective import Objective, Penalty
from ..engine.precision import Precision, check_autocast
from ..engine.step import clip_of
from ..errors import InvalidInput
from ..influence.run import Run
from ..replay.recording import Recording
from ..tape.format import check_same_run, describe
from ..tape.reader import Tape
from ..tape.retention import DefaultRetention, Keep
from ..tape.writer import TapeWriter, check_resume, prepare_folder
from .torch_binding import LiveModel
from .training_loop import TrainingLoop
from .training_plan import BatchPlan, LearningRate, plan_numbers


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
        data: a map-style data set of (x, y) or of dicts with a column "label", or a pair of
            tensors X [N, ...], Y [N, ...]. An instance's id is its index.
        loss: loss(outputs, targets) -> one loss per instance [B], or "cross_entropy",
            "binary_cross_entropy", "squared_error".
        optimizer: of torch.optim.
        path: the folder that the run is recorded in.
        epochs, batch_size: how long to train, and on how many instances at a time.
        batches: a list with the ids of every step. By default they are drawn from `seed`, in a new
            order each epoch.
        lr: one rate, one per step [T] (or per step and parameter group [T, G]), a function of the
            step (from 0), or a torch scheduler, which is stepped once per training step. By default
            the optimizer's own rate.
        penalty: penalty(params) -> scalar, added to every instance's loss; removing an instance
            removes its penalty, too.
        augment: augment(x, generator) -> x, replayed with the same random numbers.
        clip_norm: the gradient is scaled down to this norm.
        clip_value: or its numbers are clamped to this absolute value.
        keep: what the tape holds: EveryStep(), Checkpoints(every=k), LastEpochs(e), Budget(bytes).
            By default every step while all states take no more than 128 MB, and about sqrt(T)
            checkpoints otherwise.
        seed: of the order of instances and of everything random.
        device: where to train; by default where the model is.
        progress: show a bar.
        overwrite: replace an existing tape.
        resume: True continues what a crash or Ctrl-C left in `path`. Naming that folder means the
            same.
        autocast: torch.bfloat16 or torch.float16: the forward pass and the loss are computed inside
            `torch.autocast`, and so are the losses and outputs that are asked of the model.

    Returns:
        The recorded run. The model and the optimizer are as if the loop had run on them.

    Raises:
        InvalidInput: for arguments that cannot be used.
        NotSupported: for a model or an optimizer that cannot be retraced.
        Diverged: where the training diverges; the tape is whole up to that step.
        InvalidInput: where there is a tape already.
        InputChanged: where the tape to be continued is of another run.
    """
    _check_options(keep, penalty, augment)
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
    x = x if augment is None else _augment_first(augment, x, seed, device)
    precision = Precision(autocast=check_autocast(autocast, device, dtype))
    objective, pure = inspect_run(model, optimizer, loss, penalty, x, y, precision=precision)
    _check_all_labels(objective, instances, x)

    live = LiveModel(model, optimizer, objective.layout, pure)
    numbers = plan_numbers(live, lr, plan.steps)
    earlier = prepare_folder(path, overwrite=overwrite, resume=check_resume(resume, path))
    manifest = describe(
        objective,
        pure,
        augment=augment,
        keep=keep,
        seed=seed,
        device=device,
        instances=instances,
        planned=plan.steps,
        schedule=hashlib.sha256(numbers.tobytes() + repr(clip).encode()).hexdigest(),
        earlier=earlier,
    )
    state = live.read(numbers[0])
    if earlier is not None:
        check_same_run(earlier, manifest)
        manifest = earlier
        state = Tape(path).end_state().map(lambda t: t.to(device))
    writer = TapeWriter(
        path, manifest, keep, state.nbytes, plan.steps, step_bytes=16 + 4 * len(first)
    )
    if earlier is None:
        writer.flush(state)
    executor = Executor(objective)
    loop = TrainingLoop(executor, pure, instances, plan, numbers, augment, clip, seed)
    live.write(loop.run(writer, state, progress))
    return Run(Recording(Tape(path), executor, pure, instances, augment, seed), progress)


def _augment_first(augment: Augment, x: Any, seed: int, device: torch.device) -> Any:
    try:
        return augment(x, torch.Generator(device).manual_seed(seed))
    except TypeError as error:
        raise InvalidInput(
            f"augment(x, generator) failed on the first batch: {error}. It takes the inputs and a "
            "torch.Generator, and returns the inputs."
        ) from error


def _prepare_model(model: Any, device: str | torch.device | None) -> torch.nn.Module:
    """The bare module on its device, in train mode."""
    model = unwrap_model(model)
    otherwise = "Leave it out to train where the model is."
    here = device_and_dtype(model)[0] if device is None else find_device(device, otherwise)
    model.to(here)
    if not model.training:
        model.train()
    return model


def _check_options(keep: Any, penalty: Any, augment: Any) -> None:
    if not isinstance(keep, (Keep, NoneType)):
        raise InvalidInput(
            "keep must be EveryStep(), Checkpoints(), LastEpochs() or Budget(bytes)."
        )
    check_function(penalty, "penalty")
    check_function(augment, "augment")


def _check_all_labels(objective: Objective, instances: Instances, x: Any) -> None:
    """Find a bad label now, before it ends a long run in its last batch."""
    if instances.stored and objective.loss_name == "cross_entropy":
        theta, buffers = objective.layout.read(objective.model)
        with objective.evaluating(), torch.no_grad():
            outputs = objective.predict(theta, buffers, x)
        check_labels(outputs, instances.stored[1], objective.loss_name)
