"""Ask models of several kinds about instances that they did not learn, in a few rounds.

Models that learn wrong labels repeat some of them: where one class is often taken for another, they
expect it. So the models of the next round learn only what is not likely wrong, and know better.
Three or four rounds are enough for the list to settle.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...support.progress import progress_bar
from ..learning.recipe import Pair, Recipe
from ..learning.score import InstanceScores, cross_fit, cross_fit_folds
from ..learning.train_many import can_train_together
from .beliefs import LIKELY, Beliefs, mean_chances
from .other_models import Maker, fit_other_model, flatten, list_other_models, say_of

_MOST_ROUNDS = 4
_SETTLED = 0.005  # of the instances: when fewer change sides, the list has settled
_MOST_WRONG = 0.5  # of the instances: models that learnt fewer would know too little


@dataclass(frozen=True)
class Answers:
    """What all kinds of models think of training and of validation labels."""

    training: Beliefs
    validation: Beliefs  # of models none of which learnt a validation label


def ask_models(
    recipe: Recipe,
    data: Pair,
    validation: Pair,
    scored: InstanceScores,
    *,
    seed: int,
    progress: bool,
) -> Answers:
    """Ask until the list of likely wrong labels settles.

    Arguments:
        recipe: The network that is one of the kinds.
        data: The inputs and targets of the training part.
        validation: Those of the validation part, which nobody learns.
        scored: With what cross-fitted networks say of both, for the first round.
        seed: Decides the folds and the networks.
        progress: Whether to show a progress bar.
    """
    kinds = _Kinds(recipe, data, validation[0], cross_fit_folds(len(data[1]), 1, seed)[0])
    outputs, on_validation = scored.outputs, scored.on_validation
    left, number = np.ones(len(data[1]), dtype=bool), 1
    while True:
        title = f"asking other models, round {number}"
        said, also = kinds.ask(outputs, on_validation, left, title, progress)
        training = kinds.read(said, data[1])
        right = training.wrong <= LIKELY
        settled = (right != left).mean() < _SETTLED or right.mean() < 1 - _MOST_WRONG
        if settled or number == (_MOST_ROUNDS if can_train_together(recipe) else 2):
            return Answers(training, kinds.read(also, validation[1]))
        left, number = right, number + 1
        options = {"seed": seed, "progress": progress, "left": left}
        again = cross_fit(recipe, data, validation[0], repeats=1, **options)
        outputs, on_validation = again.outputs.numpy(), again.on_others.numpy()


class _Kinds:
    """Models of all kinds, and what they learn."""

    def __init__(self, recipe: Recipe, data: Pair, asked: Tensor, folds: list[np.ndarray]):
        x, y = data
        self.classes = recipe.outputs if recipe.loss == "cross_entropy" else 0
        self.x, self.asked = flatten(x), flatten(asked)
        self.y = (y if self.classes else y[:, 0]).cpu().numpy()
        self.folds = folds
        self.others = list_other_models(self.x, classes=bool(self.classes))

    def ask(
        self,
        outputs: np.ndarray,
        on_asked: np.ndarray,
        left: np.ndarray,
        title: str,
        progress: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The mean of what all kinds say of training instances and of others.

        outputs, on_asked: what the networks say of them; left: what the other kinds may learn.
        """
        read = mean_chances if self.classes else lambda found: found.mean(0).astype(np.float64)
        said, also = [read(outputs)], [read(on_asked)]
        with progress_bar(title, len(self.others), show=progress) as advance:
            for make in self.others.values():
                of_kind, of_asked = self._ask_one_kind(make, left, said[0], also[0])
                said.append(of_kind)
                also.append(of_asked)
                advance(1)
        return np.mean(said, axis=0), np.mean(also, axis=0)

    def _ask_one_kind(
        self, make: Maker, left: np.ndarray, otherwise: np.ndarray, otherwise_asked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What models of one kind say of the fold that each did not learn, and of others.

        otherwise, otherwise_asked: what is said where nothing can be learnt.
        """
        said, also = otherwise.copy(), []
        for fold in self.folds:
            learnt = left.copy()
            learnt[fold] = False
            model = fit_other_model(make, self.x, self.y, np.flatnonzero(learnt))
            if model is not None:
                said[fold] = say_of(model, self.x[fold], self.classes)
                also.append(say_of(model, self.asked, self.classes))
        return said, np.mean(also, axis=0) if also else otherwise_asked

    def read(self, said: np.ndarray, y: Tensor) -> Beliefs:
        """What the answers mean for the labels."""
        return Beliefs.of_chances(said, y) if self.classes else Beliefs.of_numbers(said[:, 0], y)
