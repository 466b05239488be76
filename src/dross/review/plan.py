"""The recommended plan as the page shows it, and warnings about what decisions do to classes."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ..cleaning.chats import CHATS
from ..cleaning.decisions import Decision
from ..cleaning.findings import describe_checked, describe_recommendation, warn_of_disagreement
from ..cleaning.plans import list_measures, tabulate_plans
from ..cleaning.project import Project
from ..cleaning.report import draw_plans_figure, write_command

PICTURE = "/picture/plans"
_WARN_FROM_SHARE_LOST = 0.20
_WARN_BELOW_INSTANCES_LEFT = 10


class RecommendedPlan:
    """What the recommended plan of a project does and says."""

    def __init__(self, project: Project):
        self.project = project
        self._drawing = threading.Lock()  # the library that draws knows one figure at a time

    @cached_property
    def changes(self) -> dict[int, Decision]:
        """What the plan decides about each instance that it touches; none: change nothing."""
        plan = self.project.recommended
        if plan is None:
            return {}
        removed: dict[int, Decision] = {int(id): ("remove", None) for id in plan.removed}
        return removed | {id: ("relabel", label) for id, label in plan.relabelled.items()}

    def describe(self) -> dict[str, Any]:
        """What it does, why, what to be careful about, and the other plans, as JSON."""
        info = self.project.info
        what, why = describe_recommendation(info, self.project.instances)
        table = tabulate_plans(self.project.plans, info.recommendation.recommended)
        return {
            "what": what,
            "why": why,
            "disagreement": warn_of_disagreement(info),
            "count": len(self.changes),
            "checked": describe_checked(info),
            "command": self._command,
            "picture": PICTURE if list_measures(self.project.plans) else None,
            "others": table["rows"],
            "measures": table["measures"],
        }

    @property
    def _command(self) -> str | None:
        """What to run again once labels are checked; None: the same call of `dross.clean`."""
        info = self.project.info
        if info.kind == CHATS or info.request.given is not None:
            return None
        return write_command(info, self.project.folder, short=True)

    def count_followed(self, decisions: Mapping[int, Decision]) -> int:
        """How many instances are decided as the plan recommends."""
        return sum(decisions.get(id) == decision for id, decision in self.changes.items())

    def draw(self) -> bytes | None:
        """The figure of all plans, as SVG; None where none was measured."""
        with self._drawing:
            return self._drawn

    @cached_property
    def _drawn(self) -> bytes | None:
        drawn = draw_plans_figure(self.project.info)
        return drawn.encode() if drawn else None


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
    lost: Counter[str] = Counter()
    gained: Counter[str] = Counter()
    for id, (action, label) in decisions.items():
        moves = action == "relabel" and not regression and label != labels[id]
        lost[labels[id]] += moves or action == "remove"
        gained[label or ""] += moves
    warnings = []
    for name in sorted(+lost, key=lambda name: -lost[name] / total[name]):
        share = lost[name] / total[name]
        left = total[name] - lost[name] + gained[name]
        if share >= _WARN_FROM_SHARE_LOST or left < _WARN_BELOW_INSTANCES_LEFT:
            whose = "The training data" if regression else f"Class {name}"
            warnings.append(
                f"{whose} would lose {lost[name]} of {total[name]} instances "
                f"({100 * share:.0f}\u00a0%); {left} would be left."
            )
    return warnings
