"""Retrace a recorded run backwards and score every training instance (Algorithm 2).

With s the state, w the instance weights and a the adjoint of the query with respect to s_{t+1}, one
reverse step (reverse_steps.py) is

    a_g, a_s   = J_t^T a, with J_t the optimizer's table at s_t    plain SGD: a_g = -eta_t a_theta
    terms_i    = c_i <a_g, grad l(z_i; theta_t)>   for i in S_t    d query / d w_i here
    score_j   -= terms_j                                           removing z_j is w_j: 1 -> 0
    a_theta    = a_s.theta + sum_i c_i H_i a_g                     the Hessian-vector product

which for plain SGD is the paper's  score_j += eta_t/|S_t| <u, g(z_j; theta_t)>,  u -= eta_t H_t u.

The adjoint of a training step, and of several in a row.

The sums that become scores: one place for the totals and for the progress file.

How far a retrace has come: one that was killed continues from there.

    folder/retrace-3f2a90c41b77d05e.safetensors     the adjoint, the totals, and their step

The name is a digest of everything that the scores depend on: the tape's segments, the part of them
that is retraced, and the query. A query is known by its derivative at the model, which is all that
a retrace uses of it. So one folder holds the progress of many questions without mixing them up. A
file is written whole or not at all, and removed when the scores are finished.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from .._checks import check_folder
from .._io import delete_stale, write_bytes
from .._progress import progress_bar
from ..data.batch import AnyBatch, LazyBatches
from ..data.fingerprint import digest_tensors
from ..distributed.gather import prepare_shards, shard_recording
from ..distributed.ranks import (
    ALONE,
    RankReducer,
    Reducer,
    agree_on_derivative,
    check_agreement,
    divide_between_ranks,
)
from ..distributed.shards import ShardReducer
from ..engine.device import HostCopy
from ..engine.executor import Executor
from ..engine.state import Derivative, State
from ..engine.step import (
    Step,
    group_steps,
    needs_gradient,
    pull,
    sum_over_batches,
    take_step,
    unstack_steps,
)
from ..errors import CorruptFile, Diverged, DrossError, InvalidInput
from ..replay.recording import MODEL, Average, Recording, check_of
from ..replay.schedule import Window, choose_window
from ..replay.segments import Block
from ..tape.reader import read_metadata
from ..tape.storage import is_url
from .query import Query, sketch_derivative
from .scores import Scores
from .shard_seed import check_can_be_asked, check_same_values, sketch_shards


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
) -> "ProgressFile | None":
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

    It shrinks by 1 - momentum per step.
    """
    if not adjoint.buffers:
        return adjoint
    floor = torch.finfo(adjoint.theta.dtype).eps ** 3 * float(adjoint.theta.abs().max())
    alive = any(float(a.abs().max()) > floor for a in adjoint.buffers.values())
    return adjoint if alive else replace(adjoint, buffers={})


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
        g: the raw gradient [p] where it is known; computed here where the update's derivative
            depends on it.
        after: the adjoint after the step.
        hessian: False leaves the Hessian-vector product out.
    """
    executor, optimizer, reducer = recording.executor, recording.optimizer, recording.reducer
    if g is None and needs_gradient(optimizer, step):
        _, g, _ = take_step(executor, optimizer, state, step, batches, reducer=reducer)
    g = torch.zeros_like(state.theta) if g is None else g  # the update's table does not look at it
    a_g, before = pull(optimizer, state, step, g, after)

    found = []
    buffers = _buffers_before_each(executor, state, batches, bool(after.buffers))

    def pull_batch(piece, a_buffers: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        k, _, batch = piece
        given = (state.theta, buffers[k], batch.scaled(step.scale), a_g, a_buffers, hessian)
        terms, product, a_buffers = executor.pull(*given)
        found.append((piece, terms))
        return product, a_buffers

    pieces = reversed(reducer.own_part(batches))
    product, a_buffers = sum_over_batches(pieces, after.buffers, pull_batch, before.theta)
    terms = reducer.merge_terms(found[::-1], batches, before.theta)
    if hessian:
        product, terms = reducer.sum_over_theta(product, terms)
        before = replace(before, theta=before.theta + product)
    else:
        (terms,) = reducer.sum(terms)
    return replace(before, buffers=a_buffers), terms


def reverse_steps(
    recording: Recording,
    block: Block,
    adjoint: Derivative,
    hessian: bool,
    advance: Callable[[int], None],
    enter: Callable[[Derivative, int], Derivative] | None = None,
) -> tuple[Derivative, list[Tensor]]:
    """The adjoint before a block of steps, and the terms of each step, the last step's first.

    On a GPU several steps may be one pass.

    Arguments:
        recording: the run.
        block: the steps, with the state before each.
        adjoint: after the last of them.
        hessian: False leaves the Hessian-vector product out.
        advance: is called with the number of steps done.
        enter: (adjoint, t) -> the adjoint after t steps, where a query also asks the state there.
    """
    found: list[Tensor] = []
    for part in reversed(_parts(recording, block, alone=enter is not None)):
        k = part.start
        if enter is not None:
            adjoint = enter(adjoint, block.first + part.stop)
        if part.stop - k == 1:
            given = (block.steps[k], block.batches[k], block.states[k], block.gradients[k])
            adjoint, terms = reverse_step(recording, *given, adjoint, hessian)
            found.append(terms)
        else:
            alike = LazyBatches(tuple(only for (only,) in block.batches[part]))
            given = (block.steps[k], alike, block.states[part])
            adjoint, rows = _reverse_together(recording, *given, adjoint, hessian)
            found += list(rows.flip(0))
        advance(part.stop - k)
    return adjoint, found


def _parts(recording: Recording, block: Block, *, alone: bool) -> list[slice]:
    if not block.steps:
        return []
    # ranks exchange sums in every step, and a pull in float16 checks whether it was finite
    looks = recording.objective.precision.narrow is torch.float16
    if alone or recording.reducer.size > 1 or looks:
        return [slice(k, k + 1) for k in range(len(block.steps))]
    given = (recording.executor, recording.optimizer, block.states[0], block.steps, block.batches)
    return group_steps("reverse steps", *given)


def _reverse_together(
    recording: Recording,
    step: Step,
    batches: LazyBatches,
    states: Sequence[State],
    after: Derivative,
    hessian: bool,
) -> tuple[Derivative, Tensor]:
    """Several steps that are alike as one pass: the adjoint before them, terms [steps, Q, B]."""
    clock = states[0].clock

    def go_back(each: Sequence[AnyBatch], theta, slots, buffers, a_theta, a_slots, a_buffers, *_):
        adjoint, terms = Derivative(a_theta, a_slots, a_buffers), []
        before = unstack_steps(State(theta, slots, buffers, clock), len(each))
        for batch, state in zip(reversed(each), reversed(before)):
            adjoint, part = reverse_step(recording, step, [batch], state, None, adjoint, hessian)
            terms.append(part)
        return torch.stack(terms[::-1]), adjoint.theta, adjoint.slots, adjoint.buffers

    s = State.stack(states)
    # the numbers are captured as they are: as arguments, they tell one graph from another
    captured = (step.numbers.tobytes(), hessian)
    given = (s.theta, s.slots, s.buffers, after.theta, after.slots, after.buffers, *captured)
    terms, *parts = recording.executor.run("reverse steps", go_back, batches, *given)
    return Derivative(*parts), terms


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


class ScoreTotals:
    """totals [E, Q, N] -= d query / d w_i of every step, in float64.

    A GPU's results are read one block late, while it computes the next block. Progress is saved
    only for blocks that were checked.
    """

    def __init__(
        self, window: Window, queries: int, instances: int, file: "ProgressFile | None", lag: int
    ):
        """lag: how many blocks may wait before they are read."""
        self.window, self.file, self.lag = window, file, lag
        self.totals = torch.zeros(window.epochs, queries, instances, dtype=torch.float64)
        self._waiting: list[_Terms] = []

    def add(
        self, block: Block, terms: Sequence[Tensor], adjoint: Derivative, choices: dict
    ) -> None:
        """Add a block's terms, the last step's first.

        Arguments:
            block: its steps.
            terms: [Q, |S_t|] for each step.
            adjoint: before the block's first step.
            choices: how it was computed; another way rounds differently.
        """
        if terms:
            self._waiting.append(_Terms.send(block, terms, adjoint, choices))
        while len(self._waiting) > self.lag:
            self._count(self._waiting.pop(0))

    def wait(self) -> None:
        """Wait until the last block is computed: its states are freed before others are made."""
        if self._waiting:
            self._waiting[-1].sent.wait()

    def finish(self) -> np.ndarray:
        """The scores by epoch, once all blocks are counted: float64 [Q, E, N]."""
        while self._waiting:
            self._count(self._waiting.pop(0))
        if self.file is not None:
            self.file.remove()
        return self.totals.transpose(0, 1).numpy()

    def _count(self, terms: "_Terms") -> None:
        terms.add_to(self.totals, self.window.oldest)
        if self.file is not None and self.file.due:
            self.file.write(Place(terms.first, terms.adjoint, self.totals, terms.choices))


@dataclass(frozen=True)
class _Terms:
    """What a block adds to the scores, on its way to the host."""

    first: int  # the number of the block's first step
    numbered: list[tuple[int, Step]]  # the last step first
    sent: HostCopy
    adjoint: Derivative  # before the block's first step
    choices: dict

    @staticmethod
    def send(block: Block, terms: Sequence[Tensor], adjoint: Derivative, choices: dict) -> "_Terms":
        numbered = list(enumerate(block.steps, start=block.first))[::-1]
        finite = torch.isfinite(adjoint.theta).all()
        together = torch.cat([*terms], dim=1).detach().double()
        sent = HostCopy({"terms": together, "finite": finite})
        return _Terms(block.first, numbered, sent, adjoint, choices)

    def add_to(self, totals: Tensor, oldest: int) -> None:
        """Add the terms at their instances; one may be in a batch several times."""
        seen = self.sent.wait()
        by_step = seen["terms"].split([len(step.ids) for _, step in self.numbered], dim=1)
        if not bool(torch.isfinite(seen["terms"]).all()):
            pairs = zip(self.numbered, by_step)
            raise _not_finite(next(t for (t, _), x in pairs if not bool(torch.isfinite(x).all())))
        for epoch, part in groupby(zip(self.numbered, by_step), lambda item: item[0][1].epoch):
            numbered, terms = zip(*part)
            ids = torch.from_numpy(np.concatenate([step.ids for _, step in numbered]))
            totals[epoch - oldest].index_add_(1, ids, torch.cat(terms, dim=1), alpha=-1)
        if not bool(seen["finite"]):
            raise _not_finite(self.numbered[-1][0])


def _not_finite(t: int) -> Diverged:
    return Diverged(
        f"The adjoint is no longer finite at step {t}: going back from there, the run magnifies "
        "every change without limit. Retrace fewer epochs (epochs=1), train with a smaller rate, "
        "or use float64.",
        step=t,
    )


_SECONDS_BETWEEN_WRITES = 30.0  # the work that a kill may cost
_MIN_TIMES_OF_WRITING = 20  # at most 1/20 of the time goes into writing, however large the file


@dataclass(frozen=True)
class Place:
    """Where a retrace is."""

    position: int  # every step from this one on has been retraced
    adjoint: Derivative  # d query / d the state before that step
    totals: Tensor  # [E, Q, N]: the scores so far
    choices: dict  # how it is computed (Executor.choices); another way rounds differently


class ProgressFile:
    """The place of one retrace, kept in a folder."""

    def __init__(self, folder: Path, question: dict):
        digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"retrace-{digest[:16]}.safetensors"
        self._next = time.monotonic() + _SECONDS_BETWEEN_WRITES

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() >= self._next

    def write(self, place: Place) -> None:
        """Replace what was kept before."""
        began = time.monotonic()
        tensors = {"totals": place.totals, **place.adjoint.tensors()}
        tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        about = {
            "position": place.position,
            "names": list(tensors),
            "digest": digest_tensors(tensors),
            "choices": place.choices,
        }
        write_bytes(self.path, save(tensors, {"dross": json.dumps(about)}))
        now = time.monotonic()
        self._next = now + max(_SECONDS_BETWEEN_WRITES, _MIN_TIMES_OF_WRITING * (now - began))

    def read(self) -> Place | None:
        """What an earlier retrace of the same question left, if one was interrupted."""
        delete_stale(self.path.parent, lambda name: name.startswith("retrace-"))
        try:
            raw = self.path.read_bytes()
            tensors, about = load(raw), json.loads(read_metadata(raw)["dross"])
            # in the order they were written in, because sums round by their order, and copied to
            # memory of torch's own alignment
            tensors = {name: tensors[name].clone() for name in about["names"]}
            if digest_tensors(tensors) != about["digest"]:
                raise CorruptFile("its digest differs")
            adjoint = Derivative.from_tensors(tensors)
            choices = about["choices"] if "choices" in about else {"pulls": about["plans"]}
            pulls = [[size, [forward, count]] for size, (forward, count) in choices["pulls"]]
            cuts = [[name, size, rows] for name, size, rows in choices.get("cuts", [])]
            choices = {"pulls": pulls, "cuts": cuts}
            return Place(about["position"], adjoint, tensors["totals"], choices)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DrossError(f"{self.path} cannot be read: {error.strerror}.") from error
        except (CorruptFile, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CorruptFile(
                f"{self.path} is damaged ({error}). Remove it to retrace from the beginning."
            ) from None

    def remove(self) -> None:
        """Remove the file once the scores are finished, and temporary ones that a kill left."""
        for path in [self.path, *self.path.parent.glob(f".{self.path.name}.*")]:
            path.unlink(missing_ok=True)


def progress_folder(resume: str | os.PathLike | bool | None, tape: Path | str) -> Path | None:
    """The folder that progress is kept in, from the `resume` argument of `Run.influence`."""
    if resume is None or resume is False:
        return None
    if resume is not True:
        return Path(check_folder(resume, "resume"))
    if is_url(tape):
        raise InvalidInput(
            f"resume=True keeps progress in the tape's folder, but {tape} can only be read. Give "
            "a folder: resume='folder'."
        )
    return Path(tape)


def describe_question(
    recording: Recording, window: tuple[int, int], hessian: bool, name: str, seed: Derivative
) -> dict:
    """All that the bits of the scores depend on.

    The number of ranks is not part of it: a job may continue with fewer.
    """
    first, stop = window
    tape = recording.tape
    digests = [entry.sha256 for entry in tape.entries if entry.first < stop]
    return {
        "tape": [tape.manifest.id, *digests],
        "steps": [first, stop],
        "hessian": hessian,
        "query": [name, digest_tensors(seed.tensors())],
        "torch": torch.__version__,
        "device": recording.device.type,
    }
