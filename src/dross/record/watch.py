"""Watch what a loop does between one step of its optimizer and the next.

The gradient that arrives at the losses is each instance's weight in the step, and the optimizer's
own hooks say when a step is taken.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.utils._pytree import tree_leaves

from .._checks import check_count
from ..data.batch import Batch, MicroBatch
from ..data.fingerprint import checksum
from ..data.seeds import use_seed
from ..data.strides import orders_of, put_all_in_order
from ..distributed import ddp
from ..engine.autodiff import apply_model
from ..engine.losses import check_per_instance
from ..engine.optim import check_same_structure, read_optimizer
from ..engine.precision import Autocast, observe_autocast
from ..engine.state import Layout, State
from ..engine.step import Clip, Step
from ..errors import InvalidInput, NotSupported
from ..tape.retention import Keep
from .average import AverageWatch
from .replayable import SeenLoss, check_finite, check_replayable, compare_attention
from .user_loop import LoopTape, UserLoop

_STEPS_BETWEEN_REHEARSALS = 32  # at least
_MAX_EPOCH = 2**31 - 1


@dataclass(frozen=True)
class LossHandle:
    """A micro-batch of a loop that computes its own loss; called with that loss."""

    watch: "StepWatch"
    batch: Batch
    weights: np.ndarray  # where backward() leaves each instance's weight

    def __call__(self, loss: Tensor, share: float | None = None) -> None:
        """Note the loss, before backward().

        Arguments:
            loss: a scalar, or the losses of the instances [B].
            share: what each instance's loss is multiplied by to add up to that number; 1/B by
                default, which makes it the mean.
        """
        self.watch.watch_loss(loss, share, self.weights)

    def losses(self) -> Tensor:
        """The losses of the instances [B] as a replay computes them."""
        return self.watch.compute_losses(self.batch)


@dataclass
class WaitingBatch:
    """A micro-batch whose gradient waits for a step."""

    micro: MicroBatch
    batch: Batch
    seen: SeenLoss | None = None  # None: the loop has not shown its loss


class StepWatch:
    """The step that a loop is about to take, and its record once it is taken."""

    def __init__(self, loop: UserLoop, tape: LoopTape):
        self.loop = loop
        self.tape = tape
        self.gradients = GradientWatch(loop.model)
        self.inside = False  # a `with recorder.step(...)`
        self.stepping = False  # between the optimizer's two hooks
        self._stepped = False  # in this `with recorder.step(...)`
        self._epoch = tape.epoch_before
        self._clip: Clip | None = None
        self._scale = 1.0  # by which a GradScaler has divided the gradients
        self._skipping = False  # a GradScaler lets the optimizer take no step
        self.skipped = 0  # steps that it left out
        self._pending: list[WaitingBatch] = []
        self._before: State | None = None  # the state they were computed from, if it is needed
        self._buffers: dict[str, Tensor] = {}  # before them: a forward pass moves these at once
        self._gradient: Tensor | None = None  # [p] of the step that the optimizer is taking
        self._next_rehearsal = 0  # not before this step: it costs a step
        self._after: Tensor | None = None  # theta as the last recorded step left it
        # of the buffers that the forward pass updates, as the last recorded pass left them
        self._versions: dict[str, tuple[int, int]] | None = None
        self.average: AverageWatch | None = None

    # --- before and after a forward pass ----------------------------------------------------------

    def set_epoch(self, epoch: int | None) -> None:
        """Note the epoch of the next micro-batch, as the loop gives it."""
        self._epoch = _check_epoch(epoch, self._epoch, self.loop.keep)

    @property
    def position(self) -> tuple[int, int]:
        """The step and the place in it of the next micro-batch. Its random numbers follow it."""
        place = ddp.place_among_ranks(len(self._pending), self.loop.ranks)
        return self.tape.steps, place

    @property
    def pending(self) -> int:
        """How many micro-batches wait for a step, without those of skipped ones."""
        return sum(bool(waiting.micro.weights.any()) for waiting in self._pending)

    @contextmanager
    def micro_batch(self, ids: np.ndarray, batch: Batch) -> Iterator[Tensor]:
        """Yields the losses of a micro-batch [B]; what fails inside is undone."""
        with self._waiting(ids, batch) as weights:
            yield self._forward(batch, weights)

    @contextmanager
    def observe(self, ids: np.ndarray, batch: Batch) -> Iterator[LossHandle]:
        """Inside, the loop computes a micro-batch's loss and calls what this yields with it."""
        with self._waiting(ids, batch) as weights:
            with self._watching_model(batch), use_seed(self.loop.device, batch.seed):
                yield LossHandle(self, batch, weights)

    @contextmanager
    def _watching_model(self, batch: Batch) -> Iterator[None]:
        """Inside, watch how the loop calls the model with the first batch.

        The batch may lie in memory in another order than it came in, after
        x.to(memory_format=torch.channels_last). This is noted. Autocast that is entered for the call
        alone would be missed, and is refused.
        """
        model = self.loop.model
        first = self.tape.steps == 0 and len(self._pending) == 1
        if not first or self.loop.called is not model:  # a hook would have a model compiled again
            yield
            return

        def note(_: nn.Module, args: tuple, kwargs: dict) -> None:
            handle.remove()  # before a rehearsal calls the model
            around = observe_autocast(self.loop.device)
            recorded = self._recorded_cast
            if (around and around.dtype) != (recorded and recorded.dtype):
                raise NotSupported(
                    f"The model is called with autocast {around or 'off'}, and autocast around "
                    f"recorder.observe is {recorded or 'off'}. Enter it first: with "
                    "torch.autocast(...), recorder.observe(ids, x, y) as watch: ..."
                )
            given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            expected = [t for t in tree_leaves(batch.x) if isinstance(t, Tensor)]
            if [t.shape for t in given] == [t.shape for t in expected]:
                self.tape.settle_orders(orders_of([given, batch.y]))

        handle = model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def _waiting(self, ids: np.ndarray, batch: Batch) -> Iterator[np.ndarray]:
        """A micro-batch whose gradient waits for a step. Yields where its weights are put."""
        before = self._begin(batch)
        self._versions = None
        weights = np.zeros(len(ids))
        self.inside = True
        self._stepped = self._skipping = False
        self._pending.append(WaitingBatch(MicroBatch(ids, weights), batch))
        try:
            yield weights
        except BaseException:
            if not self._stepped and not self.stepping:
                # once backward() has run, its gradient is mixed with those of the other
                # micro-batches: all of them go
                used = bool(weights.any())
                self._withdraw(self._buffers if used else before, everything=used)
            raise
        finally:
            self.inside = False
        if not (self._stepped or self._skipping or weights.any()):
            unwatched = self._pending[-1].seen is None
            self._withdraw(before)
            if unwatched:
                raise _explain_unwatched(self.tape.steps)
            raise NotSupported(
                "backward() was not called on the losses of this batch, so the batch does not "
                "contribute to any step. Call it inside the `with` block."
            )
        self._versions = self._read_versions()

    def _begin(self, batch: Batch) -> dict[str, Tensor]:
        """Keep the model's state where the tape needs it. Returns the model's buffers."""
        torch.clear_autocast_cache()  # of weights as they were before the last step
        cast = self._find_cast()
        self.tape.open(batch, cast)
        self._check_same_cast(cast)
        binding = self.tape.binding
        writer = self.tape.writer
        self._check_buffers()
        buffers = binding.layout.read_buffers(self.loop.model)
        self.poll_average()
        if self._pending:
            return buffers
        if self._after is None:
            restored = self.tape.take_restored()
            self._after = binding.read_theta() if restored is None else restored
        read = cache(lambda: binding.read(theta=self._after))  # the end of one is the next's start
        writer.make_room(self._epoch, read)
        self._before = read() if writer.wants_state() else None
        self._buffers = buffers
        return buffers

    def _forward(self, batch: Batch, weights: np.ndarray) -> Tensor:
        """The losses of the user's own model. backward() leaves each one's weight in `weights`."""
        loop = self.loop
        objective = self.tape.executor.objective
        with nullcontext() if loop.autocast is None else loop.autocast.around("loss"):
            with use_seed(loop.device, batch.seed):
                outputs = apply_model(loop.called, batch.x)
                losses = check_per_instance(loop.loss(outputs, batch.y), len(batch.c))
            if loop.penalty is not None:
                losses = losses + objective.penalty_at(dict(loop.model.named_parameters()))
        self.watch_loss(losses, None, weights)
        return losses

    def watch_loss(self, loss: Tensor, share: Any, weights: np.ndarray) -> None:
        """Let backward() leave each instance's weight in `weights`.

        share: of each instance's loss in a loss of one number; by default it is their mean.
        """
        layout = self.tape.binding.layout
        count = len(weights)
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            raise InvalidInput(
                "The loss has no gradient: pass it before backward(), as the tensor that was "
                "computed from the model's outputs, without item(), detach() or torch.no_grad()."
            )
        single = loss.dim() == 0 or (share is not None and loss.numel() == 1)
        if not single and loss.shape != (count,):
            raise InvalidInput(
                f"Got a loss of shape {tuple(loss.shape)} for a batch of {count}: dross supports a "
                "scalar, or one loss per instance."
            )
        shares = np.full(count, 1 / count if share is None else share) if single else 1.0
        accumulating = any(waiting.micro.weights.any() for waiting in self._pending[:-1])

        def watch(arrived: Tensor) -> None:
            if not weights.any():
                self._check_backward()
                self.gradients.check_start(layout, self.tape.steps, accumulating=accumulating)
                if ddp.find_ddp(self.loop.called) is not None:
                    ddp.after_averaging(self.gradients.accept)
            weights.__iadd__(arrived.detach().double().cpu().numpy() * shares)

        loss.register_hook(watch)
        share = None if not single else (1 / count if share is None else share)
        self._pending[-1].seen = SeenLoss(loss.detach(), count, share)

    def compute_losses(self, batch: Batch) -> Tensor:
        """The losses of a batch [B] as a replay computes them; the model stays as it is."""
        executor = self.tape.executor
        with executor.training():
            theta, buffers = self.tape.binding.layout.read(self.loop.model)
            return executor.losses(theta, buffers, batch)[0]

    # --- autocast: it is recorded, and the same for the whole run -----------------------------------

    def _find_cast(self) -> Autocast | None:
        """The autocast that the next pass is computed in."""
        around = observe_autocast(self.loop.device)
        if around is not None and self.loop.autocast is not None:
            raise InvalidInput(
                "Autocast is on around recorder.step, and autocast= was passed to the recorder as "
                "well: leave out one of the two."
            )
        return around or self.loop.autocast

    def _check_same_cast(self, cast: Autocast | None) -> None:
        """Refuse an autocast that comes, goes or changes within a run."""
        first = self._recorded_cast
        now = cast if cast is None or first is None else replace(cast, backward=first.backward)
        if now != first:
            raise NotSupported(
                f"Step {self.tape.steps} is computed with autocast {now or 'off'}, but the steps "
                f"before it with {first or 'off'}: it must be the same for the whole run. Close "
                "the recorder and start a new tape."
            )

    def _check_backward(self) -> None:
        """backward() runs inside autocast at every step, or at none."""
        cast = self._recorded_cast
        inside = torch.is_autocast_enabled(self.loop.device.type)
        if cast is None or cast.backward == inside:
            return
        if self.tape.steps or self.tape.earlier:
            now, before = ("inside", "outside") if inside else ("outside", "inside")
            raise NotSupported(
                f"backward() of step {self.tape.steps} ran {now} autocast, but those before it "
                f"{before}: run it the same way at every step."
            )
        self.tape.settle_backward(inside)

    @property
    def _recorded_cast(self) -> Autocast | None:
        return self.tape.executor.objective.precision.autocast

    def _withdraw(self, buffers: dict[str, Tensor], everything: bool = False) -> None:
        """Forget the last batch (or all that wait), and what its forward pass did to the model."""
        del self._pending[0 if everything else -1 :]
        self._clip = None
        present = dict(self.loop.model.named_buffers())
        with torch.no_grad():
            for name, value in buffers.items():
                present[name].copy_(value)

    def declare_clip(self, clip: Clip | None) -> list[Tensor]:
        """Note that the gradient is about to be clipped. Returns the parameters in training.

        clip: None if it is only measured.
        """
        if self._clip is not None and clip is not None:
            raise NotSupported(
                "The gradient is clipped twice in one step: dross supports one clip per step."
            )
        if not self.tape.is_open:
            raise InvalidInput("There is nothing to clip before the first recorder.step.")
        self._clip = self._clip if clip is None else clip
        binding = self.tape.binding
        layout = binding.layout
        return [binding.parameters[name] for name in layout.listed or layout.names]

    # --- around the optimizer's step --------------------------------------------------------------

    def before_step(self, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Refuse a step of the optimizer that could not be replayed.

        Arguments:
            args, kwargs: of optimizer.step; `args` begin with the optimizer itself.

        Returns:
            None, or other arguments: a closure is checked once it has computed the gradients.
        """
        optimizer, *rest = args
        closure = rest[0] if rest else kwargs.get("closure")
        if not callable(closure):
            self._check_step()
            return None

        def checked() -> Any:
            if self.stepping:
                raise NotSupported(
                    "The optimizer calls its closure more than once per step: dross supports only "
                    "optimizers that compute one gradient per step."
                )
            value = closure()
            self._check_step()
            return value

        return (optimizer, checked, *rest[1:]), {k: v for k, v in kwargs.items() if k != "closure"}

    def _check_step(self) -> None:
        """The gradients are there, and the optimizer is about to use them."""
        steps = self.tape.steps
        self.poll_average(halfway=True)
        if self.inside and self._stepped:
            raise NotSupported(
                f"The optimizer stepped twice in one `with recorder.step(...)`, at step {steps}. "
                "Use one `with` block for each step."
            )
        if not self._pending:
            raise NotSupported(
                f"optimizer.step() was called outside `with recorder.step(...)` before step {steps}, "
                "and no recorded batch is waiting for a step."
            )
        if any(waiting.seen is None for waiting in self._pending):
            raise _explain_unwatched(steps)
        self.check_untouched()
        self.gradients.check_step(self.tape.binding.layout, self.loop.optimizer, steps)
        scale = _scale_in_step(self.loop.optimizer)
        self._scale *= scale
        # now, because an optimizer may change gradients in place (foreach, with Nesterov momentum)
        self._gradient = self.gradients.flat(self.tape.binding.layout)
        if scale != 1:
            self._gradient /= scale
        self.stepping = True

    def after_step(self) -> None:
        """Write the step that the optimizer has taken; rehearse it where it opens a segment."""
        if not self.stepping:
            raise NotSupported(
                f"The optimizer took step {self.tape.steps} without calling its closure, so its "
                "gradient is not known."
            )
        if _skips_step(self.loop.optimizer):
            self.stepping = False
            return self._skip_step()
        ranks = self.loop.ranks
        t = self.tape.steps
        binding = self.tape.binding
        writer = self.tape.writer
        executor = self.tape.executor
        pure = binding.optimizer
        check_same_structure(pure, read_optimizer(self.loop.optimizer, binding.groups))
        waiting = [each.micro for each in self._pending]
        own = [MicroBatch(m.ids, m.weights / self._scale).simplify() for m in waiting]
        all_micros, opens = ddp.gather_micro_batches(ranks, own, writer.opens_segment())
        step = Step(all_micros, binding.hyperparams(), self._epoch, self._clip, self._scale)
        self.tape.check_continued(step.hyperparams)
        micros = [all_micros[ddp.place_among_ranks(k, ranks)] for k in range(len(own))]
        pairs = zip(micros, self._pending)
        batches = [self._as_replayed(waiting.batch, micro) for micro, waiting in pairs if opens]
        g = self._gradient
        assert g is not None
        after = binding.read_theta()
        ids = np.concatenate([micro.ids for micro in micros])
        seen = [each.seen for each in self._pending if each.seen is not None]
        losses = [of_batch.each for of_batch in seen]
        check_finite(t, after, g, losses, ids, kept=writer.segment_start)
        if opens and t >= self._next_rehearsal:
            assert self._before is not None
            check_replayable(
                executor,
                pure,
                self._before,
                step,
                batches,
                after=State(after, buffers=binding.layout.read_buffers(self.loop.model)),
                losses=seen,
                seen=g,
                ranks=self.tape.rehearsing,
                t=t,
            )
            if not self._next_rehearsal:  # the first one
                gap = compare_attention(executor, self._before, batches[0])
                self.tape.note(attention_gap=gap)
            self._next_rehearsal = t + _STEPS_BETWEEN_REHEARSALS
        writer.add(step, self._before, None, checksum(batches[0]) if opens else 0)
        self._after = after
        self._gradient = None
        self._pending = []
        self._stepped = True
        self.stepping = False
        self._clip = None
        self._scale = 1.0

    # --- a GradScaler: by which scale it divides the gradients, and which steps it skips ----------

    def listen_to(self, scaler: GradScaler, listeners: ExitStack) -> None:
        """Watch the methods of a scaler that act on the optimizer, until `listeners` is closed.

        These are `unscale_`, which `step` calls where the loop has not, and `step`. A fused
        optimizer unscales and skips by itself, by two attributes that the scaler sets during its
        step.
        """
        scaler_unscales = scaler.unscale_
        scaler_steps = scaler.step

        def unscale_(optimizer: torch.optim.Optimizer) -> None:
            if optimizer is not self.loop.optimizer:
                return scaler_unscales(optimizer)
            self.gradients.check_unchanged(self.tape.steps)
            scaler_unscales(optimizer)
            self.gradients.accept()
            self._scale = scaler.get_scale()

        def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = scaler_steps(optimizer, *args, **kwargs)
            handled = self._stepped or self._skipping
            if optimizer is self.loop.optimizer and self._pending and not handled:
                self._skip_step()
            return result

        methods = {"unscale_": unscale_, "step": step}
        vars(scaler).update(methods)

        def leave() -> None:
            for name, method in methods.items():
                if vars(scaler).get(name) is method:
                    del vars(scaler)[name]

        listeners.callback(leave)

    def _skip_step(self) -> None:
        """Leave out what was computed for a step that was not taken.

        Its forward passes may still have moved BatchNorm's statistics: then its micro-batches stay,
        with weights of 0, and are part of the next step, which starts from the same parameters.
        """
        if self.tape.binding.layout.moving_buffers:
            for waiting in self._pending:
                waiting.micro.weights[:] = 0
        else:
            self._pending = []
        self._clip = None
        self._scale = 1.0
        self._skipping = True
        self.skipped += 1

    def _as_replayed(self, batch: Batch, micro: MicroBatch) -> Batch:
        x, y = put_all_in_order((batch.x, batch.y), self.tape.orders or ())
        return replace(batch, x=x, y=y, c=self.weights_on_device(micro))

    def weights_on_device(self, micro: MicroBatch) -> Tensor:
        """How much each loss counts, in a type that holds 1/B well enough: [B]."""
        dtype = torch.promote_types(self.loop.dtype, torch.float32)
        return torch.as_tensor(micro.weights, dtype=dtype, device=self.loop.device)

    # --- between steps ----------------------------------------------------------------------------

    @property
    def is_untouched(self) -> bool:
        """Whether the parameters are where the last recorded step left them."""
        return self._after is None or self.tape.binding.holds(self._after)

    def poll_average(self, *, halfway: bool = False) -> None:
        """Note updates of an averaged model from the parameters as they are now."""
        if self.average is not None and self.tape.is_open:
            halfway = halfway or bool(self._pending)
            self.average.poll(self.tape.steps, self.tape.binding, halfway=halfway)

    def check_untouched(self) -> None:
        """Refuse parameters that something other than the optimizer has changed."""
        if not self.is_untouched:
            raise NotSupported(
                f"The model's parameters were changed before step {self.tape.steps} by something "
                "other than the optimizer (clamping, averaging, loading a checkpoint). Close the "
                "recorder first, or do not change the parameters while recording."
            )

    def _read_versions(self) -> dict[str, tuple[int, int]]:
        """What changes whenever a buffer of the forward pass does, without reading its numbers."""
        present = dict(self.loop.model.named_buffers())
        names = self.tape.binding.layout.moving_buffers
        return {name: (id(present[name]), present[name]._version) for name in names}

    def _check_buffers(self) -> None:
        """Refuse buffers that changed between two recorded passes, as in validation in train mode."""
        if self._versions is None:
            return
        now = self._read_versions()
        changed = [name for name, version in self._versions.items() if now[name] != version]
        if changed:
            raise NotSupported(
                f"The buffer '{changed[0]}' changed before step {self.tape.steps}, outside of the "
                "recorded batches: the model was called in train mode, for example to validate it. "
                "Call model.eval() before validation and model.train() after it."
            )

    @property
    def state_before_segment(self) -> State | None:
        """The state before the step that is being taken, where it opens a segment."""
        return self._before if self.tape.is_open and self.tape.writer.opens_segment() else None

    @property
    def buffers_before_pending(self) -> dict[str, Tensor] | None:
        """The model's buffers before the micro-batches that wait for a step, if there are any."""
        return self._buffers if self._pending else None


def _explain_unwatched(step: int) -> NotSupported:
    """The error for a batch of `recorder.observe` whose loss is not known."""
    return NotSupported(
        f"The loss of step {step} is not known, because watch(loss) was not called. Call it before "
        "backward(): with recorder.observe(ids, x, y) as watch: loss = ...; watch(loss); "
        "loss.backward()"
    )


# --- gradients: the optimizer steps with those of the losses, as backward() computed them -----------


class GradientWatch:
    """Notes each gradient's identity and version as backward() leaves it.

    Any later change to a gradient changes one of the two.
    """

    def __init__(self, model: nn.Module):
        self.parameters = dict(model.named_parameters())
        self.versions: dict[Tensor, tuple[int, float]] = {}
        trained = [p for p in self.parameters.values() if p.requires_grad]
        self.handles = [p.register_post_accumulate_grad_hook(self._note) for p in trained]

    def accept(self) -> None:
        """Accept what was done to the gradients since backward(): it is recorded."""
        for parameter in self.versions:
            if parameter.grad is not None:
                self._note(parameter)

    def flat(self, layout: Layout) -> Tensor:
        """The gradients of the parameters in training, one after the other: [p]."""
        gradients = {name: self.parameters[name].grad for name in layout.names}
        return layout.flatten({name: g for name, g in gradients.items() if g is not None})

    def check_start(self, layout: Layout, step: int, *, accumulating: bool) -> None:
        """As backward() starts: gradients must be those of the micro-batches that wait for a step.

        Arguments:
            layout: the parameters in training.
            step: the number of the next step.
            accumulating: whether there are such micro-batches.
        """
        gradients = [self.parameters[name].grad for name in layout.names]
        local = [layout.local(g) for g in gradients if g is not None]
        if local and not any(g.numel() for g in local):
            return  # of shards, this rank has none
        present = any(bool((g != 0).any()) for g in local)
        if present and not accumulating:
            raise NotSupported(
                f"Gradients were left over when backward() of step {step} started. Call "
                "optimizer.zero_grad() after each step."
            )
        if accumulating and not present:
            raise NotSupported(
                f"The gradients of the micro-batches for step {step} were cleared without a step. "
                "Call optimizer.step() before optimizer.zero_grad(). If a GradScaler skipped the "
                "step, pass the scaler to the recorder: dross.Recorder(..., scaler=scaler)."
            )

    def check_step(self, layout: Layout, optimizer: torch.optim.Optimizer, step: int) -> None:
        """As the optimizer starts: the same parameters train, and the gradients are unchanged."""
        moving = set(layout.names)
        in_optimizer = {p for group in optimizer.param_groups for p in group["params"]}
        for name, p in self.parameters.items():
            if p not in in_optimizer:
                continue
            if (p.grad is not None) != (name in moving):
                had = "a" if name in moving else "no"
                raise NotSupported(
                    f"Parameter '{name}' had {had} gradient at the first step, unlike at step "
                    f"{step}. dross requires the same trainable parameters in every step."
                )
        self.check_unchanged(step)

    def check_unchanged(self, step: int) -> None:
        """Refuse gradients that something changed after backward(), and that was not recorded."""
        for name, p in self.parameters.items():
            if not p.requires_grad or p.grad is None:
                continue
            if self.versions.get(p) != _mark(p.grad):
                raise NotSupported(
                    f"The gradient of '{name}' was changed between backward() and optimizer.step() "
                    f"at step {step}. Clip with "
                    "recorder.clip_grad_norm_(max_norm) or recorder.clip_grad_value_(limit), which "
                    "take no parameters, and pass a GradScaler to the recorder: "
                    "dross.Recorder(..., scaler=scaler). Gradient noise is not supported."
                )

    def _note(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.versions[parameter] = _mark(parameter.grad)


def _mark(g: Tensor) -> tuple[int, float]:
    """What changes with a gradient: its version, or its norm if it is a part of a DTensor.

    DTensors do not count what is done to them.
    """
    local = getattr(g, "to_local", None)
    return id(g), g._version if local is None else float(local().norm())


def _scale_in_step(optimizer: torch.optim.Optimizer) -> float:
    """The scale by which a fused optimizer divides in the step that it is taking; 1 for others."""
    scale = getattr(optimizer, "grad_scale", None)
    return float(scale) if isinstance(scale, Tensor) else 1.0


def _skips_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a fused optimizer leaves the parameters alone in the step that it is taking."""
    found_inf = getattr(optimizer, "found_inf", None)
    return isinstance(found_inf, Tensor) and float(found_inf) > 0


def _check_epoch(epoch: int | None, before: int, keep: Keep) -> int:
    """The epoch of a step, where `before` is that of the step before it."""
    if epoch is None and keep.last_epochs is not None:
        raise InvalidInput(
            "LastEpochs needs the epochs: call recorder.step(ids, x, y, epoch=epoch)."
        )
    if epoch is not None:
        epoch = check_count(
            epoch,
            "epoch",
            at_most=_MAX_EPOCH,
            because="a tape keeps it as a 32-bit number",
            at_least=0,
        )
        if epoch < before:
            raise InvalidInput(
                f"Epoch {epoch} came after epoch {before}: epoch numbers must not decrease over "
                "the whole run, including all its phases."
            )
    return before if epoch is None else epoch
