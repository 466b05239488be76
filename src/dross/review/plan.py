"""The recommended plan as the page shows it, and warnings about what decisions do to classes."""

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..cleaning.decisions import Decision
from ..cleaning.findings import describe_checked, describe_recommendation, warn_of_disagreement
from ..cleaning.plans import ClassEffect, Edits, class_effects, list_measures, tabulate_plans
from ..cleaning.project import Project
from ..cleaning.report import draw_plans_figure, write_command

FIGURE = "/image/plans"
_WARN_FROM_SHARE_LOST = 0.20
_WARN_BELOW_INSTANCES_LEFT = 10


class RecommendedPlan:
    """The recommended plan of a project, for the page."""

    def __init__(self, project: Project):
        self.project = project
        self._drawing = threading.Lock()  # the style of matplotlib is global

    @cached_property
    def changes(self) -> dict[int, Decision]:
        """The decision about each instance in the plan; none: change nothing."""
        plan = self.project.recommended
        if plan is None:
            return {}
        removed: dict[int, Decision] = {int(id): ("remove", None) for id in plan.removed}
        return removed | {id: ("relabel", label) for id, label in plan.relabeled.items()}

    def describe(self) -> dict[str, Any]:
        """Its edits, its reason, warnings, and the other plans, as JSON."""
        info = self.project.info
        what, why = describe_recommendation(info, self.project.table)
        command = None  # to run again once labels are checked, unless dross.clean was called
        if not info.modality.has_tokens and info.request.memory is None:
            command = write_command(info, self.project.folder, short=True)
        table = tabulate_plans(self.project.plans, info.recommendation.recommended)
        return {
            "what": what,
            "why": why,
            "disagreement": warn_of_disagreement(info),
            "count": len(self.changes),
            "checked": describe_checked(info),
            "command": command,
            "figure": FIGURE if list_measures(self.project.plans) else None,
            "others": table["rows"],
            "measures": table["measures"],
        }

    def count_followed(self, decisions: Mapping[int, Decision]) -> int:
        """How many instances are decided as the plan recommends."""
        return sum(decisions.get(id) == decision for id, decision in self.changes.items())

    @cached_property
    def figure(self) -> bytes | None:
        """The figure of all plans, as SVG; None if none was measured."""
        with self._drawing:
            svg = draw_plans_figure(self.project.info)
        return svg.encode() if svg else None


def class_warnings(
    labels: Sequence[str], decisions: Mapping[int, Decision], *, regression: bool = False
) -> list[str]:
    """Return a sentence for each class that would lose a fifth or more, or have fewer than ten left.

    Arguments:
        labels: Of every training instance.
        decisions: By the id of the instance.
        regression: Labels are numbers; all instances count as one class.
    """
    relabeled = {id: label for id, (action, label) in decisions.items() if action == "relabel"}
    if regression:
        labels = ["the data"] * len(labels)
        relabeled = {}
    removed = [id for id, (action, _) in decisions.items() if action == "remove"]
    edits = Edits(np.array(removed, dtype=np.int64), relabeled)
    return [
        _describe_loss("The training data" if regression else f"Class {effect.name}", effect)
        for effect in class_effects(labels, edits)
        if effect.lost >= _WARN_FROM_SHARE_LOST * effect.before
        or effect.left < _WARN_BELOW_INSTANCES_LEFT
    ]


def _describe_loss(who: str, effect: ClassEffect) -> str:
    """A sentence whose numbers add up to how many are left."""
    gained = f" and gain {effect.gained} by relabeling" if effect.gained else ""
    return (
        f"{who} would lose {effect.lost} of {effect.before} instances "
        f"({100 * effect.lost / effect.before:.0f}\u00a0%){gained}; {effect.left} would be left."
    )
