"""Retrace a recorded run backwards and score every training instance (Algorithm 2).

With s the state, w the instance weights and a the adjoint of the query with respect to s_{t+1}, one
reverse step (reverse_steps.py) is

    a_g, a_s   = J_t^T a, with J_t the optimizer's table at s_t    plain SGD: a_g = -eta_t a_theta
    terms_i    = c_i <a_g, grad l(z_i; theta_t)>   for i in S_t    d query / d w_i here
    score_j   -= terms_j                                           removing z_j is w_j: 1 -> 0
    a_theta    = a_s.theta + sum_i c_i H_i a_g                     the Hessian-vector product

which for plain SGD is the paper's  score_j += eta_t/|S_t| <u, g(z_j; theta_t)>,  u -= eta_t H_t u.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..distributed.rank_agreement import agree_on_derivative, check_agreement, divide_between_ranks
from ..distributed.ranks import RankReducer
from ..distributed.recording import prepare_shards, shard_recording
from ..distributed.reducer import ALONE, Reducer
from ..distributed.shard_ranks import ShardReducer
from ..distributed.shard_seed import check_can_be_asked, check_same_values, sketch_shards
from ..engine.state import Derivative, State
from ..replay.average import MODEL, Average, check_of
from ..replay.recording import Recording
from ..replay.step_range import Window, choose_window
from ..support.progress import progress_bar
from .progress_file import ProgressFile, describe_question
from .query import Query, sketch_derivative
from .reverse_steps import reverse_steps
from .score_totals import ScoreTotals
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
    sharded: bool = False,
    progress: bool = False,
    of: str = MODEL,
) -> Scores:
    """Scores of every instance for one query or many, in one pass.

    Cost: about 2-3 training steps per step; with checkpoints one more to replay it.

    Arguments:
        recording: the run.
        query: what is asked of the model.
        epochs: retrace only this many of the last epochs (the paper's approximation).
        at: ask the model after that many steps instead of the last.
        hessian: False leaves the Hessian term out; what remains is TracIn over every step.
        resume: a folder in which progress is kept from time to time. A retrace that was killed
            continues from there, to the same bits.
        group: a torch.distributed group whose ranks share the work; all of them call this, and all
            get the scores.
        sharded: let each of these ranks hold only a shard of every state and adjoint.
        progress: show a bar.
        of: MODEL, or AVERAGE for the averaged weights.

    Raises:
        Diverged: where the run magnifies every change without limit.
        DrossError: where the tape is damaged, or the model or the data have changed.
    """
    recording, ranks = _join(recording, group, sharded=sharded, resume=resume, of=of)
    window = choose_window(recording.tape, epochs=epochs, at=at)
    asked = {"query": query.name, "the steps asked for": (window.first, window.stop)}
    check_agreement(recording, ranks, asked | {"hessian": hessian, "sharded": sharded})
    average, state = _asked(recording, window, of, show=(show := progress and ranks.rank == 0))
    seed, scalar = _seed(query, recording, ranks, state)
    name = query.name if average is None else f"{query.name} of the average"
    sketch, lengths = _sketch(seed, ranks), _lengths(seed, ranks)
    file = _progress_file(resume, recording, window, hessian, name, seed)
    lag = int(recording.device.type == "cuda")  # terms are read while the next block is computed
    own_file = file if ranks.rank == 0 else None
    totals = ScoreTotals(window, len(seed.theta), len(recording.instances), own_file, lag)
    adjoint, position, enter = seed, window.stop, None
    if average is not None:  # it enters where it was averaged
        adjoint = seed.map(torch.zeros_like)
        enter = lambda a, t, seed=seed: average.enter(a, seed, t)
    if file is not None and (place := ranks.on_first(file.read)) is not None:
        position, totals.totals = place.position, place.totals
        adjoint = place.adjoint.map(lambda t: t.to(recording.device))
        recording.executor.load_choices(place.choices)  # others would round differently
    del seed  # as large as the adjoint
    recording.check_unchanged()
    if isinstance(ranks, RankReducer):
        recording = divide_between_ranks(recording, ranks, window.stop)
    bar = progress_bar("retracing", position - window.first, show=show)
    with recording.executor.training(), bar as advance:
        for block in recording.walk_backward(window.first, window.stop, position):
            handed = [_drop_vanished_buffers(adjoint, recording)]
            del adjoint  # handed over, so that it is freed after the block's last step
            adjoint, terms = reverse_steps(recording, block, handed.pop(), hessian, advance, enter)
            totals.add(block, terms, adjoint, recording.executor.choices())
            if recording.memory_limit is not None:
                totals.wait()  # until this block's states can go
            del block, terms  # before the next block is replayed
        by_epoch = totals.finish()  # [Q, E, N]
    by_epoch = by_epoch[0] if scalar else by_epoch
    return Scores(
        by_epoch.sum(-2),
        by_epoch,
        query=name,
        first_epoch=window.oldest,
        at=window.stop,
        hessian=hessian,
        details={"adjoint_growth": _growth(lengths, _lengths(adjoint, ranks))},
        query_sketch=sketch,
    )


def _join(
    recording: Recording, group: Any, *, sharded: bool, resume: Any, of: str
) -> tuple[Recording, Reducer]:
    """The recording as this rank holds it, and the ranks."""
    if sharded:
        check_can_be_asked(resume, of)
        recording = shard_recording(recording, group)
        return recording, recording.reducer
    return recording, ALONE if group is None else RankReducer(group, recording.device)


def _seed(
    query: Query, recording: Recording, ranks: Reducer, state: State
) -> tuple[Derivative, bool]:
    """The query's derivative at a state, the same for all ranks, and whether it is a scalar."""
    if isinstance(ranks, ShardReducer):
        check_same_values(query, recording, state)
        return query.derivative(recording.objective, state)
    seed, scalar = query.derivative(recording.objective, state)
    return agree_on_derivative(seed, ranks), scalar


def _sketch(seed: Derivative, ranks: Reducer) -> list[float]:
    shards = isinstance(ranks, ShardReducer)
    return sketch_shards(seed, ranks) if shards else sketch_derivative(seed)


def _asked(
    recording: Recording, window: Window, of: str, *, show: bool
) -> tuple[Average | None, State]:
    """The average if it is asked for, and the state that the query looks at."""
    if isinstance(recording.reducer, ShardReducer):
        prepare_shards(recording, window.first, window.stop, show=show)
    if not check_of(of):
        return None, recording.state_at(window.stop)
    average = recording.average()
    return average, average.state


def _progress_file(
    resume: str | os.PathLike | None,
    recording: Recording,
    window: Window,
    hessian: bool,
    name: str,
    seed: Derivative,
) -> ProgressFile | None:
    if resume is None:
        return None
    steps = (window.first, window.stop)
    question = describe_question(recording, steps, hessian, name, seed)
    return ProgressFile(Path(resume), question)


def _lengths(adjoint: Derivative, ranks: Reducer) -> Tensor:
    """The length of the adjoint of theta, for each query: [Q]."""
    if not isinstance(ranks, ShardReducer):
        return adjoint.theta.norm(dim=1)
    (squares,) = ranks.sum(adjoint.theta.square().sum(1))
    return squares.sqrt()


def _growth(before: Tensor, after: Tensor) -> float:
    """How many times longer an adjoint became on its way back; the most of all queries.

    First-order scores do not follow a run that magnifies changes a hundredfold
    (docs/results/language-models.md).
    """
    return float((after / before.clamp_min(torch.finfo(before.dtype).tiny)).max())


def _drop_vanished_buffers(adjoint: Derivative, recording: Recording) -> Derivative:
    """Leave out the adjoint of running statistics once it is smaller than rounding.

    It shrinks by 1 - momentum per step. Buffers of the model's own may have a part in every step.
    """
    if not adjoint.buffers or recording.objective.followed:
        return adjoint
    floor = torch.finfo(adjoint.theta.dtype).eps ** 3 * float(adjoint.theta.abs().max())
    alive = any(float(a.abs().max()) > floor for a in adjoint.buffers.values())
    return adjoint if alive else replace(adjoint, buffers={})
