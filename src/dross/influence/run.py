"""A recorded run and everything that can be asked of it."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.batch import Augment
from ..errors import BadInput, DrossWarning
from ..replay.recording import Recording
from ..step.objective import Penalty
from ..tape.reader import Tape
from .counterfactual import Counterfactual, counterfactual, leave_one_out
from .forward_influence import ParameterInfluence, parameter_influence
from .query import Query, as_query
from .retrace import retrace
from .scores import Scores
from .verification import Verification, choose, compare


@dataclass(frozen=True)
class Run:
    """Made by `dross.train`, by a `Recorder`, or from a tape with `Run.open`."""

    recording: Recording
    progress: bool = True

    @staticmethod
    def open(
        tape: str | os.PathLike,
        model: torch.nn.Module,
        train_set: Any,
        loss: Any,
        penalty: Penalty | None = None,
        augment: Augment | None = None,
        *,
        progress: bool = True,
    ) -> "Run":
        """A run recorded earlier, perhaps by another process. The model's own weights do not matter; frozen ones must be there.

        tape: its folder, or a URL of a copy in object storage ("s3://bucket/run"), from which only what is needed is fetched.
        """
        recording = Recording.open(tape, model, train_set, loss, penalty, augment)
        opened = recording.tape
        if not opened.complete:
            warnings.warn(
                f"The tape at {tape} is not complete: it holds {_so_far(opened)}. Scores are of the model at that point; "
                "continue the run with resume=True.",
                DrossWarning,
                stacklevel=2,
            )
        return Run(recording, progress)

    @property
    def tape(self) -> Path | str:
        """The folder that the run was recorded in, or the URL that it is read from."""
        return self.recording.tape.storage.address

    @property
    def steps(self) -> int:
        """How many steps the run has taken."""
        return self.recording.tape.steps

    @property
    def complete(self) -> bool:
        return self.recording.tape.complete

    def __len__(self) -> int:
        return len(self.recording.instances)

    def __repr__(self) -> str:
        made = self.recording.tape.manifest
        what = (
            f"{made['model']['class']} with {made['optimizer']['name']} on {len(self):,} instances"
        )
        return f"<Run of {what}: {_so_far(self.recording.tape)}>"

    def evaluate(self, query: Query, *, at: int | None = None) -> np.ndarray:
        """The query's value at the trained model, or at the model after `at` steps."""
        state = self.recording.state_at(self.steps if at is None else at)
        return as_query(query).evaluate(self.recording.objective, state).cpu().numpy()

    def parameters(self, at: int | None = None) -> dict[str, torch.Tensor]:
        """The parameters after the last step, or after `at` steps."""
        return self.recording.objective.layout.unflatten(
            self.recording.state_at(self.steps if at is None else at).theta
        )

    def influence(
        self,
        query: Query,
        *,
        epochs: int | None = None,
        at: int | None = None,
        resume: str | os.PathLike | None = None,
        group: Any = None,
    ) -> Scores:
        """The estimated change of the query without each training instance (Algorithm 2).

        epochs: retrace only the last so many. at: ask the model after that many steps instead of the last.
        resume: a folder (the tape's own will do) in which the progress is kept every half minute. The same call after a crash goes on
        from there and gives the same bits; the file is removed when the scores are there.
        group: a torch.distributed group whose ranks share the work (docs/scale.md). Each of them makes this call and gets the scores.
        """
        asked = as_query(query)
        return retrace(
            self.recording,
            asked,
            epochs=epochs,
            at=at,
            resume=resume,
            group=group,
            progress=self.progress,
        )

    def parameter_influence(self, instances: Any) -> ParameterInfluence:
        """The SGD-influence itself: the estimated theta_-j - theta, per parameter, for the given instances."""
        return parameter_influence(self.recording, self._ids(instances), progress=self.progress)

    def counterfactual(
        self,
        groups: Any,
        *,
        absent: str = "weight",
        epochs: int | None = None,
        n_jobs: int | None = None,
        folder: str | os.PathLike | None = None,
    ) -> Counterfactual:
        """Train again with each group of ids absent. epochs: only the last so many are run without them.

        absent: "weight" (weight 0 in the loss; what scores differentiate) or "batch" (gone from the batch and from
        BatchNorm's statistics as well; what training on the cleansed data does).

        n_jobs, or a joblib.parallel_config around the call, spreads the runs over processes or a cluster; every worker opens the
        tape. folder: keep what is done there, and go on from it when the same call is given again.
        """
        window = self._window(epochs, self.steps)
        return counterfactual(
            self.recording,
            groups,
            window=window,
            absent=absent,
            progress=self.progress,
            n_jobs=n_jobs,
            folder=folder,
        )

    def leave_one_out(
        self,
        query: Query,
        instances: Any = None,
        *,
        absent: str = "weight",
        epochs: int | None = None,
        at: int | None = None,
        n_jobs: int | None = None,
        folder: str | os.PathLike | None = None,
    ) -> np.ndarray:
        """The true change of the query without each instance (all of them by default): float64 [K], or [Q, K].

        n_jobs and folder as for `counterfactual`.
        """
        ids = np.arange(len(self)) if instances is None else self._ids(instances)
        window = self._window(epochs, self.recording.checked_end(at))
        return leave_one_out(
            self.recording,
            as_query(query),
            ids,
            window=window,
            absent=absent,
            progress=self.progress,
            n_jobs=n_jobs,
            folder=folder,
        )

    def verify(
        self, scores: Scores, query: Query, instances: Any = None, n: int = 64
    ) -> Verification:
        """Check scores against real counterfactual runs: of `instances`, or of the extremes and a random sample, n in all."""
        if not isinstance(scores, Scores):
            raise BadInput(
                f"verify takes the Scores of this run and the query they are of, not a {type(scores).__name__}."
            )
        if scores.query != as_query(query).name:
            raise BadInput(
                f"These are the scores of {scores.query}, not of {query.name}: pass the query they were computed for."
            )
        if len(scores) != len(self):
            raise BadInput(
                f"These are the scores of {len(scores)} instances; the run has {len(self)}."
            )
        ids = choose(scores, n) if instances is None else self._ids(instances)
        epochs = self.recording.epochs_before(scores.at, None)[1] - scores.first_epoch + 1
        actual = self.leave_one_out(query, ids, epochs=epochs, at=scores.at)
        if actual.shape != scores.values[..., ids].shape:
            raise BadInput(
                f"The query has {actual.shape[:-1]} values and the scores {scores.values.shape[:-1]}: they belong to other data."
            )
        return compare(ids, scores.values[..., ids], actual)

    def _ids(self, instances: Any) -> np.ndarray:
        ids = self.recording.instances.check(instances)
        if len(ids) == 0:
            raise BadInput("Pass at least one instance id.")
        return ids

    def _window(self, epochs: int | None, stop: int) -> tuple[int, int]:
        oldest, _ = self.recording.epochs_before(stop, epochs)
        return (self.recording.start_of(oldest), stop)


def _so_far(tape: Tape) -> str:
    planned = tape.manifest["planned"]
    kept = "" if tape.first == 0 else f", of which the tape keeps those from {tape.first} on"
    return (
        f"{tape.steps:,} steps{kept}"
        if planned in (None, tape.steps)
        else f"{tape.steps:,} of {planned:,} planned steps{kept}"
    )
