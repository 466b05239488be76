"""What models that did not learn them think of instances: which labels are doubted, how, and why.

One definition for training, validation and test labels.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..learning.recipe import Recipe
from ..learning.score import robust_deviation
from .class_noise import fit_class_noise
from .number_noise import number_noise

LIKELY = 0.5  # more likely wrong than right
_SURE = 0.9  # an instance is relabelled if the chance of another label is higher
_TIE = 1e-3  # orders labels that are about equally likely to be wrong
_FAR_OFF = 3.0  # robust deviations: a number that is further off may be wrong


@dataclass(frozen=True)
class Beliefs:
    """What models that did not learn them think of N instances."""

    wrong: np.ndarray  # [N]: the chance that the label is wrong
    doubt: np.ndarray  # [N]: the higher, the likelier it is wrong; a finer order than `wrong`
    suspect: np.ndarray  # bool [N]: the models would label it otherwise
    sure: np.ndarray  # bool [N]: and are sure of their own label
    predicted: Tensor  # the label that they would give, as a model learns it
    confused: np.ndarray  # bool [N]: see `find_confused`; the suspects, where labels are numbers
    chances: np.ndarray | None  # of the classes, [N, classes]; None where labels are numbers

    @staticmethod
    def of(recipe: Recipe, outputs: np.ndarray, y: Tensor) -> "Beliefs":
        """Read them from what several models say.

        Arguments:
            recipe: Of the models.
            outputs: [models, N, outputs].
            y: The labels, int64 [N], or float32 [N, 1] for numbers.
        """
        if recipe.loss != "cross_entropy":
            return Beliefs.of_numbers(outputs.mean(0)[:, 0], y)
        return Beliefs.of_chances(mean_chances(outputs), y)

    @staticmethod
    def of_numbers(predicted: np.ndarray, y: Tensor) -> "Beliefs":
        """Read them from predicted numbers, [N]; y: float32 [N, 1]."""
        labels = y[:, 0].double().numpy()
        predicted = predicted.astype(np.float64)
        errors, wrong = np.abs(predicted - labels), number_noise(predicted, labels)
        suspect = (errors > _FAR_OFF * robust_deviation(errors)) | (wrong > LIKELY)
        labelled = torch.from_numpy(predicted).to(y.dtype)[:, None]
        doubt = wrong + _TIE * errors / (1 + errors)
        return Beliefs(wrong, doubt, suspect, wrong > _SURE, labelled, suspect, None)

    @staticmethod
    def of_chances(chances: np.ndarray, y: Tensor) -> "Beliefs":
        """Read them from the chances of classes, [N, classes]; y: int64 [N]."""
        labels, rows = y.numpy(), np.arange(len(y))
        posterior = fit_class_noise(chances, labels).posterior
        wrong = 1 - posterior[rows, labels]
        suspect = (chances.argmax(1) != labels) | (wrong > LIKELY)
        posterior[rows, labels] = -1.0
        other = posterior.argmax(1)
        predicted = np.where(suspect, other, labels)
        return Beliefs(
            wrong,
            wrong + _TIE * (1 - chances[rows, labels]),
            suspect,
            suspect & (posterior[rows, other] > _SURE),
            torch.from_numpy(predicted),
            find_confused(chances, labels),
            chances,
        )


def mean_chances(outputs: np.ndarray) -> np.ndarray:
    """The chances of classes by several models, [N, classes]; outputs: [models, N, classes]."""
    return torch.softmax(torch.from_numpy(outputs).double(), -1).mean(0).numpy()


def find_confused(chances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Instances whose label was most likely taken for another: confident learning.

    A model is confident that an instance is of class j if it gives j at least the chance that it
    gives on average to what is labelled j. Counting labels against confident classes estimates how
    often each class is labelled as each other one (Northcutt, Jiang and Chuang, 2021, the confident
    joint). That many of every pair are taken: first those whose chances speak most clearly against
    the label, and only where another class is the likeliest.

    Arguments:
        chances: Of models that did not learn the instances, [N, classes].
        labels: int64 [N].

    Returns:
        bool [N].
    """
    classes = chances.shape[1]
    counts = np.bincount(labels, minlength=classes)
    usual = np.array(
        [chances[labels == c, c].mean() if counts[c] else np.inf for c in range(classes)]
    )
    confident = chances >= usual
    looks_like = np.where(confident, chances, -1.0).argmax(1)
    joint, known = np.zeros((classes, classes)), confident.any(1)
    np.add.at(joint, (labels[known], looks_like[known]), 1)
    joint *= (counts / np.maximum(joint.sum(1), 1))[:, None]  # as many as have the label
    confused = np.zeros(len(labels), dtype=bool)
    for given, members in enumerate(np.flatnonzero(labels == c) for c in range(classes)):
        for other in range(classes):
            if other != given:
                against = chances[members, other] - chances[members, given]
                order = np.argsort(-against, kind="stable")
                confused[members[order[: round(joint[given, other])]]] = True
    return confused & (chances.argmax(1) != labels)
