"""Our own training loop: Algorithm 1. For a loop that is yours, see record.py."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import NoneType
from typing import Any

import numpy as np
import torch

from ..autodiff.precision import check as check_arithmetic
from ..data.batch import Augment
from ..data.dataset import Instances, check_ids
from ..data.seeds import mixed
from ..errors import BadInput, DrossError, NotFinite, NotSupported, first_line
from ..execution.streams import HostCopy, side_stream
from ..influence.run import Run
from ..replay.recording import Recording, checksum
from ..replay.take_steps import take_step, take_steps
from ..step.clipping import Clip, ClipNorm, ClipValue
from ..step.inspect_model import device_and_dtype, discover, moving_groups, unwrapped
from ..step.layout import State
from ..step.loss import check_labels, resolve
from ..step.objective import Objective, Penalty
from ..step.optimizers import Optimizer, current_numbers, read_slots, write_slots
from ..step.step import Micro, Step
from ..support.progress import progress_bar
from ..tape.manifest import check_same_run, describe
from ..tape.reader import Tape
from ..tape.retention import DefaultRetention, Keep
from ..tape.writer import TapeWriter, prepare_folder

_MOST_UNWATCHED = 64
_UNWATCHED_BYTES = 256 << 20
Eta = (
    float
    | Sequence[float]
    | np.ndarray
    | Callable[[int], float]
    | torch.optim.lr_scheduler.LRScheduler
)


def train(
    model: torch.nn.Module,
    train_set: Any,
    loss: Any,
    optimizer: torch.optim.Optimizer,
    *,
    tape: str | os.PathLike,
    epochs: int | None = None,
    batch_size: int | None = None,
    batches: Sequence[Any] | None = None,
    eta: Eta | None = None,
    penalty: Penalty | None = None,
    augment: Augment | None = None,
    clip: Clip | None = None,
    keep: Keep | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool = True,
    overwrite: bool = False,
    resume: bool = False,
    arithmetic: str = "strict",
) -> Run:
    """Train a model and record the run on a tape.

    train_set   a map-style data set of (x, y), or a pair of tensors (X, Y); an instance's id is its index
    loss        loss(outputs, targets) -> one loss per instance, or "cross_entropy", "binary_cross_entropy", "squared_error"
    batches     the ids of every step; otherwise drawn anew each epoch from `seed`, `epochs` and `batch_size`
    eta         one rate, one per step, a function of the step (from 0), or a torch scheduler, which is stepped once per
                training step; by default the optimizer's own rate
    penalty     penalty(params) -> scalar, added to every instance's loss; it leaves with the instance
    augment     augment(x, generator) -> x, replayed with the same random numbers
    keep        what the tape holds: EveryStep(), Checkpoints(every=k), LastEpochs(e), Budget(bytes); by default every step while all states
                take no more than 128 MB, and about sqrt(T) checkpoints otherwise
    resume      go on with a tape that a crash or Ctrl-C left behind; overwrite: replace it
    arithmetic  "strict"; quicker and less exact: "tf32" (NVIDIA GPUs) or "bf16". The run is retraced as it was recorded

    The model and the optimizer end up as if the loop had run on them.
    """
    if not isinstance(keep, (Keep, NoneType)) or not isinstance(
        clip, (ClipNorm, ClipValue, NoneType)
    ):
        raise BadInput(
            "keep is one of EveryStep(), Checkpoints(), LastEpochs(), Budget(bytes); clip is ClipNorm(x) or ClipValue(x)."
        )
    model = unwrapped(model)
    device = _available(device) if device is not None else device_and_dtype(model)[0]
    model.to(device)
    device, dtype = device_and_dtype(model)
    if not model.training:
        model.train()
    keep = DefaultRetention() if keep is None else keep
    instances = Instances(train_set, device, dtype, keep.memory)
    plan = _Plan.of(instances, epochs, batch_size, batches, seed)
    first = next(plan.from_step(0))[0]
    x, y = instances[first if len(first) else np.arange(1)]
    x = x if augment is None else augment(x, torch.Generator(device).manual_seed(seed))
    objective, pure = discover(model, optimizer, loss, penalty, x, y)
    objective.arithmetic = check_arithmetic(arithmetic, device, dtype)
    objective.graphs.usual = len(first)
    loss_name, _ = resolve(loss)
    _check_all_labels(objective, instances, x, loss_name)
    rows = _rates(
        optimizer, pure, moving_groups(objective.layout, model, optimizer), eta, plan.steps
    )

    parameters = dict(model.named_parameters())
    theta, buffers = objective.layout.read(model)
    slots, clock = read_slots(pure, optimizer, objective.layout, parameters, theta, rows[0])
    state = State(theta, slots, buffers, clock)
    schedule = hashlib.sha256(rows.tobytes() + repr(clip).encode()).hexdigest()
    manifest = describe(
        objective,
        pure,
        loss_name,
        augment,
        keep,
        seed,
        plan.steps,
        device,
        instances,
        False,
        schedule,
    )
    earlier = prepare_folder(tape, overwrite=overwrite, resume=resume)
    if earlier is not None:
        check_same_run(earlier, manifest)
        state = Tape(tape).end_state().map(lambda t: t.to(device))
        manifest = earlier
    writer = TapeWriter(
        tape, manifest, keep, state.nbytes, plan.steps, step_bytes=16 + 4 * len(first)
    )
    if earlier is None:
        writer.flush(state)
    state = _fold(
        objective, pure, instances, plan, rows, writer, state, augment, clip, seed, progress
    )
    objective.layout.write(state, model)
    write_slots(pure, optimizer, objective.layout, parameters, state.slots, state.clock)
    return Run(Recording(Tape(tape), objective, pure, instances, augment, seed), progress)


def _fold(
    objective, pure, instances, plan, rows, writer, state, augment, clip, seed, progress
) -> State:
    """Take the steps that are still to be taken; whatever ends them early, the tape keeps what was done."""
    complete, writer.ends = False, {writer.next: state}
    t, coming = writer.next, plan.from_step(writer.next)
    waiting: list[_Row] = []  # taken and not yet looked at
    with (
        objective.training(),
        progress_bar("training", plan.steps - writer.next, show=progress) as advance,
    ):
        try:
            while block := list(islice(coming, _MOST_UNWATCHED)):
                steps = [
                    Step((Micro(ids),) if len(ids) else (), rows[k], epoch, clip)
                    for k, (ids, epoch) in enumerate(block, start=t)
                ]
                feeds = instances.feed(steps, t, seed, augment)
                at_once = _steps_unwatched(state)
                for k in range(0, len(steps), at_once):
                    part = slice(k, k + at_once)
                    waiting.append(
                        _Row.taken(objective, pure, state, steps[part], feeds[part], t + k)
                    )
                    state = waiting[-1].states[-1]
                    if len(waiting) > int(
                        state.theta.is_cuda
                    ):  # a GPU computes the next row meanwhile
                        _write(waiting.pop(0), objective, pure, writer, advance)
                t += len(steps)
            for row in waiting:
                _write(row, objective, pure, writer, advance)
            complete = True
        except ValueError as error:
            if isinstance(error, DrossError):
                raise
            raise BadInput(
                f"Step {writer.next} cannot be taken: {error} (BatchNorm cannot train on a single instance.)"
            ) from error
        except BaseException as error:
            error.add_note(
                f"dross: the tape at {writer.folder} is kept; dross.train(..., resume=True) goes on from there."
            )
            raise
        finally:
            writer.finish(complete=complete)
    return state


def _steps_unwatched(state: State) -> int:
    """How many steps to take before looking whether they were finite: looking makes a GPU wait."""
    return (
        max(1, min(_MOST_UNWATCHED, _UNWATCHED_BYTES // max(state.nbytes, 1)))
        if state.theta.is_cuda
        else 1
    )


@dataclass(frozen=True)
class _Row:
    """Steps that have been taken."""

    first: int
    steps: list[Step]
    feeds: list
    states: list[State]  # the state before the first step, and after each
    seen: HostCopy  # the sum of the last theta, finite only if theta is; and whether each gradient was finite, where clipping can make it so again

    @staticmethod
    def taken(
        objective: Objective,
        pure: Optimizer,
        state: State,
        steps: list[Step],
        feeds: list,
        first: int,
    ) -> "_Row":
        states, clipped = [state], []
        if any(step.clip for step in steps):
            for step, batches in zip(steps, feeds):
                after, g, _ = take_step(objective, pure, states[-1], step, batches)
                states.append(after)
                clipped.append(torch.isfinite(g).all())
        else:
            states += take_steps(objective, pure, state, steps, feeds)
        seen = {
            "total": states[-1].theta.sum(),
            **({"finite": torch.stack(clipped)} if clipped else {}),
        }
        return _Row(first, steps, feeds, states, HostCopy(seen))

    def check(self, objective: Objective, pure: Optimizer) -> None:
        # a theta that is not finite stays so: looking at the last one is enough, and then at each to find out since when
        if all(
            bool(torch.isfinite(t).all() if t.is_floating_point() else t.all())
            for t in self.seen.wait().values()
        ):
            return
        for t, (step, batches, before) in enumerate(
            zip(self.steps, self.feeds, self.states), start=self.first
        ):
            after, g, losses = take_step(objective, pure, before, step, batches)
            check_finite(t, after, g, losses, step.ids, kept=self.first)


def _write(
    row: _Row,
    objective: Objective,
    pure: Optimizer,
    writer: TapeWriter,
    advance: Callable[[int], None],
) -> None:
    row.check(objective, pure)
    with side_stream(row.states[0].theta.device):
        for step, batches, before, after in zip(row.steps, row.feeds, row.states, row.states[1:]):
            if writer.is_full(step.epoch):
                writer.flush()
            writer.add(
                step,
                before,
                after,
                checksum(batches[0]) if batches and writer.opens_segment() else 0,
            )
            advance(1)


def check_finite(
    t: int, after: State, g: torch.Tensor, losses: list[torch.Tensor], ids: np.ndarray, kept: int
) -> None:
    """Stop at the step that breaks, and say which instances broke it."""
    if bool(torch.isfinite(g).all() & torch.isfinite(after.theta).all()):
        return
    bad = ids[~torch.isfinite(torch.cat(losses)).cpu().numpy()]
    if len(bad):
        what = f"the loss of instance{'s' * (len(bad) > 1)} {', '.join(map(str, bad[:5]))} is not finite"
    else:
        what = (
            "the gradient is not finite"
            if not bool(torch.isfinite(g).all())
            else "the update overflows"
        )
    raise NotFinite(
        f"Step {t}: {what}. Look at those inputs, lower the rate, or clip the gradient. The tape is whole up to step {kept}.",
        step=t,
    )


class _Plan:
    """Which ids each step uses, epoch by epoch, without holding all of them."""

    def __init__(
        self,
        per_epoch: Callable[[int], list[np.ndarray]],
        epochs: int,
        steps_of: Callable[[int], int],
    ):
        self.per_epoch, self.epochs, self.steps_of = per_epoch, epochs, steps_of
        self.steps = sum(steps_of(epoch) for epoch in range(epochs))

    def from_step(self, start: int) -> Iterator[tuple[np.ndarray, int]]:
        t = 0
        for epoch in range(self.epochs):
            size = self.steps_of(epoch)
            if t + size > start:
                for ids in self.per_epoch(epoch)[max(0, start - t) :]:
                    yield ids, epoch
            t += size

    @staticmethod
    def of(
        instances: Instances, epochs: int | None, batch_size: int | None, batches: Any, seed: int
    ) -> "_Plan":
        for what, value in (("epochs", epochs), ("batch_size", batch_size)):
            if value is not None and (not isinstance(value, (int, np.integer)) or value < 1):
                raise BadInput(f"{what} must be at least 1 and whole, not {value!r}.")
        if batches is not None:
            given = [check_ids(ids, len(instances), "The ids in batches") for ids in batches]
            if not any(len(ids) for ids in given):
                raise BadInput("batches is empty: there is nothing to train on.")
            cuts = np.array_split(np.arange(len(given)), epochs or 1)
            parts = [[given[t] for t in cut] for cut in cuts]
            return _Plan(lambda epoch: parts[epoch], len(parts), lambda epoch: len(parts[epoch]))
        if epochs is None or batch_size is None:
            raise BadInput("Say how long to train: epochs and batch_size, or batches.")
        count = len(instances)

        def shuffled(epoch: int) -> list[np.ndarray]:
            order = np.random.default_rng(mixed(seed, epoch)).permutation(count)
            return [order[start : start + batch_size] for start in range(0, count, batch_size)]

        return _Plan(shuffled, epochs, lambda epoch: -(-count // batch_size))


def _rates(
    optimizer, pure: Optimizer, groups: list[dict], eta: Eta | None, steps: int
) -> np.ndarray:
    """The optimizer's numbers at every step: [T, G, H]."""
    rows = np.repeat(current_numbers(pure, groups)[None], steps, axis=0)
    if eta is None:
        return rows
    if isinstance(eta, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise NotSupported(
            "ReduceLROnPlateau looks at a loss that dross.train does not show it. Use dross.Recorder in your own loop."
        )
    if isinstance(eta, torch.optim.lr_scheduler.LRScheduler):
        optimizer._opt_called = (
            True  # our loop is the optimizer's step; torch would warn that it was never called
        )
        for t in range(steps):
            rows[t] = current_numbers(pure, groups)
            eta.step()
        return rows
    column = pure.columns.index("lr")
    if callable(eta):
        rates = np.array([eta(t) for t in range(steps)], dtype=np.float64)
    else:
        rates = np.asarray(eta.cpu() if isinstance(eta, torch.Tensor) else eta, dtype=np.float64)
    if rates.ndim and len(rates) != steps:
        raise BadInput(f"eta has {len(rates)} rates for {steps} steps: give one per step.")
    if not np.isfinite(rates).all() or (rates < 0).any():
        raise BadInput("eta must be finite and not negative.")
    rows[:, :, column] = rates if rates.ndim == 2 else rates.reshape(-1, 1)
    return rows


def _check_all_labels(objective: Objective, instances: Instances, x: Any, loss_name: str) -> None:
    """One bad label in the last batch would otherwise end a long run."""
    if instances.stored and loss_name == "cross_entropy":
        theta, buffers = objective.layout.read(objective.model)
        with objective.evaluating(), torch.no_grad():
            check_labels(objective.predict(theta, buffers, x), instances.stored[1], loss_name)


def _available(device: str | torch.device) -> torch.device:
    try:
        wanted = torch.device(device)
        torch.zeros(1, device=wanted)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = first_line(error)
        raise BadInput(
            f"The device '{device}' is not there ({reason}). Leave it out to train where the model is."
        ) from None
    return wanted
