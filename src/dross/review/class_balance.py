"""Does a class lose too much of its data?"""

from collections import Counter
from collections.abc import Mapping, Sequence

from ..cleaning.decisions import Decision

_WARN_FROM_SHARE_LOST = 0.20
_WARN_BELOW_INSTANCES_LEFT = 10


def class_warnings(
    labels: Sequence[str], decisions: Mapping[int, Decision], *, regression: bool = False
) -> list[str]:
    """Return a sentence for each class that would lose a fifth or more, or keep fewer than ten.

    Arguments:
        labels: Of every training instance.
        decisions: By the id of the instance.
        regression: Labels are numbers; all instances count as one class.
    """
    if regression:
        labels = ["the data"] * len(labels)
    total = Counter(labels)
    leaving: Counter[str] = Counter()
    arriving: Counter[str] = Counter()
    for id, (action, label) in decisions.items():
        moves = action == "relabel" and not regression and label != labels[id]
        leaving[labels[id]] += moves or action == "remove"
        arriving[label or ""] += moves
    return [
        sentence
        for name, lost in sorted(leaving.items(), key=lambda entry: -entry[1] / total[entry[0]])
        if lost and (sentence := _warning(name, lost, total[name], arriving[name], regression))
    ]


def _warning(name: str, lost: int, total: int, arriving: int, regression: bool) -> str | None:
    left = total - lost + arriving
    if lost < _WARN_FROM_SHARE_LOST * total and left >= _WARN_BELOW_INSTANCES_LEFT:
        return None
    whose = "The training data" if regression else f"Class {name}"
    share = f"{100 * lost / total:.0f}\u00a0%"
    return f"{whose} would lose {lost} of {total} instances ({share}); {left} would be left."
