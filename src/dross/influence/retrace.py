"""Retrace a recorded run backwards and score every training instance (Algorithm 2).

With s the state, w the instance weights and a the adjoint of the query with respect to s_{t+1}, one reverse step is

    a_g, a_s   = the optimizer's table at s_t, read by columns, at a                  for plain SGD  a_g = -eta_t a_theta
    terms_i    = c_i <a_g, grad l(z_i; theta_t)>   for i in S_t                        d query / d w_i, through this step
    score_j   -= terms_j                                                              removing z_j is w_j: 1 -> 0
    a_theta    = a_s.theta + sum_i c_i H_i a_g                                        the Hessian-vector product

which for plain SGD is the paper's  score_j += eta_t/|S_t| <u, g(z_j; theta_t)>,  u -= eta_t H_t u.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batch import AnyBatch, LazyBatch, LazyBatches
from ..errors import BadInput, NotFinite
from ..execution.streams import HostCopy
from ..parallel.ranks import ALONE, Ranks, check_agreement, divided
from ..replay import several_steps
from ..replay.recording import Recording
from ..replay.take_steps import take_step
from ..step.layout import State
from ..step.objective import Objective
from ..step.step import Derivative, Step, needs_gradient, pull
from ..support.progress import progress_bar
from .progress_file import ProgressFile, Reached, question
from .query import Query
from .scores import Scores


def retrace(
    recording: Recording,
    query: Query,
    *,
    epochs: int | None = None,
    at: int | None = None,
    hessian: bool = True,
    resume: str | os.PathLike | None = None,
    group: Any = None,
    progress: bool = False,
) -> Scores:
    """Scores of every instance for one query or many, in one pass.

    epochs: only the last so many (the paper's approximation). at: ask the model after that many steps instead of the last.
    hessian=False leaves the Hessian term out: what remains is TracIn over every step.
    resume: a folder in which the progress is kept from time to time; a retrace that was killed goes on from there, to the same bits.
    group: a torch.distributed group whose ranks share the work; all of them call this, and all get the scores.
    Cost: about 2-3 training steps per step; with checkpoints one more to replay it.
    """
    objective, ranks = recording.objective, ALONE
    stop = recording.checked_end(at)
    oldest, newest = recording.epochs_before(stop, epochs)
    first = recording.start_of(oldest)
    if group is not None:
        ranks = Ranks.of(group, recording.device)
        check_agreement(
            recording,
            ranks,
            {"query": query.name, "the steps asked for": (first, stop), "hessian": hessian},
        )
    adjoint, scalar = query.seed(objective, recording.state_at(stop))
    adjoint = _agreed(adjoint, ranks)
    totals = torch.zeros(
        newest - oldest + 1, len(adjoint.theta), len(recording.instances), dtype=torch.float64
    )
    bookmark = (
        None
        if resume is None
        else ProgressFile(resume, question(recording, (first, stop), hessian, query.name, adjoint))
    )
    position = stop
    if bookmark is not None and (found := ranks.first_does(bookmark.read)) is not None:
        place, objective.plans = found
        position, adjoint, totals = (
            place.position,
            place.adjoint.map(lambda t: t.to(recording.device)),
            place.totals,
        )

    recording.check_unchanged()
    recording = recording if group is None else divided(recording, ranks, stop)
    waiting: list[
        _Block
    ] = []  # to be counted once its end has been checked; a GPU computes the next one meanwhile
    on_gpu, bounded = (
        recording.device.type == "cuda",
        recording.tape.manifest.get("memory") is not None,
    )

    def count(block: _Block) -> None:
        block.add_to(totals, oldest)
        if bookmark is not None and ranks.rank == 0 and bookmark.due:
            bookmark.write(Reached(block.start, block.adjoint, totals), block.plans)

    with (
        objective.training(),
        progress_bar("retracing", position - first, show=progress and ranks.rank == 0) as advance,
    ):
        for index, segment in recording.backwards(first, position):
            if position < min(stop, segment.end):  # an interruption left off here
                recording.check_replay(index, segment)
            for start, states, gradients in recording.blocks(index, segment, first, position):
                adjoint = _without_spent_statistics(adjoint)
                steps = segment.steps[start - segment.first :][: len(states)]
                batches = recording.batches(start, steps)
                skipped = max(
                    0, first - start
                )  # of the oldest segment, whose first steps belong to an epoch that nobody asked for
                adjoint, terms = reverse_steps(
                    recording,
                    steps[skipped:],
                    batches[skipped:],
                    states[skipped:],
                    gradients[skipped:],
                    adjoint,
                    hessian,
                    advance,
                )
                if terms:
                    waiting.append(
                        _Block.of(start, steps[skipped:], skipped, terms, adjoint, objective.plans)
                    )
                    if bounded:
                        waiting[-1].seen.wait()  # its states go before others come
                if len(waiting) > int(on_gpu):
                    count(waiting.pop(0))
                del states, gradients  # before the next block is replayed
        for block in waiting:
            count(block)
    if bookmark is not None and ranks.rank == 0:
        bookmark.remove()
    by_epoch = totals.transpose(0, 1).numpy()  # [Q, E, N]
    values = by_epoch.sum(1)
    return Scores(
        values[0] if scalar else values,
        by_epoch[0] if scalar else by_epoch,
        query=query.name,
        first_epoch=oldest,
        at=stop,
        hessian=hessian,
    )


def reverse_steps(
    recording: Recording,
    steps: Sequence[Step],
    batches: Sequence[list[LazyBatch]],
    states: Sequence[State],
    gradients: Sequence[Tensor | None],
    adjoint: Derivative,
    hessian: bool,
    told: Callable[[int], None],
) -> tuple[Derivative, list[Tensor]]:
    """The adjoint before a row of steps, and the terms of each, the last step's first. On a GPU several steps may be one pass."""
    found: list[Tensor] = []
    if recording.ranks.size > 1:  # they talk to each other in every step
        parts = [slice(k, k + 1) for k in range(len(steps))]
    else:
        parts = (
            several_steps.cut(
                "reverse steps", recording.objective, recording.optimizer, states[0], steps, batches
            )
            if steps
            else []
        )
    for part in reversed(parts):
        k = part.start
        if part.stop - k == 1:
            adjoint, terms = reverse_step(
                recording, steps[k], batches[k], states[k], gradients[k], adjoint, hessian
            )
            found.append(terms)
        else:
            alike = LazyBatches(tuple(only for (only,) in batches[part]))
            adjoint, row = _together(recording, steps[k], alike, states[part], adjoint, hessian)
            found += list(row.flip(0))
        told(part.stop - k)
    return adjoint, found


def _together(
    recording: Recording,
    step: Step,
    batches: LazyBatches,
    states: Sequence[State],
    after: Derivative,
    hessian: bool,
) -> tuple[Derivative, Tensor]:
    def back(
        each: Sequence[AnyBatch],
        theta: Tensor,
        slots: dict,
        buffers: dict,
        a_theta: Tensor,
        a_slots: dict,
        a_buffers: dict,
        *_,
    ) -> tuple:
        adjoint, terms = Derivative(a_theta, a_slots, a_buffers), []
        before = several_steps.apart(State(theta, slots, buffers, states[0].clock), len(each))
        for batch, state in zip(reversed(each), reversed(before)):
            adjoint, part = reverse_step(recording, step, [batch], state, None, adjoint, hessian)
            terms.append(part)
        return torch.stack(terms[::-1]), adjoint.theta, adjoint.slots, adjoint.buffers

    s = State.stacked(states)
    captured = (step.numbers.tobytes(), hessian)  # as they are: they tell one graph from another
    terms, *found = recording.objective.graphs.run(
        "reverse steps",
        back,
        batches,
        s.theta,
        s.slots,
        s.buffers,
        after.theta,
        after.slots,
        after.buffers,
        *captured,
    )
    return Derivative(*found), terms


def _agreed(own: Derivative, ranks: Ranks) -> Derivative:
    """The first rank's seed, on every rank: each goes on from the same bits."""
    first = (
        ranks.first(own.map(lambda t: t.cpu())).map(lambda t: t.to(own.theta.device))
        if ranks.size > 1
        else own
    )
    tolerance = torch.finfo(own.theta.dtype).eps ** 0.5  # of rounding on another machine
    same = first.theta.shape == own.theta.shape and bool(
        (first.theta - own.theta).norm() <= tolerance * first.theta.norm()
    )
    if odd := [rank for rank, agrees in enumerate(ranks.all(same)) if not agrees]:
        raise BadInput(
            f"The query on rank {odd[0]} has another derivative than on rank 0: every rank must ask the same, of the same data."
        )
    return first


def reverse_step(
    recording: Recording,
    step: Step,
    batches: Sequence[AnyBatch],
    state: State,
    g: Tensor | None,
    after: Derivative,
    hessian: bool = True,
) -> tuple[Derivative, Tensor]:
    """The adjoint before a step, and d query / d w_i for the instances of the step in their order: [Q, |S_t|]."""
    objective, optimizer, ranks = recording.objective, recording.optimizer, recording.ranks
    if g is None:
        if needs_gradient(optimizer, step):
            _, g, _ = take_step(objective, optimizer, state, step, batches, ranks=ranks)
        else:
            g = torch.zeros_like(state.theta)  # the table does not look at it
    a_g, before = pull(optimizer, state, step, g, after)

    product, a_buffers, found = None, after.buffers, []
    buffers = (
        _buffers_before_each(objective, state, batches)
        if a_buffers
        else [state.buffers] * len(batches)
    )
    for piece in reversed(ranks.share(batches)):
        k, _, batch = piece
        terms, a_part, a_buffers = objective.pull(
            state.theta, buffers[k], batch, a_g, a_buffers, hessian
        )
        found.append((piece, terms))
        product = a_part if product is None else product + a_part
    merged = ranks.terms(found[::-1], batches, before.theta)
    if hessian:
        product, merged = ranks.total(
            torch.zeros_like(before.theta) if product is None else product, merged
        )
        before = replace(before, theta=before.theta + product)
    else:
        (merged,) = ranks.total(merged)
    return replace(before, buffers=a_buffers), merged


def _buffers_before_each(
    objective: Objective, state: State, batches: Sequence[AnyBatch]
) -> list[dict[str, Tensor]]:
    """The buffers that each micro-batch started from."""
    buffers = [state.buffers]
    with torch.no_grad():
        for batch in batches[:-1]:
            buffers.append(objective.losses(state.theta, buffers[-1], batch)[1])
    return buffers


def _without_spent_statistics(adjoint: Derivative) -> Derivative:
    """The adjoint of a running statistic shrinks by 1 - momentum per step. Once it is beyond rounding, it is left out."""
    floor = (
        torch.finfo(adjoint.theta.dtype).eps ** 3 * float(adjoint.theta.abs().max())
        if adjoint.buffers
        else 0.0
    )
    alive = any(float(a.abs().max()) > floor for a in adjoint.buffers.values())
    return adjoint if alive else replace(adjoint, buffers={})


@dataclass(frozen=True)
class _Block:
    """A row of steps that has been retraced: what it adds to the scores, and the adjoint before its first step, number `start`."""

    start: int
    numbered: list[tuple[int, Step]]  # the last step first
    seen: HostCopy
    adjoint: Derivative
    plans: dict[int, tuple[bool, int]]  # how it was computed

    @staticmethod
    def of(
        start: int,
        steps: Sequence[Step],
        skipped: int,
        terms: Sequence[Tensor],
        adjoint: Derivative,
        plans: dict[int, tuple[bool, int]],
    ) -> "_Block":
        numbered = list(enumerate(steps, start=start + skipped))[::-1]
        whole = torch.isfinite(adjoint.theta).all()
        seen = HostCopy({"terms": torch.cat([*terms], dim=1).detach().double(), "whole": whole})
        return _Block(start, numbered, seen, adjoint, dict(plans))

    def add_to(self, totals: Tensor, oldest: int) -> None:
        """totals [E, Q, N] -= terms [Q, |S_t|] of each step, in float64; an instance may stand in a batch several times."""
        seen = self.seen.wait()
        each = seen["terms"].split([len(step.ids) for _, step in self.numbered], dim=1)
        if not bool(torch.isfinite(seen["terms"]).all()):
            raise _not_finite(
                next(
                    t
                    for (t, _), terms in zip(self.numbered, each)
                    if not bool(torch.isfinite(terms).all())
                )
            )
        for epoch, part in groupby(zip(self.numbered, each), lambda item: item[0][1].epoch):
            steps, terms = zip(*part)
            ids = np.concatenate([step.ids for _, step in steps])
            totals[epoch - oldest].index_add_(
                1, torch.from_numpy(ids), torch.cat(terms, dim=1), alpha=-1
            )
        if not bool(seen["whole"]):
            raise _not_finite(self.numbered[-1][0])


def _not_finite(t: int) -> NotFinite:
    return NotFinite(
        f"The adjoint is no longer finite at step {t}: going back from there, the run magnifies every change without "
        "limit. Retrace fewer epochs (epochs=1), train with a smaller rate, or use float64.",
        step=t,
    )
