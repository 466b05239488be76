"""Retrace a recorded run backwards and score every training instance (Algorithm 2 of the paper).

With s the state, w the instance weights and a the adjoint of the query with respect to s_{t+1}, one
reverse step is

    a_g, a_s   = J_t^T a, with J_t the optimizer's table at s_t    plain SGD: a_g = -eta_t a_theta
    terms_i    = c_i <a_g, grad l(z_i; theta_t)>   for i in S_t    d query / d w_i here
    score_j   -= terms_j                                           removing z_j is w_j: 1 -> 0
    a_theta    = a_s.theta + sum_i c_i H_i a_g                     the Hessian-vector product

which for plain SGD is the paper's  score_j += eta_t/|S_t| <u, g(z_j; theta_t)>,  u -= eta_t H_t u.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._progress import progress_bar
from ..data.batch import AnyBatch, LazyBatches
from ..distributed.gather import join_ranks
from ..engine.autodiff import probe_direction
from ..engine.executor import Executor
from ..engine.state import Derivative, State
from ..engine.step import Step, needs_gradient, sum_over_batches, take_step, vjp_step
from ..engine.step_stacks import cut_into_stacks, unstack_steps
from ..errors import Diverged, DrossWarning
from ..replay.average import MODEL, Average, FinalModel
from ..replay.recording import Recording
from ..replay.schedule import choose_steps
from ..replay.segments import Block
from .query import Query
from .scores import Scores
from .totals import CheckpointFile, NotFinite, ScoreTotals


def retrace(
    recording: Recording,
    query: Query,
    *,
    epochs: int | None = None,
    step: int | None = None,
    weights: str = MODEL,
    hessian: bool = True,
    resume: str | os.PathLike | None = None,
    group: Any = None,
    sharded: bool = False,
    progress: bool = False,
) -> Scores:
    """Scores of every instance for one query or many, in one pass.

    Cost: about 2-3 training steps per step; with checkpoints one more to replay it.

    Arguments:
        hessian: False leaves the Hessian term out; what remains is TracIn over every step.
        resume: a folder in which progress is kept from time to time.
        epochs, step, weights, group, sharded: as for `Run.influence`.
    """
    steps = choose_steps(recording.tape, epochs=epochs, step=step)
    question = {
        "query": query.name,
        "weights": weights,
        "steps": [steps.first, steps.stop],
        "hessian": hessian,
    }
    recording, ranks = join_ranks(
        recording,
        group,
        question,
        sharded=sharded,
        resumable=resume is not None,
        show=progress,
    )
    recording.check_unchanged()
    model = recording.model(weights, step)
    query_adjoint, value = ranks.query_adjoint(query, recording.objective, model.state)
    length = ranks.lengths(query_adjoint.theta)
    file = (
        None if resume is None else CheckpointFile(Path(resume), recording, question, query_adjoint)
    )
    totals = ScoreTotals(recording, ranks, steps, len(query_adjoint.theta), file)
    adjoint, position = totals.resume(model.begin(query_adjoint))
    del query_adjoint  # as large as the adjoint
    recording = ranks.divide(recording, steps.stop)
    show = progress and ranks.rank == 0
    bar = progress_bar("retracing", position - steps.first, show=show)

    try:
        with recording.executor.training(), bar as advance:
            # t = T-1 ... 0
            for block in recording.walk_backward(steps.first, steps.stop, position):
                adjoint = _drop_vanished_buffers(adjoint)
                terms: list[Tensor] = []
                for part in reversed(_parts(recording, block, model)):  # a step, or several alike
                    adjoint = model.enter(adjoint, block.first + part.stop)
                    adjoint, part_terms = reverse_steps(recording, block, part, adjoint, hessian)
                    terms += part_terms
                    advance(part.stop - part.start)
                totals.subtract(block, terms, adjoint)  # score_j -= d query / d w_j
                del block, terms  # before the next block is replayed
        by_epoch = totals.finish()
    except NotFinite as found:
        raise _explain(recording, found.step, steps.stop, hessian) from None

    _warn_if_zero(recording, query, by_epoch, float(length.max()))
    growth = ranks.lengths(adjoint.theta) / length.clamp_min(torch.finfo(length.dtype).tiny)
    return Scores.of_query(
        by_epoch,
        query,
        value,
        weights=weights,
        first_epoch=steps.oldest,
        step=steps.stop,
        hessian=hessian,
        details={"adjoint_growth": float(growth.max())},
    )


def _warn_if_zero(recording: Recording, query: Query, by_epoch: np.ndarray, length: float) -> None:
    """Explain scores that rank nothing.

    length: of the derivative of the query.
    """
    used = by_epoch[~np.isnan(by_epoch)]
    if not used.size or used.any():
        return
    cause = f"the derivative of the query {query.name} is 0 at this model"
    if length > 0:
        optimizer = recording.tape.manifest.optimizer.name
        cause = (
            f"the steps of this run ({optimizer}) do not change with the size of the gradients. "
            "The optimizer uses only their signs, as Rprop and Lion do, or the learning rate is 0"
        )
    warnings.warn(
        f"All scores are 0, so they cannot be used to rank instances: {cause}. Run.leave_one_out "
        "measures the effect of removing instances.",
        DrossWarning,
        stacklevel=4,
    )


def _drop_vanished_buffers(adjoint: Derivative) -> Derivative:
    """Leave out the adjoint of running statistics once it is smaller than rounding.

    It shrinks by 1 - momentum per step.
    """
    if not adjoint.buffers:
        return adjoint
    floor = torch.finfo(adjoint.theta.dtype).eps ** 3 * float(adjoint.theta.abs().max())
    alive = any(float(a.abs().max()) > floor for a in adjoint.buffers.values())
    return adjoint if alive else replace(adjoint, buffers={})


# --- what is not finite ---------------------------------------------------------------------------


def _explain(recording: Recording, t: int, stop: int, hessian: bool) -> Diverged:
    """Why a retrace from step `stop` came upon inf or nan at step t.

    The adjoint that it got there comes from the step after. Both are looked at again.
    """
    if recording.reducer.size == 1:  # several ranks would have to look at them together
        for k in range(min(t + 1, stop - 1), t - 1, -1):
            state = recording.state_at(k)
            ((_, step, batches),) = recording.recorded_steps(k, k + 1)
            with recording.executor.training():
                cause = _cause_in_step(recording, state, step, batches, hessian)
            if cause is not None:
                return Diverged(f"Step {k}: {cause}", step=k)
    return Diverged(
        f"Step {t}: the adjoint overflows: every step of the backward recursion multiplies it by "
        "the step's Jacobian, and in this run it grows without bound. Retrace fewer epochs "
        "(epochs=1), train with a smaller learning rate, or use float64.",
        step=t,
    )


def _cause_in_step(
    recording: Recording, state: State, step: Step, batches: Sequence[AnyBatch], hessian: bool
) -> str | None:
    """What of a step is not finite; None if all of it is, for an adjoint of length 1."""
    if not bool(torch.isfinite(state.theta).all()):
        return "the recorded parameters before it are not finite. Record the run again."
    executor = recording.executor
    buffers = state.buffers
    for micro, batch in zip(step.micros, batches):
        losses, buffers = executor.losses(state.theta, buffers, batch)
        bad = micro.ids[(~torch.isfinite(losses)).cpu().numpy()]
        if len(bad):
            return f"the loss of instance {bad[0]} is not finite. Check its inputs and its label."
    unit = Derivative.zeros(state, 1, recording.objective.held)
    unit = replace(unit, theta=probe_direction(state.theta))
    before, terms = reverse_step(recording, step, batches, state, None, unit, hessian)
    if not bool(torch.isfinite(terms).all()):
        bad = step.ids[(~torch.isfinite(terms).all(0)).cpu().numpy()]
        return f"the gradient of the loss of instance {bad[0]} is not finite. Check its inputs."
    if not all(bool(torch.isfinite(t).all()) for t in before.tensors().values()):
        return (
            "the second derivatives of the loss are not finite, though the loss and its gradient "
            "are. The model or the loss has no second derivative there, like x.norm() or "
            "abs(x)**1.5 at 0: add a small number to x. dross.estimators.WithoutHessian() needs "
            "first derivatives only."
        )
    return None


# --- reverse steps --------------------------------------------------------------------------------


def reverse_step(
    recording: Recording,
    step: Step,
    batches: Sequence[AnyBatch],
    state: State,
    g: Tensor | None,
    after: Derivative,
    hessian: bool = True,
) -> tuple[Derivative, Tensor]:
    """The adjoint before a step, and d query / d w_i for the instances of the step: [Q, |S_t|].

    Arguments:
        recording: the run.
        step: what was recorded of the step.
        batches: its micro-batches.
        state: s_t, before the step.
        g: the raw gradient [p] if it is known; computed here where the update's derivative
            depends on it.
        after: the adjoint after the step.
        hessian: False leaves the Hessian-vector product out.
    """
    executor = recording.executor
    optimizer = recording.optimizer
    reducer = recording.reducer
    if g is None and needs_gradient(optimizer, step):
        _, g, _ = take_step(executor, optimizer, state, step, batches, reducer=reducer)
    if g is None:
        g = torch.zeros_like(state.theta)  # the update's derivative does not depend on it
    a_g, before = vjp_step(optimizer, state, step, g, after)

    piece_terms = []  # (piece, its terms)
    buffers = _buffers_before_each(executor, state, batches, bool(after.buffers))

    def vjp_batch(piece, a_buffers: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        k, _, batch = piece
        terms, product, a_buffers = executor.vjp(
            state.theta, buffers[k], batch.scaled(step.scale), a_g, a_buffers, hessian
        )
        piece_terms.append((piece, terms))
        return product, a_buffers

    pieces = reversed(reducer.own_part(batches))
    product, a_buffers = sum_over_batches(pieces, after.buffers, vjp_batch, before.theta)
    terms = reducer.merge_terms(piece_terms[::-1], batches, before.theta)
    if hessian:
        product, terms = reducer.sum_over_theta(product, terms)
        before = replace(before, theta=before.theta + product)
    else:
        (terms,) = reducer.sum(terms)
    return replace(before, buffers=a_buffers), terms


def _buffers_before_each(
    executor: Executor, state: State, batches: Sequence[AnyBatch], moving: bool
) -> list[dict[str, Tensor]]:
    """The buffers that each micro-batch started from."""
    if not moving:
        return [state.buffers] * len(batches)
    buffers = [state.buffers]
    for batch in batches[:-1]:
        buffers.append(executor.losses(state.theta, buffers[-1], batch)[1])
    return buffers


def _parts(recording: Recording, block: Block, model: FinalModel | Average) -> list[slice]:
    """Cut a block into single steps, and on a GPU stacks of steps that can be one pass."""
    if not block.steps:
        return []
    # ranks exchange sums in every step, and a vjp in float16 checks whether it was finite
    is_float16 = recording.objective.precision.narrow is torch.float16
    if is_float16 or recording.reducer.size > 1 or not model.enters_once:
        return [slice(k, k + 1) for k in range(len(block.steps))]
    return cut_into_stacks(
        "reverse steps",
        recording.executor,
        recording.optimizer,
        block.states[0],
        block.steps,
        block.batches,
    )


def reverse_steps(
    recording: Recording, block: Block, part: slice, after: Derivative, hessian: bool
) -> tuple[Derivative, list[Tensor]]:
    """`reverse_step` for each step of a part. The terms of the last step come first."""
    k = part.start
    step = block.steps[k]
    if part.stop - k == 1:
        before, terms = reverse_step(
            recording,
            step,
            block.batches[k],
            block.states[k],
            block.gradients[k],
            after,
            hessian,
        )
        return before, [terms]
    stacked = State.stack(block.states[part])
    counters = block.states[k].counters

    def go_back(each: Sequence[AnyBatch], theta, slots, buffers, a_theta, a_slots, a_buffers):
        adjoint = Derivative(a_theta, a_slots, a_buffers)
        terms = []
        states = unstack_steps(State(theta, slots, buffers, counters), len(each))
        for batch, state in zip(reversed(each), reversed(states)):
            adjoint, own = reverse_step(recording, step, [batch], state, None, adjoint, hessian)
            terms.append(own)
        return torch.stack(terms[::-1]), adjoint.theta, adjoint.slots, adjoint.buffers

    terms, theta, slots, buffers = recording.executor.run(
        "reverse steps",
        go_back,
        LazyBatches(tuple(only for (only,) in block.batches[part])),
        stacked.theta,
        stacked.slots,
        stacked.buffers,
        after.theta,
        after.slots,
        after.buffers,
        key=(step.hyperparams.tobytes(), hessian),  # they are captured as they are
    )
    return Derivative(theta, slots, buffers), list(terms.flip(0))
