"""Scores per token: a recorded run in which every labeled token is its own instance.

The loss of an example is the sum of the losses of its tokens, so the weight of an example is that
of each of its tokens, and

    score of token (i, k)  =  - d query / d w_ik,        score of i  =  sum over k of them.

A retrace computes one term per loss that the objective returns. So the same tape is retraced with
losses per token, and each step's ids are those of the tokens: example i has the ids
starts[i] .. starts[i+1] - 1. Nothing else changes, and it costs about the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...data.batch import MicroBatch
from ...data.dataset import Collated, Instances
from ...engine.executor import Executor
from ...errors import InvalidInput
from ...influence.query import Query
from ...influence.run import Run
from ...tape.format import Segment
from ...tape.reader import Tape
from .losses import InstanceLosses


@dataclass(frozen=True)
class TokenRun:
    """A recorded run whose scores are per token.

    trainer.recorded_run(per_token=True).influence(query)[7]      # the tokens of example 7
    """

    run: Run  # its instances are tokens
    starts: np.ndarray  # int64 [N + 1]: where each example's tokens begin

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.starts) - 1

    def influence(self, query: Query, **options: Any) -> list[np.ndarray]:
        """The scores of each example's labeled tokens, in their order.

        The k-th number of an example belongs to its k-th label that is not ignored. They add up to
        its score. In a causal model the first label is not a target and does not count.

        Arguments:
            query: as for `Run.influence`; one number.
            options: as for `Run.influence`.
        """
        values = self.run.influence(query, **options).values
        return np.split(values, self.starts[1:-1], axis=-1)


def per_token(run: Run) -> TokenRun:
    """The run with tokens as instances.

    Arguments:
        run: of a language model or a token classifier, as `recorded_run` returns it.

    Raises:
        InvalidInput: if examples have no losses per token.
    """
    recording = run.recording
    losses = recording.objective.loss
    source = recording.instances.source
    if not isinstance(losses, InstanceLosses) or not isinstance(source, Collated):
        raise InvalidInput("Per-token scores require a run of a model that has one loss per token.")
    losses = losses.token_by_token()
    counts = [int(losses.slots(source.collate([i])[1])[0]) for i in range(len(source))]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    tokens = replace(
        recording,
        tape=_TokenTape(recording.tape, starts),
        executor=Executor(replace(recording.objective, loss=losses)),
        instances=Instances(
            _Tokens(source, starts),
            recording.instances.device,
            recording.instances.dtype,
        ),
    )
    return TokenRun(replace(run, recording=tokens), starts)


class _Tokens(Collated):
    """A dataset of tokens: those of an example come together, and give the example's batch."""

    def __init__(self, source: Collated, starts: np.ndarray):
        super().__init__(source.dataset, source.collate_fn, source.split)
        self.starts = starts

    def __len__(self) -> int:
        return int(self.starts[-1])

    def fetch(self, ids: Iterable[int]) -> list[Any]:
        """The examples whose first tokens are among the ids, in this order."""
        ids = np.asarray(list(ids))
        examples = np.searchsorted(self.starts, ids, side="right") - 1
        return super().fetch(examples[ids == self.starts[examples]])


class _TokenTape(Tape):
    """A tape whose steps are made of tokens."""

    def __init__(self, tape: Tape, starts: np.ndarray):
        self.__dict__.update(tape.__dict__)
        self.starts = starts

    def read(self, index: int) -> Segment:
        """The segment, with the tokens of each example in its place."""
        segment = super().read(index)
        steps = [
            replace(step, micros=tuple(self._expand(micro) for micro in step.micros))
            for step in segment.steps
        ]
        return replace(segment, steps=steps)

    def _expand(self, micro: MicroBatch) -> MicroBatch:
        first = self.starts[micro.ids]
        last = self.starts[micro.ids + 1]
        ids = np.concatenate([np.arange(start, end) for start, end in zip(first, last)])
        return MicroBatch(ids, np.repeat(micro.weights, last - first))
