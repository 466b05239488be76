"""Score every training instance, by several independent runs, and say beside the score what the models think of it.

One run's scores are partly that run's accident: other initial weights and another order blame other instances. What the runs agree on carries
over to the next model, so the score is the mean over runs and its spread is shown as confidence.

Two questions, two rankings. What *hurts*: the mean score, the estimated change of the validation loss without the instance. What is *mislabelled*:
the loss of the instance under its own label, among those that the models would label otherwise. For the second question each instance is asked
of models that did not learn it (four-fold cross-fitting, repeated): a model that has learnt a wrong label by heart sees nothing wrong with it.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.seeds import mixed
from ..errors import NotSupported
from ..estimators.outliers import features
from ..influence.query import losses as losses_of
from ..influence.query import mean_loss, mean_losses
from ..influence.run import Run
from ..influence.scores import Scores
from ..influence.verification import Verification, compare
from ..record.train import train
from ..step.loss import resolve
from .inputs.frames import Frame, library
from .train_many import MOMENTUM, Fit, Recipe, fit
from .train_many import losses as losses_at

Pair = tuple[Tensor, Tensor]
_FOLDS = 4
_ASKED = 2000


@dataclass(frozen=True)
class Scored:
    """[R, N] each: what R runs say of N training instances."""

    halves: np.ndarray  # [R, 2, N]: the scores for either half of the validation part
    weights: np.ndarray  # [2]: the shares of the halves
    losses: np.ndarray  # of the models that learnt the instance
    outputs: np.ndarray  # [repeats, N, outputs] of models that did not
    held_out: np.ndarray  # [repeats, N]: their losses

    @property
    def by_run(self) -> np.ndarray:
        return np.einsum("rhn,h->rn", self.halves, self.weights)

    @property
    def scores(self) -> np.ndarray:
        return self.by_run.mean(0)

    def by_half(self, half: int) -> np.ndarray:
        return self.halves[:, half].mean(0)


def recorded(
    recipe: Recipe, data: Pair, number: int, folder: Path, *, seed: int, progress: bool
) -> Run:
    """Run number `number`, from its tape where that is whole, else trained now or on from where it stopped."""
    model = recipe.build(mixed(seed, number, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.rate, momentum=MOMENTUM)
    begun = (folder / "manifest.json").exists()
    return train(
        model,
        data,
        recipe.loss,
        optimizer,
        tape=folder,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        seed=mixed(seed, number, 2),
        progress=progress,
        resume=begun,
        overwrite=not begun,
    )


def halves_of(validation: Pair, seed: int) -> list[np.ndarray]:
    """Two random halves: what one half blames can be tried on the other."""
    return np.array_split(np.random.default_rng(mixed(seed, 3)).permutation(len(validation[1])), 2)


def score(
    recipe: Recipe,
    data: Pair,
    validation: Pair,
    runs: int,
    folder: Path,
    *,
    seed: int,
    progress: bool,
) -> tuple[list[Run], Scored]:
    """Train and retrace `runs` times. Each run's scores are kept as soon as they are known."""
    parts = halves_of(validation, seed)
    query = mean_losses([(validation[0][part], validation[1][part]) for part in parts])
    found, halves, losses = [], [], []
    for number in range(runs):
        run = recorded(recipe, data, number, folder / f"run-{number}", seed=seed, progress=progress)
        kept = folder / f"run-{number}-scores.safetensors"
        scores = Scores.load(kept) if kept.exists() else run.influence(query)
        if not kept.exists():
            scores.save(kept)
        state = run.recording.state_at(run.steps)
        objective = run.recording.objective
        with objective.evaluating(), torch.no_grad():
            said = torch.cat(
                [
                    objective.predict(state.theta, state.buffers, part)
                    for part in data[0].split(4096)
                ]
            )
        halves.append(scores.values)
        losses.append(resolve(recipe.loss)[1](said, data[1]).double().numpy())
        found.append(run)
    share = np.array([len(part) for part in parts]) / len(validation[1])
    outputs = cross_fitted(recipe, data, repeats=min(runs, 4), seed=seed, progress=progress)
    held_out = losses_at(recipe, outputs, data[1]).double().numpy()
    return found, Scored(np.stack(halves), share, np.stack(losses), outputs.numpy(), held_out)


