"""A recorded run and everything that can be asked of it."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._progress import report
from .._text import named_values, say_count
from ..data.batch import Augment
from ..engine.objective import Penalty
from ..engine.state import State
from ..errors import DrossWarning, InvalidInput
from ..replay.recording import MODEL, Recording, check_of
from ..replay.schedule import choose_window
from ..tape.reader import describe_tape
from .counterfactual import Counterfactual, HowToRun, counterfactual, leave_one_out
from .forward import ParameterInfluence, parameter_influence
from .plan import RetracePlan, make_plan
from .query import Query, as_query
from .retrace import progress_folder, retrace
from .scores import Scores
from .verify import Verification, check_scores, choose, compare


@dataclass(frozen=True)
class Run:
    """A recorded run, and what can be asked of it.

        scores = run.influence(dross.mean_loss((X_val, y_val)))
        scores.most_harmful(10)
        run.verify(scores, dross.mean_loss((X_val, y_val)))

    Made by `dross.train`, by a `Recorder`, or from a tape with `dross.load`. N = len(run) is its
    number of training instances; an instance's id is its index.
    """

    recording: Recording
    progress: bool = True

    @property
    def path(self) -> Path | str:
        """The folder that the run was recorded in, or the URL that it is read from."""
        return self.recording.tape.storage.address

    @property
    def steps(self) -> int:
        """How many steps the run has taken."""
        return self.recording.tape.steps

    @property
    def complete(self) -> bool:
        """Whether the recording went to its end."""
        return self.recording.tape.complete

    def __len__(self) -> int:
        return len(self.recording.instances)

    def __repr__(self) -> str:
        tape = self.recording.tape
        names = f"{tape.manifest.model.name} with {tape.manifest.optimizer.name}"
        return f"<Run of {names} on {len(self):,} instances: {tape.length}>"

    def _repr_html_(self) -> str:
        """In a notebook: what was trained, how far it got, and what the tape keeps."""
        return named_values(describe_tape(self.recording.tape) | {"path": self.path})

    def evaluate(self, query: Query, *, at: int | None = None, of: str = MODEL) -> np.ndarray:
        """The query's value at the trained model.

        Arguments:
            query: made by dross.mean_loss, expected_error, losses, outputs or query.
            at: ask the model after that many steps instead of the last.
            of: "average" asks the averaged weights (`Recorder.average`) instead of the model.

        Returns:
            float64 [], or [Q] for a query of Q values.

        Raises:
            InvalidInput: where the query does not fit the model, or the tape does not hold that step.
        """
        state = self._asked(of, at)
        return as_query(query).evaluate(self.recording.objective, state).cpu().numpy()

    def parameters(self, at: int | None = None) -> dict[str, torch.Tensor]:
        """The parameters of the trained model.

        Arguments:
            at: after that many steps instead of the last.

        Returns:
            A dict of name -> tensor.

        Raises:
            InvalidInput: where the tape does not hold that step.
        """
        state = self.recording.state_at(self.steps if at is None else at)
        return self.recording.objective.layout.unflatten(state.theta)

    def influence(
        self,
        query: Query,
        *,
        epochs: int | None = None,
        at: int | None = None,
        resume: str | os.PathLike | bool | None = None,
        group: Any = None,
        sharded: bool = False,
        of: str = MODEL,
    ) -> Scores:
        """The estimated change of the query without each training instance (Algorithm 2).

            scores = run.influence(dross.mean_loss((X_val, y_val)))
            scores.most_harmful(10)

        Arguments:
            query: made by dross.mean_loss, expected_error, losses, outputs or query.
            epochs: retrace only this many of the last epochs.
            at: ask the model after that many steps instead of the last.
            resume: where progress is kept every half minute: a folder, or True for the tape's own.
                The same call after a crash continues from there and gives the same bits; the file
                is removed when the scores are finished.
            group: a torch.distributed group whose ranks share the work (docs/scale.md). Each of
                them makes this call and gets the scores.
            sharded: let each of these ranks hold only its shard of the states, of the optimizer's
                memory and of the adjoint, as `fully_shard` does in training (docs/scale.md).
            of: "average" asks the averaged weights (`Recorder.average`) instead of the model.

        Returns:
            Scores: float64 [N] for a scalar query, [Q, N] for one of Q values.

        Raises:
            InvalidInput: where the query does not fit the model, the tape does not hold those epochs,
                or resume=True and the tape is read from a URL.
            NotSupported: where the run cannot be held in shards.
            Diverged: where the run magnifies every change without limit.
            DrossError: where the tape is damaged, or the model or the data have changed.
        """
        self._check_at(of, at)
        scores = retrace(
            self.recording,
            as_query(query),
            epochs=epochs,
            at=at,
            resume=progress_folder(resume, self.path),
            group=group,
            sharded=sharded,
            progress=self.progress,
            of=of,
        )
        report({f"scores/{name}": value for name, value in scores.summary().items()}, scores.at)
        return scores

    def plan(self, query: Query, *, epochs: int | None = None) -> RetracePlan:
        """The time, memory and disk that `influence` would take. One step is measured.

            print(run.plan(query))

        Arguments:
            query: as for `influence`.
            epochs: retrace only this many of the last epochs.

        Raises:
            InvalidInput: where the query does not fit the model.
        """
        window = choose_window(self.recording.tape, epochs=epochs)
        return make_plan(self.recording, max(1, self.evaluate(query).size), window)

    def _asked(self, of: str, at: int | None) -> State:
        """The state that is asked."""
        self._check_at(of, at)
        if check_of(of):
            return self.recording.average().state
        return self.recording.state_at(self.steps if at is None else at)

    def _check_at(self, of: str, at: int | None) -> None:
        if check_of(of) and at not in (None, self.steps):
            raise InvalidInput("The average is known only at the end of the run: leave `at` out.")

    def parameter_influence(self, instances: Any) -> ParameterInfluence:
        """The SGD-influence itself: the estimated theta_-j - theta, per parameter.

            run.parameter_influence([3, 7])["0.weight"]      # [2, *shape of the weight]

        Arguments:
            instances: the ids of J instances.

        Returns:
            A mapping from each parameter's name to [J, *shape].

        Raises:
            InvalidInput: where there are no ids, or they name instances that do not exist.
            DrossError: where the tape is damaged, or the model or the data have changed.
        """
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
        """Train again with each group of instances absent.

        Arguments:
            groups: a list with one list of ids per run.
            absent: "weight" (weight 0 in the loss; what scores differentiate) or "batch" (gone from
                the batch and from BatchNorm's statistics as well; what training on the cleansed
                data does).
            epochs: the groups are absent from only this many of the last epochs.
            n_jobs: spread the runs over processes; -1 is one per core. A joblib.parallel_config
                around the call does the same, over a cluster as well. Every worker opens the tape.
            folder: keep finished runs there; the same call continues with them later.

        Returns:
            The models, one per group.

        Raises:
            InvalidInput: where groups are empty or name instances that do not exist.
            Diverged: where a run without its group diverges.
        """
        window = choose_window(self.recording.tape, epochs=epochs)
        how = HowToRun(self.progress, n_jobs, folder)
        steps = (window.first, window.stop)
        return counterfactual(self.recording, groups, steps, absent, how)

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
        of: str = MODEL,
    ) -> np.ndarray:
        """The true change of the query without each instance.

        Arguments:
            query: made by dross.mean_loss, expected_error, losses, outputs or query.
            instances: the ids of K instances; all of them by default.
            at: ask the model after that many steps instead of the last.
            absent, epochs, n_jobs, folder: as for `counterfactual`.
            of: "average" asks the averaged weights (`Recorder.average`) instead of the model.

        Returns:
            float64 [K], or [Q, K] for a query of Q values.

        Raises:
            InvalidInput: where the query does not fit the model, or instances do not exist.
            Diverged: where a run without its instance diverges.
        """
        ids = np.arange(len(self)) if instances is None else self._ids(instances)
        window = choose_window(self.recording.tape, epochs=epochs, at=at)
        how = HowToRun(self.progress, n_jobs, folder)
        self._check_at(of, at)
        steps = (window.first, window.stop)
        return leave_one_out(self.recording, as_query(query), ids, steps, absent, how, of)

    def verify(
        self,
        scores: Scores,
        query: Query,
        instances: Any = None,
        n: int = 64,
        *,
        of: str = MODEL,
    ) -> Verification:
        """Check scores against real counterfactual runs.

            print(run.verify(scores, query).sentence)

        Arguments:
            scores: of this run.
            query: the query that they were computed for.
            instances: the ids to check [K]; by default the extremes and a random sample.
            n: how many, where `instances` are not given.
            of: what they were asked of: "model" or "average".

        Returns:
            Estimated and actual changes [K], or [Q, K], and how well they agree.

        Raises:
            InvalidInput: where the scores are of another query or another run.
        """
        query = as_query(query)
        objective = self.recording.objective
        derive = lambda: query.derivative(objective, self._asked(of, scores.at))[0]
        check_scores(scores, query, len(self), derive)
        ids = choose(scores, n) if instances is None else self._ids(instances)
        whole = choose_window(self.recording.tape, at=scores.at)
        epochs = whole.newest - scores.first_epoch + 1
        actual = self.leave_one_out(query, ids, epochs=epochs, at=scores.at, of=of)
        if actual.shape != scores.values[..., ids].shape:
            say = lambda values: say_count(len(values), "value") if values.ndim > 1 else "one value"
            raise InvalidInput(
                f"The query has {say(actual)} and the scores have {say(scores.values)}: they are "
                "for different data."
            )
        return compare(ids, scores.values[..., ids], actual)

    def _ids(self, instances: Any) -> np.ndarray:
        ids = self.recording.instances.check(instances)
        if len(ids) == 0:
            raise InvalidInput("Pass at least one instance id.")
        return ids


def load(
    path: str | os.PathLike,
    model: torch.nn.Module,
    data: Any,
    loss: Any,
    *,
    penalty: Penalty | None = None,
    augment: Augment | None = None,
    progress: bool = True,
) -> Run:
    """Open a run that was recorded earlier, perhaps by another process.

    Arguments:
        path: its folder, or the URL of a copy in object storage ("s3://bucket/run"), from which
            only what is needed is fetched.
        model: the model as it was built. Its own weights do not matter, and may be on the meta
            device; frozen ones must be there.
        data: the data set that it was trained on.
        loss: the loss, by name or as the same function.
        penalty: the penalty, where there was one.
        augment: the augmentation, where there was one.
        progress: show progress bars for long operations.

    Returns:
        The run. Where its recording was interrupted, it ends there, with a warning.

    Raises:
        InvalidInput: for arguments that cannot be used.
        DrossError: where there is no tape, or it is damaged, or belongs to another model, data
            set or loss.
    """
    recording = Recording.open(path, model, data, loss, penalty, augment)
    opened = recording.tape
    if not opened.complete:
        warnings.warn(
            f"The tape at {path} is not complete: it holds {opened.length}. Scores are "
            "for the model at that point; continue the run with resume=True.",
            DrossWarning,
            stacklevel=2,
        )
    return Run(recording, progress)
