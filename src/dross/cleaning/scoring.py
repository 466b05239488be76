"""Score every training instance by several independent runs.

The scores of one run are partly an accident of that run: other initial weights and another order
blame other instances. What the runs agree on carries over to the next model. So the score is the
mean over runs, and its spread shows how much to trust it.

A score estimates how the expected error on held-out instances changes without the instance. That
error, the mean of 1 - exp(-loss / scale), is bounded: wrong held-out labels do not turn the scores
around. If there is a validation set, every run holds it out. Otherwise every run holds out another
part of the training data, so that most runs are trained on each instance.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from sklearn.ensemble import IsolationForest
from torch import Tensor, nn

from ..data.dataset import Instances
from ..data.seeds import mix_seeds
from ..errors import CorruptFile, NotSupported
from ..influence.query import expected_error
from ..influence.query import losses as losses_of
from ..influence.run import Run
from ..influence.scores import Scores
from ..influence.verify import Verification, compare
from ..record.train import train
from .label_noise import Rows, assign_folds
from .modality import PreparedData
from .training import MOMENTUM, Pair, Recipe

_FEWEST_FOLDS = 4  # that runs hold out in turn
_MOST_QUERIES = 2000  # held-out instances whose own losses are compared
_INSTANCES_AT_ONCE = 4096
_INPUTS_AT_ONCE = 1024  # that a model's features are taken of
_DEVIATIONS = 1.4826  # standard deviations of a normal variable per median absolute value
_MIN_SCALE = 1e-6  # of the variance of the labels: smaller squared errors are rounding


@dataclass(frozen=True)
class RunPart:
    """What one recorded run is trained on, and the instances that its scores are about."""

    learned: np.ndarray  # int64: ids of the training set
    held_out: np.ndarray  # int64: ids of the set `held_out_part`
    held_out_part: str  # validation, or train if there is no validation set

    def learned_pair(self, data: PreparedData) -> Pair:
        """The inputs and targets that the run is trained on."""
        x, y = data.pair("train")
        return x[self.learned], y[self.learned]

    def held_out_pair(self, data: PreparedData) -> Pair:
        """The inputs and targets of the held-out instances."""
        x, y = data.pair(self.held_out_part)
        return x[self.held_out], y[self.held_out]


def cut_for_runs(data: PreparedData, runs: int, rows: Rows, seed: int) -> list[RunPart]:
    """What each run is trained on and holds out.

    Arguments:
        data: The dataset.
        runs: How many runs there are.
        rows: Of the data, the training instances first; copies are held out together.
        seed: Decides the folds.
    """
    everything = np.arange(len(data.y["train"]))
    if len(data.parts["validation"]):
        held_out = np.arange(len(data.y["validation"]))
        return [RunPart(everything, held_out, "validation") for _ in range(runs)]
    folds = _count_folds(runs)
    # the labels as given: a label that a person corrects leaves the recorded runs as they are
    given = rows if rows.given is None else replace(rows, y=rows.given)
    fold = assign_folds(given, folds, mix_seeds(seed, 3))
    return [
        RunPart(everything[fold != number], everything[fold == number], "train")
        for number in range(runs)
    ]


def _count_folds(runs: int) -> int:
    return max(_FEWEST_FOLDS, runs)


def count_learned(data: PreparedData, runs: int) -> int:
    """About how many training instances each run of `cut_for_runs` is trained on."""
    count = len(data.y["train"])
    if len(data.parts["validation"]):
        return count
    return count - count // _count_folds(runs)


@dataclass(frozen=True)
class InstanceScores:
    """What R runs find about N training instances; nan if a run held the instance out."""

    by_run: np.ndarray  # [R, N]: the scores
    losses: np.ndarray  # [R, N]: of the models that were trained on the instance
    scale: float = 1.0  # of the expected error that the scores are about

    @property
    def scores(self) -> np.ndarray:
        """The mean over runs, [N]. Below 0: the expected error would fall without it."""
        return mean_over_runs(self.by_run)

    @property
    def spread(self) -> np.ndarray:
        """The standard deviation over runs, [N]; nan if no run was trained on the instance."""
        known = np.isfinite(self.by_run).any(0)
        spread = np.full(self.by_run.shape[1], np.nan)
        spread[known] = np.nanstd(self.by_run[:, known], axis=0)
        return spread

    @property
    def runs(self) -> np.ndarray:
        """How many runs were trained on each instance, int64 [N]."""
        return np.isfinite(self.by_run).sum(0)


def mean_over_runs(values: np.ndarray) -> np.ndarray:
    """The mean of [R, N] over the runs that score an instance; nan if there are none."""
    known = np.isfinite(values).any(0)
    mean = np.full(values.shape[1], np.nan)
    mean[known] = np.nanmean(values[:, known], axis=0)
    return mean


def score(
    recipe: Recipe,
    data: PreparedData,
    parts: list[RunPart],
    folder: Path,
    *,
    scale: float,
    seed: int,
    progress: bool,
) -> tuple[list[Run], InstanceScores]:
    """Train and retrace one run for each part.

    Each run's scores are kept in `folder` as soon as they are known, and are not computed again.

    Arguments:
        recipe: How to train.
        data: The dataset.
        parts: What each run is trained on and holds out.
        folder: Where the tapes and the scores go.
        scale: Of the expected error; see `error_scale`.
        seed: Of the runs.
        progress: Whether to show progress bars.
    """
    count = len(data.y["train"])
    by_run = np.full((len(parts), count), np.nan)
    losses = np.full((len(parts), count), np.nan)
    recorded = []
    for number, part in enumerate(parts):
        pair = part.learned_pair(data)
        tape = folder / f"run-{number}"
        run = record_run(recipe, pair, number, tape, seed=seed, progress=progress)
        query = expected_error(part.held_out_pair(data), scale=scale)
        saved = folder / f"run-{number}-scores.safetensors"
        scores = _read_intact(saved)
        if scores is None or scores.query.name != query.name:
            scores = run.influence(query)
            scores.save(saved)
        recorded.append(run)
        by_run[number, part.learned] = scores.values
        final = recipe.loss_function(final_outputs(run, pair[0]), pair[1])
        losses[number, part.learned] = final.double().numpy()
    return recorded, InstanceScores(by_run, losses, scale)


def error_scale(errors: np.ndarray) -> float:
    """The scale of the expected error of numbers: twice a robust variance.

    errors: how far off predictions of models are that were not trained on the instances, [N].
    """
    return max(2 * robust_deviation(errors) ** 2, _MIN_SCALE)


def robust_deviation(errors: np.ndarray) -> float:
    """The standard deviation of absolute errors, by their median: a few wild ones do not count."""
    return _DEVIATIONS * float(np.median(np.abs(errors)))


def split_half_agreement(by_run: np.ndarray) -> float | None:
    """How far independent runs agree on the order of harm.

    The runs are split into halves, each half is averaged, and the two orders are compared by their
    rank correlation r, which is averaged over all splits. By the Spearman-Brown formula, the mean
    of all runs would then have the correlation 2 r / (1 + r) with the mean of as many new runs.
    Below r = 1/3 that is less than one half: more than half of the order is due to chance.

    Arguments:
        by_run: Scores, [R, N]; nan if a run held the instance out.

    Returns:
        None with one run, fewer than three instances, or a half whose scores are all equal.
    """
    runs, count = by_run.shape
    if runs < 2 or count < 3:
        return None
    correlations = []
    for half in combinations(range(runs), runs // 2):
        if 2 * len(half) == runs and 0 not in half:
            continue  # the same cut as its complement
        chosen = np.isin(np.arange(runs), half)
        one = mean_over_runs(by_run[chosen])
        other = mean_over_runs(by_run[~chosen])
        both = pandas.DataFrame({"one": one, "other": other})
        correlations.append(both.corr("spearman", min_periods=3).loc["one", "other"])
    return None if np.isnan(correlations).any() else float(np.mean(correlations))


def _read_intact(path: Path) -> Scores | None:
    """Scores that an earlier attempt kept; None if there are none, or they are damaged."""
    try:
        return Scores.load(path) if path.exists() else None
    except CorruptFile:
        return None


def record_run(
    recipe: Recipe, data: Pair, number: int, folder: Path, *, seed: int, progress: bool
) -> Run:
    """One recorded run.

    It is read from its tape if that is complete. Otherwise it is trained, from where the tape ends.
    """
    model = recipe.build(mix_seeds(seed, number, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.rate, momentum=MOMENTUM)
    steps = recipe.epochs * recipe.steps_per_epoch(len(data[1]))
    begun = (folder / "manifest.json").exists()
    return train(
        model,
        data,
        recipe.loss,
        optimizer,
        path=folder,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        lr=lambda step: recipe.rate * recipe.rate_factor(step, steps),
        seed=mix_seeds(seed, number, 2),
        device="cpu" if recipe.device.startswith("mps") else recipe.device,  # no float64 there
        progress=progress,
        resume=begun,
        overwrite=not begun,
    )


def final_outputs(run: Run, x: Tensor) -> Tensor:
    """The outputs of the trained model, [N, outputs], on the CPU."""
    state = run.recording.state_at(run.steps)
    objective = run.recording.objective
    with objective.evaluating(), torch.no_grad():
        parts = [part.to(state.theta.device) for part in x.split(_INSTANCES_AT_ONCE)]
        outputs = [objective.predict(state.theta, state.buffers, part) for part in parts]
        return torch.cat(outputs).cpu()


def rank(values: np.ndarray) -> np.ndarray:
    """0 for the lowest value; equal ones in their order, nan last."""
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks


def outlier_ranks(run: Run, data: Pair) -> np.ndarray:
    """How unusual each instance looks to the model, [N]: 1 the most, 0 the least."""
    learned = run.recording.instances
    try:
        seen = last_layer_inputs(run, Instances(data, learned.device, learned.dtype))
    except NotSupported:  # no linear layer to look through: the inputs themselves
        seen = data[0].reshape(len(data[0]), -1).float().numpy()
    anomaly = -IsolationForest(random_state=0).fit(seen).score_samples(seen)
    ranks = np.empty(len(seen))
    ranks[np.argsort(anomaly, kind="stable")] = np.linspace(0, 1, len(seen))
    return ranks


def inputs_in_chunks(instances: Instances) -> Iterator[Any]:
    """The inputs of all instances in order, some at a time, on the run's device."""
    for start in range(0, len(instances), _INPUTS_AT_ONCE):
        x, _ = instances[np.arange(start, min(start + _INPUTS_AT_ONCE, len(instances)))]
        yield x


