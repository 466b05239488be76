"""Does a class lose too much of its data?"""

from collections import Counter
from collections.abc import Mapping, Sequence

from ..cleanse.decisions import Decision

_MUCH = 0.20
_FEW = 10


def class_warnings(
    labels: Sequence[str], decisions: Mapping[int, Decision], *, regression: bool = False
) -> list[str]:
    """One sentence for each class that would lose a fifth or more of its instances, or be left with fewer than ten."""
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
        if lost and (sentence := _sentence(name, lost, total[name], arriving[name], regression))
    ]


def _sentence(name: str, lost: int, total: int, arriving: int, regression: bool) -> str | None:
    left = total - lost + arriving
    if lost < _MUCH * total and left >= _FEW:
        return None
    whose = "The training data" if regression else f"Class {name}"
    return f"{whose} would lose {lost} of {total} instances ({100 * lost / total:.0f}\u00a0%); {left} would be left."
