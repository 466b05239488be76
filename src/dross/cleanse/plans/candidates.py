"""The plans that compete: lists of what to remove and what to relabel.

Two questions rank the training instances: what is harmful (the scores), and what is mislabelled
(the chance that the label is wrong, by models that did not learn the instance). Neither list is the
better one on all data. How many labels are wrong is estimated, too: the plan that is tried first
touches those that are more likely wrong than right.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..learning.edited_data import EncodedEdits
from ..learning.score import rank
from ..opinions.beliefs import LIKELY, Beliefs

# What each kind of plan does, in words that follow "Recommended:".
KINDS = {
    "likely-wrong": "{actions} whose labels are likely wrong",
    "harmful": "remove the {removed} most harmful",
    "mislabelled": "remove the {removed} most probably mislabelled",
    "both": "remove the {removed} that are both harmful and probably mislabelled",
    "harmful-suspects": "remove the {removed} most harmful of the probably mislabelled",
    "confused": "remove the {removed} whose label was most likely taken for another",
    "relabel": "relabel the {relabelled} most probably mislabelled",
    "relabel-or-remove": "{actions} that are probably mislabelled",
    "unlikely": "remove the {removed} with the highest loss before fine-tuning",  # of chats
}
KINDS_BY_SCORES = ("harmful", "both", "harmful-suspects", "relabel-or-remove")
SHARES = (0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3)
_LIMITS = (0.3, 0.7)  # chances to be wrong: the number of labels above each is a size to try


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

    def encode(self, predicted: Tensor) -> EncodedEdits:
        """What it does to the training part.

        predicted: the label that the models give each instance, as models learn it, [N] or [N, 1].
        """
        labels = predicted[self.relabelled] if len(self.relabelled) else None
        return EncodedEdits(self.removed, self.relabelled, labels)

    def describe(self) -> str:
        """What it does, in words."""
        counts = {"removed": len(self.removed), "relabelled": len(self.relabelled)}
        said = {name: f"{count:,}" for name, count in counts.items()}
        return KINDS[self.kind].format(actions=describe_actions(**counts), **said)


def describe_actions(removed: int, relabelled: int) -> str:
    """How many are relabelled and removed, in words; "" if none is."""
    counts = {"relabel": relabelled, "remove": removed}
    return " and ".join(f"{action} {count:,}" for action, count in counts.items() if count)


def list_plans(harm: np.ndarray, beliefs: Beliefs, sizes: list[int]) -> list[Plan]:
    """Every plan of the given sizes for which there are enough instances.

    Arguments:
        harm: The scores [N]: the lower, the more harmful.
        beliefs: What models that did not learn them think of the instances.
        sizes: How many instances a plan touches.
    """
    harm_rank, doubt_rank = rank(harm), rank(-beliefs.doubt)
    by_both = np.argsort(harm_rank + doubt_rank, kind="stable")
    by_harm, by_doubt = np.argsort(harm_rank), np.argsort(doubt_rank)
    suspects = lambda order: order[beliefs.suspect[order]]
    orders = {
        "harmful": by_harm,
        "mislabelled": suspects(by_doubt),
        "both": by_both,
        "harmful-suspects": suspects(by_harm),
        "relabel": suspects(by_doubt),
        "relabel-or-remove": suspects(by_both),
    }
    plans = [
        _make_plan(kind, order[:size], beliefs)
        for kind, order in orders.items()
        for size in sizes
        if size <= len(order)
    ]
    lists = {"likely-wrong": beliefs.wrong > LIKELY, "confused": beliefs.confused}
    found = {kind: np.flatnonzero(chosen) for kind, chosen in lists.items()}
    return plans + [_make_plan(kind, ids, beliefs) for kind, ids in found.items() if len(ids)]


def plan_sizes(count: int, beliefs: Beliefs) -> list[int]:
    """How many of `count` instances plans touch: shares, and estimates of how many are wrong."""
    shares = {max(1, round(share * count)) for share in SHARES}
    estimates = {int((beliefs.wrong > limit).sum()) for limit in _LIMITS}
    estimates |= {round(beliefs.wrong.sum()), int(beliefs.suspect.sum())}
    return sorted(shares | {size for size in estimates if 0 < size <= SHARES[-1] * count})


def _make_plan(kind: str, ids: np.ndarray, beliefs: Beliefs) -> Plan:
    nothing = np.zeros(0, dtype=np.int64)
    if kind == "relabel":
        return Plan(kind, nothing, ids)
    if kind in ("relabel-or-remove", "likely-wrong"):
        sure = beliefs.sure[ids]
        return Plan(kind, ids[~sure], ids[sure])
    return Plan(kind, ids, nothing)
