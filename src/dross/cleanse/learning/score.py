"""Score every training instance by several independent runs, and ask models what they think of it.

The scores of one run are partly an accident of that run: other initial weights and another order
blame other instances. What the runs agree on carries over to the next model. So the score is the
mean over runs, and its spread tells how much to trust it.

Two questions give two rankings. What *hurts*: the mean score, which estimates the change of the
expected validation error without the instance. That error, the mean of 1 - exp(-loss / scale), is
bounded: wrong labels in the validation part do not turn the scores around. What is *mislabelled*:
the loss of the instance under its own label, among those that the models would label otherwise. The
second question is asked of models that did not learn the instance (four-fold cross-fitting,
repeated): a model that has learnt a wrong label by heart sees nothing wrong with it.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...data.seeds import mix_seeds
from ...errors import NotFinite, NotSupported, TapeDamaged
from ...estimators.outliers import features
from ...influence.query_makers import expected_error, expected_errors
from ...influence.query_makers import losses as losses_of
from ...influence.run import Run
from ...influence.scores import Scores
from ...influence.verification import Verification, compare
from ...record.train import train
from .recipe import MOMENTUM, Pair, Recipe
from .train_many import ModelSpec, train_many

_FOLDS = 4
_MAX_REPEATS = 4  # of the cross-fitting
_MAX_ASKED = 2000  # validation instances whose own losses are compared
_INSTANCES_AT_ONCE = 4096
_DEVIATIONS = 1.4826  # standard deviations of a normal variable per median absolute value
_MIN_SCALE = 1e-6  # of the variance of the labels: smaller squared errors are rounding


@dataclass(frozen=True)
class InstanceScores:
    """What R runs, and models that did not learn them, say of N training instances."""

    halves: np.ndarray  # [R, 2, N]: the scores for either half of the validation part
    weights: np.ndarray  # [2]: the shares of the halves
    losses: np.ndarray  # [R, N] of the models that learnt the instance
    outputs: np.ndarray  # [repeats, N, outputs] of models that did not
    held_out: np.ndarray  # [repeats, N]: their losses
    on_validation: np.ndarray  # [models, V, outputs]: what the same models say of validation
    scale: float = 1.0  # of the expected validation error that the scores are about

    @property
    def by_run(self) -> np.ndarray:
        """The scores for the whole validation part, [R, N]."""
        return np.einsum("rhn,h->rn", self.halves, self.weights)

    @property
    def scores(self) -> np.ndarray:
        """The mean over runs, [N]. Below 0: the expected error would fall without it."""
        return self.by_run.mean(0)

    def by_half(self, half: int) -> np.ndarray:
        """The mean scores for one half of the validation part, [N]."""
        return self.halves[:, half].mean(0)


def score(
    recipe: Recipe,
    data: Pair,
    validation: Pair,
    runs: int,
    folder: Path,
    *,
    seed: int,
    progress: bool,
) -> tuple[list[Run], InstanceScores]:
    """Train and retrace `runs` times.

    Each run's scores are kept in `folder` as soon as they are known, and are not computed again.
    """
    repeats = min(runs, _MAX_REPEATS)
    asked = cross_fit(recipe, data, validation[0], repeats=repeats, seed=seed, progress=progress)
    outputs = asked.outputs
    scale = error_scale(recipe, outputs, data[1])
    parts = validation_halves(validation, seed)
    query = expected_errors([(validation[0][part], validation[1][part]) for part in parts], scale)
    recorded, halves, losses = [], [], []
    for number in range(runs):
        tape = folder / f"run-{number}"
        run = record_run(recipe, data, number, tape, seed=seed, progress=progress)
        saved = folder / f"run-{number}-scores.safetensors"
        scores = _read_intact(saved)
        if scores is None or scores.query != query.name:  # earlier versions asked for the loss
            scores = run.influence(query)
            scores.save(saved)
        recorded.append(run)
        halves.append(scores.values)
        losses.append(recipe.loss_function(final_outputs(run, data[0]), data[1]).double().numpy())
    return recorded, InstanceScores(
        np.stack(halves),
        np.array([len(part) for part in parts]) / len(validation[1]),
        np.stack(losses),
        outputs.numpy(),
        recipe.losses(outputs, data[1]).double().numpy(),
        asked.on_others.numpy(),
        scale,
    )


def error_scale(recipe: Recipe, outputs: Tensor, y: Tensor) -> float:
    """The scale of the expected error: 1 for classes, for numbers twice a robust variance.

    Arguments:
        recipe: The model.
        outputs: Of models that did not learn the instances, [repeats, N, outputs].
        y: The targets of the instances.

    Raises:
        NotFinite: Those models diverged.
    """
    if recipe.loss != "squared_error":
        return 1.0
    deviation = robust_deviation(recipe.errors(outputs, y).double().numpy())
    if not np.isfinite(deviation):
        raise NotFinite("Models that were trained on parts of the data diverged.")
    return max(2 * deviation**2, _MIN_SCALE)


def robust_deviation(errors: np.ndarray) -> float:
    """The standard deviation of absolute errors, by their median: a few wild ones do not count."""
    return _DEVIATIONS * float(np.median(errors))


def _read_intact(path: Path) -> Scores | None:
    """Scores that an earlier attempt kept; None if there are none, or they are damaged."""
    try:
        return Scores.load(path) if path.exists() else None
    except TapeDamaged:
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
        tape=folder,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        eta=lambda step: recipe.rate * recipe.rate_factor(step, steps),
        seed=mix_seeds(seed, number, 2),
        device="cpu" if recipe.device.startswith("mps") else recipe.device,  # no float64 there
        progress=progress,
        resume=begun,
        overwrite=not begun,
    )


def validation_halves(validation: Pair, seed: int) -> list[np.ndarray]:
    """The ids of two random halves: what one half blames can be tried on the other."""
    rng = np.random.default_rng(mix_seeds(seed, 3))
    return np.array_split(rng.permutation(len(validation[1])), 2)


def final_outputs(run: Run, x: Tensor) -> Tensor:
    """The outputs of the trained model, [N, outputs], on the CPU."""
    state, objective = run.recording.state_at(run.steps), run.recording.objective
    with objective.evaluating(), torch.no_grad():
        parts = [part.to(state.theta.device) for part in x.split(_INSTANCES_AT_ONCE)]
        outputs = [objective.predict(state.theta, state.buffers, part) for part in parts]
        return torch.cat(outputs).cpu()


@dataclass(frozen=True)
class CrossFit:
    """What models say of instances that they did not learn."""

    outputs: Tensor  # [repeats, N, outputs]: of training instances
    on_others: Tensor  # [models, V, outputs]: of others, which none of the models learnt


def cross_fit(
    recipe: Recipe,
    data: Pair,
    others: Tensor,
    *,
    repeats: int,
    seed: int,
    progress: bool,
    left: np.ndarray | None = None,
) -> CrossFit:
    """Train models that each leave a fold out, and ask them about it.

    Arguments:
        recipe: Of the models.
        data: The inputs and targets of the training part.
        others: Inputs of instances that all models are asked about, [V, ...].
        repeats: How often all are asked about, with other folds.
        seed: Decides the folds and the models.
        progress: Whether to show a progress bar.
        left: Which instances are learnt at all, bool [N]; by default all are.
    """
    x, y = data
    folds = cross_fit_folds(len(y), repeats, seed)
    learnt = np.arange(len(y)) if left is None else np.flatnonzero(left)
    specs = [
        ModelSpec(mix_seeds(seed, 6, k, f), np.setdiff1d(learnt, fold), recipe.rate)
        for k, cut in enumerate(folds)
        for f, fold in enumerate(cut)
    ]
    what = "asking models that did not learn them"
    trained = train_many(recipe, x, y, specs, what=what, progress=progress)
    of_all = trained.outputs(x).reshape(repeats, _FOLDS, len(y), -1)
    outputs = torch.empty(repeats, len(y), of_all.shape[-1])
    for k, cut in enumerate(folds):
        for f, fold in enumerate(cut):
            outputs[k, fold] = of_all[k, f, fold]
    return CrossFit(outputs, trained.outputs(others))


def cross_fit_folds(count: int, repeats: int, seed: int) -> list[list[np.ndarray]]:
    """The ids of four folds of `count` instances, `repeats` times."""
    rng = np.random.default_rng(mix_seeds(seed, 6))
    return [np.array_split(rng.permutation(count), _FOLDS) for _ in range(repeats)]


def rank(values: np.ndarray) -> np.ndarray:
    """0 for the lowest value; equal ones in their order."""
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks


def outlier_ranks(run: Run) -> np.ndarray:
    """How unusual each instance looks to the model, [N]: 1 the most, 0 the least."""
    from sklearn.ensemble import IsolationForest

    try:
        seen = features(run, run.recording.instances)
    except NotSupported:  # no linear layer to look through: the inputs themselves
        x, _ = run.recording.instances[np.arange(len(run))]
        seen = x.reshape(len(x), -1).float().cpu().numpy()
    anomaly = -IsolationForest(random_state=0).fit(seen).score_samples(seen)
    ranks = np.empty(len(seen))
    ranks[np.argsort(anomaly, kind="stable")] = np.linspace(0, 1, len(seen))
    return ranks


# --- verification ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RetrainingCheck:
    """What retraining without some instances, one by one, did to each validation instance."""

    verification: Verification
    asked: np.ndarray  # [asked]: the ids of validation instances, or of a sample of them
    changes: np.ndarray  # [asked, checked]: how their losses changed


def verify(
    run: Run,
    scores: np.ndarray,
    validation: Pair,
    first: np.ndarray,
    *,
    scale: float = 1.0,
    at_random: int,
    seed: int,
    progress: bool,
) -> RetrainingCheck:
    """Check scores by real runs that each leave one instance out.

    Arguments:
        run: The run that the scores are of.
        scores: Its scores, [N].
        validation: The inputs and targets of the validation part.
        first: The ids of the first suggestions, which are checked.
        scale: Of the expected error that the scores are about.
        at_random: How many others are checked too.
        seed: Decides which others.
        progress: Whether to show a progress bar.
    """
    others = np.setdiff1d(np.arange(len(scores)), first)
    rng = np.random.default_rng(mix_seeds(seed, 4))
    sample = rng.choice(others, min(at_random, len(others)), replace=False)
    ids = np.concatenate([first, np.sort(sample)])
    without = replace(run, progress=progress).counterfactual([[k] for k in ids])
    shuffled = np.random.default_rng(mix_seeds(seed, 8)).permutation(len(validation[1]))
    asked = np.sort(shuffled[:_MAX_ASKED])
    changes = without.changes(losses_of((validation[0][asked], validation[1][asked])))
    actual = without.changes(expected_error(validation, scale=scale))
    verification = compare(ids, scores[ids], actual)
    return RetrainingCheck(verification, asked, changes)
