"""The plans that compete: lists of what to remove and what to relabel.

Two questions rank the training instances: what is harmful (the scores), and what is mislabelled
(the loss under models that did not learn the instance). Neither list is the better one on all data,
and what is high in both is right more often than either.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..learning.recipe import Recipe
from ..learning.score import rank, robust_deviation

# What each kind of plan does, in words that follow "Recommended:".
KINDS = {
    "harmful": "remove the {removed} most harmful",
    "mislabelled": "remove the {removed} most probably mislabelled",
    "both": "remove the {removed} that are both harmful and probably mislabelled",
    "harmful-suspects": "remove the {removed} most harmful of the probably mislabelled",
    "confused": "remove the {removed} whose label was most likely taken for another",
    "relabel": "relabel the {relabelled} most probably mislabelled",
    "relabel-or-remove": "relabel {relabelled} and remove {removed} that are probably mislabelled",
}
KINDS_BY_SCORES = ("harmful", "both", "harmful-suspects", "relabel-or-remove")
SHARES = (0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3)
_SURE = 0.8  # the probability of the prediction, from which on an instance is relabelled
_FAR_OFF = 3.0  # robust deviations, from which on a number may be wrong


@dataclass(frozen=True)
class Plan:
    """What to remove and what to relabel, as ids of the training part."""

    kind: str  # one of KINDS
    removed: np.ndarray  # int64 [R]
    relabelled: np.ndarray  # int64 [L]: they get the label that the models predict

    @property
    def size(self) -> int:
        """How many instances it touches."""
        return len(self.removed) + len(self.relabelled)

    @property
    def name(self) -> str:
        """The kind and the size, such as `both-120`: what `--plan` takes."""
        return f"{self.kind}-{self.size}"

    def describe(self) -> str:
        """What it does, in words."""
        counts = {"removed": f"{len(self.removed):,}", "relabelled": f"{len(self.relabelled):,}"}
        return KINDS[self.kind].format(**counts)


@dataclass(frozen=True)
class Beliefs:
    """What models that did not learn them think of N training instances."""

    loss: np.ndarray  # [N]: the higher, the likelier the label is wrong
    suspect: np.ndarray  # bool [N]: they would label it otherwise
    sure: np.ndarray  # bool [N]: and are sure of their own label
    predicted: Tensor  # the labels that they would give, as a model learns them
    confused: np.ndarray  # bool [N]: see `find_confused`; the suspects, where labels are numbers

    @staticmethod
    def of(recipe: Recipe, outputs: np.ndarray, y: Tensor) -> "Beliefs":
        """Read them from what several models say.

        Arguments:
            recipe: Of the models.
            outputs: [models, N, outputs].
            y: The labels, int64 [N], or float32 [N, 1] for numbers.
        """
        said = torch.from_numpy(outputs)
        if recipe.loss != "cross_entropy":
            predicted = said.mean(0)
            loss = (predicted - y).abs()[:, 0].double().numpy()
            far = loss > _FAR_OFF * robust_deviation(loss)
            return Beliefs(loss, far, far, predicted.to(y.dtype), far)
        chances = torch.softmax(said, -1).mean(0)
        own = chances.gather(1, y[:, None])[:, 0].double().numpy()
        best = chances.max(1)
        suspect = (best.indices != y).numpy()
        sure = suspect & (best.values > _SURE).numpy()
        confused = find_confused(chances.double().numpy(), y.numpy())
        return Beliefs(-own, suspect, sure, best.indices, confused)


def find_confused(chances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Instances whose label was most likely taken for another: confident learning.

    A model is confident that an instance is of class j if it gives j at least the chance that it
    gives on average to what is labelled j. Counting labels against confident classes estimates how
    often each class is labelled as each other one (Northcutt, Jiang and Chuang, 2021, the confident
    joint). That many of every pair are taken, those first whose chances speak most clearly against
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


def list_plans(harm: np.ndarray, beliefs: Beliefs, sizes: list[int]) -> list[Plan]:
    """Every plan of the given sizes, as far as there are as many instances to take.

    Arguments:
        harm: The scores [N]: the lower, the more harmful.
        beliefs: What models that did not learn them think of the instances.
        sizes: How many instances a plan touches.
    """
    harm_rank, loss_rank = rank(harm), rank(-beliefs.loss)
    by_both = np.argsort(harm_rank + loss_rank, kind="stable")
    by_harm, by_loss = np.argsort(harm_rank), np.argsort(loss_rank)
    suspects = lambda order: order[beliefs.suspect[order]]
    orders = {
        "harmful": by_harm,
        "mislabelled": suspects(by_loss),
        "both": by_both,
        "harmful-suspects": suspects(by_harm),
        "relabel": suspects(by_loss),
        "relabel-or-remove": suspects(by_both),
    }
    plans = [
        _make_plan(kind, order[:size], beliefs)
        for kind, order in orders.items()
        for size in sizes
        if size <= len(order)
    ]
    confused = np.flatnonzero(beliefs.confused)
    return [*plans, _make_plan("confused", confused, beliefs)] if len(confused) else plans


def plan_sizes(count: int, beliefs: Beliefs) -> list[int]:
    """How many of `count` instances plans touch: shares, and the number of suspects."""
    shares = {max(1, round(share * count)) for share in SHARES}
    suspects = int(beliefs.suspect.sum())
    return sorted(shares | ({suspects} if 0 < suspects <= SHARES[-1] * count else set()))


def _make_plan(kind: str, ids: np.ndarray, beliefs: Beliefs) -> Plan:
    nothing = np.zeros(0, dtype=np.int64)
    if kind == "relabel":
        return Plan(kind, nothing, ids)
    if kind == "relabel-or-remove":
        sure = beliefs.sure[ids]
        return Plan(kind, ids[~sure], ids[sure])
    return Plan(kind, ids, nothing)
