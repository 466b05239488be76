"""A recorded run: scores, counterfactual runs and what else can be computed from it."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._checks import check_folder
from .._progress import announce, report
from .._text import named_values, say_count
from ..data.batch import Augment
from ..engine.objective import Penalty
from ..errors import DrossWarning, InvalidInput
from ..replay.average import MODEL
from ..replay.recording import Recording
from ..replay.schedule import choose_steps
from ..tape.reader import describe_tape
from ..tape.storage import is_url
from .counterfactual import (
    Counterfactual,
    CounterfactualRuns,
    Removal,
    SweepOptions,
    counterfactual,
    leave_one_out,
    leave_out,
)
from .forward import ParameterInfluence, parameter_influence
from .margins import mean_margins
from .plan import RetracePlan, make_plan
from .query import Query, as_query
from .retrace import retrace
from .scores import Scores, check_values
from .verify import (
    LinearDatamodelingScore,
    Verification,
    affordable_count,
    check_scores,
    choose,
    compare,
    compare_subsets,
    describe_cost,
    draw_subsets,
)


@dataclass(frozen=True)
class Run:
    """A recorded run: the training of a model, and the influence of each instance on it.

        scores = run.influence(dross.mean_loss((X_val, y_val)))
        scores.most_harmful(10)
        run.verify(scores)

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
        """Number of steps that the run has taken."""
        return self.recording.tape.steps

    @property
    def complete(self) -> bool:
        """Whether the recording is complete."""
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

    def evaluate(
        self, query: Query, *, step: int | None = None, weights: str = MODEL
    ) -> np.ndarray:
        """The query's value at the trained model.

        Arguments:
            query: made by dross.mean_loss, expected_error, losses, outputs or query.
            step: take the model after that many steps instead of the last.
            weights: "average" takes the averaged weights (`Recorder.watch_average`) instead of the
                model's.

        Returns:
            float64 [], or [Q] for a query of Q values.

        Raises:
            InvalidInput: if the query does not fit the model, or the tape does not contain that
                step.
        """
        model = self.recording.model(weights, step)
        return as_query(query).evaluate(self.recording.objective, model.state).cpu().numpy()

    def parameters(self, step: int | None = None) -> dict[str, torch.Tensor]:
        """The parameters of the trained model.

        Arguments:
            step: after that many steps instead of the last.

        Returns:
            A dict of name -> tensor.

        Raises:
            InvalidInput: if the tape does not contain that step.
        """
        model = self.recording.model(MODEL, step)
        return self.recording.objective.layout.unflatten(model.state.theta)

    def influence(
        self,
        query: Query,
        *,
        epochs: int | None = None,
        step: int | None = None,
        weights: str = MODEL,
        resume: str | os.PathLike | bool | None = None,
        group: Any = None,
        sharded: bool = False,
    ) -> Scores:
        """The estimated change in the query without each training instance (Algorithm 2).

            scores = run.influence(dross.mean_loss((X_val, y_val)))
            scores.most_harmful(10)

        The scores rank the instances that harm the query. To find wrong labels, see `margins`.

        Arguments:
            query: made by dross.mean_loss, expected_error, losses, outputs or query.
            epochs: retrace only this many of the last epochs. The scores then estimate the change
                of the query if the instance had been absent from these epochs only.
            step: take the model after that many steps instead of the last.
            resume: where progress is kept every half minute: a folder, or True for the tape's own.
                The same call after a crash continues from there and gives the same bits; the file
                is removed when the scores are finished.
            group: a torch.distributed group whose ranks share the work (docs/scale.md). Each of
                them makes this call and gets the scores.
            sharded: let each of these ranks hold only its shard of the states, of the optimizer's
                memory and of the adjoint, as `fully_shard` does in training (docs/scale.md).
            weights: "average" takes the averaged weights (`Recorder.watch_average`) instead of the
                model's.

        Returns:
            Scores: float64 [N] for a scalar query, [Q, N] for one of Q values; nan where no
            retraced step used the instance.

        Raises:
            InvalidInput: if the query does not fit the model, the tape does not hold those epochs,
                or resume=True and the tape is read from a URL.
            NotSupported: if the run cannot be held in shards.
            Diverged: if the adjoint overflows: the run magnifies small changes without limit.
            DrossError: if the tape is damaged, or the model or the data has changed.
        """
        scores = retrace(
            self.recording,
            as_query(query),
            epochs=epochs,
            step=step,
            weights=weights,
            resume=self._progress_folder(resume),
            group=group,
            sharded=sharded,
            progress=self.progress,
        )
        report({f"scores/{name}": value for name, value in scores.summary().items()}, scores.step)
        return scores

    def margins(self, *, epochs: int | None = None, step: int | None = None) -> np.ndarray:
        """The mean training margin of every instance: those with the lowest are likely mislabeled.

            suspects = np.argsort(run.margins())[:100]

        The margin is the logit of the given label minus the largest logit of another class, in the
        training pass of each step that used the instance. Its mean is the area under the margin
        (AUM) of Pleiss et al. (2020). `influence` estimates something else, whether the instance
        harms a query: docs/explain/harm-or-mislabeled.md.

        The cost is a forward pass of the data per epoch, and a replay of the run where its tape does
        not keep every state.

        Arguments:
            epochs: look at only this many of the last epochs.
            step: look at the steps before this one instead of all.

        Returns:
            float64 [N]; nan if none of these steps used the instance.

        Raises:
            NotSupported: if the model is not a classifier, or does not return logits.
            InvalidInput: if the tape does not contain those epochs.
            DrossError: if the tape is damaged, or the model or the data has changed.
        """
        steps = choose_steps(self.recording.tape, epochs=epochs, step=step)
        return mean_margins(self.recording, steps, progress=self.progress)

    def _progress_folder(self, resume: str | os.PathLike | bool | None) -> Path | None:
        if resume is None or resume is False:
            return None
        if resume is not True:
            return Path(check_folder(resume, "resume"))
        if is_url(self.path):
            raise InvalidInput(
                f"resume=True keeps progress in the tape's folder, but {self.path} is read-only. "
                "Pass a folder: resume='folder'."
            )
        return Path(self.path)

    def plan(self, query: Query, *, epochs: int | None = None) -> RetracePlan:
        """The time, memory and disk space that `influence` would need. One step is measured.

            print(run.plan(query))

        Arguments:
            query: as for `influence`.
            epochs: retrace only this many of the last epochs.

        Raises:
            InvalidInput: if the query does not fit the model.
        """
        steps = choose_steps(self.recording.tape, epochs=epochs)
        return make_plan(self.recording, self.evaluate(query).size, steps)

    def parameter_influence(self, instances: Any) -> ParameterInfluence:
        """The SGD-influence on the parameters: the estimated theta_-j - theta.

            run.parameter_influence([3, 7])["0.weight"]      # [2, *shape of the weight]

        Arguments:
            instances: the ids of J instances.

        Returns:
            A mapping from each parameter's name to [J, *shape].

        Raises:
            InvalidInput: if there are no ids, or they name instances that do not exist.
            DrossError: if the tape is damaged, or the model or the data has changed.
        """
        return parameter_influence(self.recording, self._ids(instances), progress=self.progress)

    def counterfactual(
        self,
        groups: Any,
        *,
        removal: Removal = "loss",
        epochs: int | None = None,
        step: int | None = None,
        weights: str = MODEL,
        n_jobs: int | None = None,
        folder: str | os.PathLike | None = None,
    ) -> Counterfactual:
        """Train again without each group of instances.

            run.counterfactual([[3, 5, 8]])          # one run without these three
            run.counterfactual([[3], [5], [8]])      # three runs, each without one

        Arguments:
            groups: a list with one list of ids per run. An empty list gives the recorded run.
            removal: "loss" (weight 0 in the loss; what scores differentiate) or "data" (gone from
                the batch and from BatchNorm's statistics as well; what training on the cleansed
                data does).
            epochs: the groups are removed from only this many of the last epochs; by default from
                all that the tape keeps. The run begins with the recorded model before these.
            step: take the models after that many steps instead of the last.
            weights: "average" takes the averaged weights (`Recorder.watch_average`) instead of the
                model's.
            n_jobs: spread the runs over processes; -1 is one per core. A joblib.parallel_config
                around the call does the same, over a cluster as well. Every worker opens the tape.
            folder: keep finished runs there; the same call continues with them later.

        Returns:
            The models, one per group.

        Raises:
            InvalidInput: if groups is not a list of lists, is empty, or names instances that do
                not exist.
            Diverged: if a run without its group diverges.
        """
        self._warn_of_lost_epochs(epochs)
        steps = choose_steps(self.recording.tape, epochs=epochs, step=step)
        options = SweepOptions(self.progress, n_jobs, folder)
        return counterfactual(self.recording, groups, steps, removal, options, weights)

    def leave_one_out(
        self,
        query: Query,
        instances: Any = None,
        *,
        removal: Removal = "loss",
        epochs: int | None = None,
        step: int | None = None,
        weights: str = MODEL,
        n_jobs: int | None = None,
        folder: str | os.PathLike | None = None,
    ) -> np.ndarray:
        """The true change in the query without each instance.

        Arguments:
            query: made by dross.mean_loss, expected_error, losses, outputs or query.
            instances: the ids of K instances; all of them by default.
            step: take the model after that many steps instead of the last.
            weights: "average" takes the averaged weights (`Recorder.watch_average`) instead of the
                model's.
            removal, epochs, n_jobs, folder: as for `counterfactual`. `epochs` says from which
                epochs the instances are removed.

        Returns:
            float64 [K], or [Q, K] for a query of Q values; nan if no step of these epochs used
            the instance.

        Raises:
            InvalidInput: if the query does not fit the model, or instances do not exist.
            Diverged: if a run without its instance diverges.
        """
        self._warn_of_lost_epochs(epochs)
        ids = np.arange(len(self)) if instances is None else self._ids(instances)
        return leave_one_out(
            self.recording,
            as_query(query),
            ids,
            choose_steps(self.recording.tape, epochs=epochs, step=step),
            removal,
            SweepOptions(self.progress, n_jobs, folder),
            weights,
        )

    def verify(
        self,
        scores: Scores,
        instances: Any = None,
        n: int | None = None,
        *,
        epochs: int | None = None,
        n_jobs: int | None = None,
        folder: str | os.PathLike | None = None,
    ) -> Verification:
        """Check scores against real counterfactual runs.

            print(run.verify(scores).sentence)

        The duration is estimated from one step, and printed before the runs begin.

        Arguments:
            scores: of this run. Those of a file were loaded with their query; see `scores` for
                numbers of your own.
            instances: the ids to check [K]; by default a random sample, of which the correlations
                are computed, and the most extreme scores, a quarter of all.
            n: how many, where `instances` are not given: by default 64, or as many as take about
                five times as long as the training, or 20 seconds, and at least six.
            epochs: from how many of the last epochs the instances are removed; by default from
                those that the scores were computed from.
            n_jobs, folder: as for `counterfactual`.

        Returns:
            Estimated and actual changes [K], or [Q, K], and how well they agree.

        Raises:
            InvalidInput: if the scores are of another query or another run.
        """
        runs = self._runs_of(scores, epochs)
        cost = runs.measure()
        if instances is None:
            ids, drawn = choose(scores, affordable_count(cost) if n is None else n)
        else:
            ids = np.array(list(dict.fromkeys(self._ids(instances).tolist())))  # each once
            drawn = None
        announce(describe_cost(cost, len(ids), "without one instance"), show=self.progress)
        options = SweepOptions(self.progress, n_jobs, folder)
        asked = (scores.query, ids, runs.steps, runs.removal, options, runs.weights)
        actual = leave_one_out(self.recording, *asked)
        return compare(ids, scores.values[..., ids], actual, drawn)

    def lds(
        self,
        scores: Scores,
        subsets: int = 32,
        *,
        share: float = 0.5,
        seed: int = 0,
        epochs: int | None = None,
        n_jobs: int | None = None,
        folder: str | os.PathLike | None = None,
    ) -> LinearDatamodelingScore:
        """The linear datamodeling score: how well sums of scores rank random subsets.

            print(run.lds(scores, subsets=100))

        The run is trained again without each of several random subsets, and Spearman's correlation
        of the true changes in the query with the sums of scores is taken over the subsets (S. M.
        Park et al., "TRAK: Attributing Model Behavior at Scale", ICML 2023). `verify` leaves out
        single instances instead. The duration is estimated from one step, and printed before the
        runs begin.

        Arguments:
            scores: of this run, by `influence` or by an estimator. Those of a file were loaded with
                their query; see `scores` for numbers of your own.
            subsets: how many.
            share: of the instances that were used, in each subset that is left out.
            seed: of the subsets.
            epochs: from how many of the last epochs the subsets are removed; by default from those
                that the scores were computed from. So `influence(query, epochs=1)` is compared with
                runs that lack the subsets in the last epoch. To compare scores of several methods,
                pass the same number to each: the number of all epochs is the definition of Park et
                al.
            n_jobs, folder: as for `counterfactual`.

        Returns:
            The correlation with its 95 % confidence interval, and the changes that it is computed
            from.

        Raises:
            InvalidInput: if the scores are of another query or another run.
            Diverged: if a run without its subset diverges.
        """
        runs = self._runs_of(scores, epochs)
        used = np.flatnonzero(~np.isnan(np.atleast_2d(scores.values)).any(0))
        groups = draw_subsets(used, subsets, share, seed)
        left_out = f"without {len(groups[0]):,} random instances"
        announce(describe_cost(runs.measure(), subsets, left_out), show=self.progress)
        options = SweepOptions(self.progress, n_jobs, folder)
        asked = (scores.query, groups, runs.steps, runs.removal, options, runs.weights)
        actual = leave_out(self.recording, *asked)
        return compare_subsets(scores, groups, actual)

    def scores(
        self,
        values: Any,
        query: Query,
        *,
        epochs: int | None = None,
        step: int | None = None,
        weights: str = MODEL,
    ) -> Scores:
        """Scores made from your own values, to compare another method with retraining.

            scores = run.scores(my_values, query)       # an estimate of query(without) - query(with)
            print(run.lds(scores), run.verify(scores))

        Arguments:
            values: one number per instance [N], or [Q, N] for a query of Q values; the lowest are
                the ones to remove first. They are replaced by nan where the run did not use the
                instance.
            query: whose change they estimate.
            epochs: they estimate a removal from only this many of the last epochs.
            step: they are about the model after that many steps instead of the last.
            weights: "average" if they are about the averaged weights.

        Returns:
            Scores, for `verify`, `lds`, rankings and files.

        Raises:
            InvalidInput: if the values have another shape, are not finite, or the query does not
                fit the model.
        """
        steps = choose_steps(self.recording.tape, epochs=epochs, step=step)
        query_value = self.evaluate(query, step=step, weights=weights)
        used = self.recording.used_instances(steps.first, steps.stop)
        checked = check_values(values, query_value.shape, used)
        return Scores(
            checked,
            checked[..., None, :],
            query,
            query_value,
            weights=weights,
            first_epoch=steps.oldest,
            step=steps.stop,
            hessian=False,
        )

    def _warn_of_lost_epochs(self, epochs: int | None) -> None:
        """Instances cannot be removed from epochs that the tape does not keep."""
        tape = self.recording.tape
        if epochs is None and tape.first > 0:
            kept = choose_steps(tape).epochs
            warnings.warn(
                f"The tape keeps only the last {say_count(kept, 'epoch')}: instances are removed "
                f"from these, and every run begins with the recorded model after {tape.first} "
                f"steps. Pass epochs={kept} to avoid this warning.",
                DrossWarning,
                stacklevel=3,
            )

    def _runs_of(self, scores: Scores, epochs: int | None) -> CounterfactualRuns:
        """The counterfactual runs that scores of this run are an estimate of."""
        ask = lambda query: self.evaluate(query, step=scores.step, weights=scores.weights)
        check_scores(scores, len(self), ask)
        newest = choose_steps(self.recording.tape, step=scores.step).newest
        if epochs is None:
            epochs = newest - scores.first_epoch + 1
        steps = choose_steps(self.recording.tape, epochs=epochs, step=scores.step)
        return CounterfactualRuns(self.recording, steps, "loss", weights=scores.weights)

    def _ids(self, instances: Any) -> np.ndarray:
        ids = self.recording.instances.check_ids(instances)
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
        data: the dataset that it was trained on.
        loss: the loss, by name or as the same function.
        penalty: the penalty, if there was one.
        augment: the augmentation, if there was one.
        progress: show progress bars for long operations.

    Returns:
        The run. If its recording was interrupted, it ends there, with a warning.

    Raises:
        InvalidInput: for arguments that cannot be used.
        DrossError: if there is no tape, or it is damaged, or belongs to another model, data
            set or loss.
    """
    recording = Recording.open(path, model, data, loss, penalty, augment)
    opened = recording.tape
    if not opened.complete:
        warnings.warn(
            f"The tape at {path} is not complete: it contains {opened.length}. Scores are for the "
            "model at that point; continue the run with resume=True.",
            DrossWarning,
            stacklevel=2,
        )
    return Run(recording, progress)
