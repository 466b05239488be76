"""Ask models of several kinds about instances that they did not learn, then others without doubts.

Models that learn wrong labels repeat some of them: where one class is often taken for another, they
expect it. Those that learn what is left without the likely wrong ones know better. Three or four
rounds are enough for the list to settle.
"""

import numpy as np

from ...support.progress import progress_bar
from ..learning.recipe import Pair, Recipe
from ..learning.score import cross_fit, cross_fit_folds
from ..learning.train_many import can_train_together
from .beliefs import LIKELY, Beliefs, mean_chances
from .other_models import Maker, fit_other_model, list_other_models, say_of

_MOST_ROUNDS = 4
_SETTLED = 0.005  # of the instances: when fewer change sides, the list has settled
_MOST_WRONG = 0.5  # of the instances: models that learnt fewer would know too little


def ask_models(
    recipe: Recipe, data: Pair, outputs: np.ndarray, *, seed: int, progress: bool
) -> Beliefs:
    """What all kinds of models together think of the training labels.

    Arguments:
        recipe: The network that is one of the kinds.
        data: The inputs and targets of the training part.
        outputs: What networks that learnt everything else say of each instance, [repeats, N,
            outputs].
        seed: Decides the folds and the networks.
        progress: Whether to show a progress bar.
    """
    x, y = data
    flat = x.reshape(len(x), -1).float().cpu().numpy()
    classes = recipe.outputs if recipe.loss == "cross_entropy" else 0
    targets = y.cpu().numpy() if classes else y[:, 0].cpu().numpy()
    others = list_other_models(flat, classes=bool(classes))
    folds = cross_fit_folds(len(y), 1, seed)[0]
    left, number = np.ones(len(y), dtype=bool), 1
    while True:
        said = [mean_chances(outputs) if classes else outputs.mean(0)]
        title = f"asking other models, round {number}"
        with progress_bar(title, len(others), show=progress) as advance:
            for make in others:
                said.append(_ask_one_kind(make, flat, targets, classes, left, folds, said[0]))
                advance(1)
        mean = np.mean(said, axis=0)
        beliefs = Beliefs.of_chances(mean, y) if classes else Beliefs.of_numbers(mean[:, 0], y)
        right = beliefs.wrong <= LIKELY
        settled = (right != left).mean() < _SETTLED or right.mean() < 1 - _MOST_WRONG
        if settled or number == (_MOST_ROUNDS if can_train_together(recipe) else 2):
            return beliefs
        left, number = right, number + 1
        again = cross_fit(recipe, data, repeats=1, seed=seed, progress=progress, left=left)
        outputs = again.numpy()


def _ask_one_kind(
    make: Maker,
    x: np.ndarray,
    y: np.ndarray,
    classes: int,
    left: np.ndarray,
    folds: list[np.ndarray],
    otherwise: np.ndarray,
) -> np.ndarray:
    """What models of one kind say of the fold that each did not learn, [N, classes or 1].

    otherwise: what is said where nothing can be learnt.
    """
    said = otherwise.astype(np.float64).copy()
    for fold in folds:
        learnt = left.copy()
        learnt[fold] = False
        model = fit_other_model(make, x, y, np.flatnonzero(learnt))
        if model is not None:
            said[fold] = say_of(model, x[fold], classes)
    return said