def last_layer_inputs(run: Run, instances: Instances) -> np.ndarray:
    """The inputs of the model's last linear layer, at the trained model in eval mode.

    Returns:
        float32 [N, d].

    Raises:
        NotSupported: the model has no linear layer.
    """
    objective = run.recording.objective
    state = run.recording.state_at(run.steps)
    linear = [module for module in objective.model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise NotSupported(
            "The features are the inputs of the model's last linear layer, and this model has none."
        )
    seen: list[np.ndarray] = []
    hook = linear[-1].register_forward_pre_hook(
        lambda _, args: seen.append(args[0].detach().flatten(1).float().cpu().numpy())
    )
    try:
        with objective.evaluating(), torch.no_grad():
            for x in inputs_in_chunks(instances):
                objective.predict(state.theta, state.buffers, x)
    finally:
        hook.remove()
    return np.concatenate(seen)


# --- verification ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RetrainingCheck:
    """What retraining without some instances, one by one, did to each held-out instance."""

    verification: Verification  # in positions among what the run was trained on
    queries: np.ndarray  # int64: the ids of held-out instances, or of a sample of them
    changes: np.ndarray  # [queries, checked]: how their losses changed


def verify(
    run: Run,
    scores: np.ndarray,
    held_out: np.ndarray,
    pair: Pair,
    *,
    count: int,
    scale: float,
    seed: int,
    progress: bool,
) -> RetrainingCheck:
    """Check scores by real runs that each leave one instance out.

    Arguments:
        run: The run that the scores are of.
        scores: Its scores of the instances that it was trained on, [L].
        held_out: The ids of the instances that the scores are about.
        pair: Their inputs and targets.
        count: How many of the most harmful are checked, and how many others, drawn at random.
        scale: Of the expected error that the scores are about.
        seed: Decides which others.
        progress: Whether to show a progress bar.
    """
    first = np.argsort(scores, kind="stable")[:count]
    others = np.setdiff1d(np.arange(len(scores)), first)
    rng = np.random.default_rng(mix_seeds(seed, 4))
    sample = rng.choice(others, min(count, len(others)), replace=False)
    ids = np.concatenate([first, np.sort(sample)])
    without = replace(run, progress=progress).counterfactual([[k] for k in ids])
    shuffled = np.random.default_rng(mix_seeds(seed, 8)).permutation(len(held_out))
    queries = np.sort(shuffled[:_MOST_QUERIES])
    changes = without.changes(losses_of((pair[0][queries], pair[1][queries])))
    actual = without.changes(expected_error(pair, scale=scale))
    drawn = None if len(ids) == len(scores) else np.isin(ids, sample)
    verification = compare(ids, scores[ids], actual, drawn)
    return RetrainingCheck(verification, held_out[queries], changes)