def cross_fitted(recipe: Recipe, data: Pair, *, repeats: int, seed: int, progress: bool) -> Tensor:
    """[repeats, N, outputs]: what models say of instances that they did not learn."""
    x, y = data
    rng = np.random.default_rng(mixed(seed, 6))
    folds = [np.array_split(rng.permutation(len(y)), _FOLDS) for _ in range(repeats)]
    everyone = np.arange(len(y))
    fits = [
        Fit(mixed(seed, 6, k, f), np.setdiff1d(everyone, fold), recipe.rate)
        for k, cut in enumerate(folds)
        for f, fold in enumerate(cut)
    ]
    trained = fit(
        recipe, x, y, fits, what="asking models that did not learn them", progress=progress
    )
    said = trained.outputs(x).reshape(repeats, _FOLDS, len(y), -1)
    outputs = torch.empty(repeats, len(y), said.shape[-1])
    for k, cut in enumerate(folds):
        for f, fold in enumerate(cut):
            outputs[k, fold] = said[k, f, fold]
    return outputs


def table(
    scored: Scored,
    labels: np.ndarray,
    names: list[str],
    classes: list[str],
    scale: tuple[float, float],
    unusual: np.ndarray,
) -> Frame:
    """One row per training instance, in the columns that `Project.instances` promises."""
    pandas = library()

    scores, by_run, loss = scored.scores, scored.by_run, scored.held_out.mean(0)
    if classes:
        chances = torch.softmax(torch.from_numpy(scored.outputs), -1).numpy()
        mean = chances.mean(0)
        said = mean.argmax(1)
        given = np.array([classes.index(label) for label in labels])
        rows = np.arange(len(labels))
        prediction = np.array(classes, dtype=object)[said]
        probability, label_probability = mean[rows, said], mean[rows, given]
        agreement = (chances.argmax(-1) == said).mean(0)
        candidate = said != given
    else:
        values = scored.outputs[..., 0] * scale[1] + scale[0]
        middle, spread = values.mean(0), values.std(0)
        prediction = np.array([f"{value:.6g}" for value in middle], dtype=object)
        probability = label_probability = np.full(len(labels), np.nan)
        agreement = np.exp(-spread / max(scale[1], 1e-12))
        candidate = loss > loss.mean() + 2 * loss.std()
    mislabel_rank = np.full(len(labels), -1)
    suspects = np.flatnonzero(candidate)
    mislabel_rank[suspects[np.argsort(-loss[suspects], kind="stable")]] = np.arange(len(suspects))
    harm_rank = np.empty(len(labels), dtype=np.int64)
    harm_rank[np.argsort(scores, kind="stable")] = np.arange(len(labels))
    shown = [str(label) if classes else f"{label:.6g}" for label in labels]
    return pandas.DataFrame(
        {
            "source": names,
            "label": shown,
            "score": scores,
            "spread": by_run.std(0),
            "harmful_in": (by_run < 0).sum(0),
            "harm_rank": harm_rank,
            "loss": loss,
            "training_loss": scored.losses.mean(0),
            "mislabel_rank": mislabel_rank,
            "prediction": prediction,
            "probability": probability,
            "label_probability": label_probability,
            "agreement": agreement,
            "outlier": unusual,
            "verified": np.nan,
        },
        index=pandas.RangeIndex(len(labels), name="id"),
    )


def outliers(run: Run) -> np.ndarray:
    """How unusual an instance looks to the model: 1 the most, 0 the least."""
    from sklearn.ensemble import IsolationForest

    try:
        seen = features(run, run.recording.instances)
    except NotSupported:  # no linear layer to look through: the inputs themselves
        x, _ = run.recording.instances[np.arange(len(run))]
        seen = x.reshape(len(x), -1).float().cpu().numpy()
    order = np.argsort(
        -IsolationForest(random_state=0).fit(seen).score_samples(seen), kind="stable"
    )
    ranks = np.empty(len(seen))
    ranks[order] = np.linspace(0, 1, len(seen))
    return ranks


@dataclass(frozen=True)
class Checked:
    """What retraining without some instances, one by one, did to each validation instance."""

    verification: Verification
    asked: np.ndarray  # the validation instances, or a sample of a large part
    changes: np.ndarray  # [asked, checked]


def verify(
    run: Run,
    scores: np.ndarray,
    validation: Pair,
    first: np.ndarray,
    *,
    at_random: int,
    seed: int,
    progress: bool,
) -> Checked:
    """The first suggestions and a random sample, each checked by a real run without it."""
    others = np.setdiff1d(np.arange(len(scores)), first)
    sample = np.random.default_rng(mixed(seed, 4)).choice(
        others, min(at_random, len(others)), replace=False
    )
    ids = np.concatenate([first, np.sort(sample)])
    without = replace(run, progress=progress).counterfactual([[k] for k in ids])
    asked = np.sort(np.random.default_rng(mixed(seed, 8)).permutation(len(validation[1]))[:_ASKED])
    changes = without.changes(losses_of((validation[0][asked], validation[1][asked])))
    return Checked(
        compare(ids, scores[ids], without.changes(mean_loss(validation))), asked, changes
    )
