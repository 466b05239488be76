"""The recommended plan as the page shows it: what, why, how sure, and what others would give."""

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ..cleaning.chats import CHATS
from ..cleaning.decisions import Decision
from ..cleaning.findings import describe_checked, describe_recommendation, warn_of_disagreement
from ..cleaning.plans import list_measures, tabulate_plans
from ..cleaning.project import Project
from ..cleaning.report import draw_plans_figure, write_command

PICTURE = "/picture/plans"


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
        about = self.project.about
        what, why = describe_recommendation(about, self.project.instances)
        table = tabulate_plans(self.project.plans, about["recommendation"]["recommended"])
        return {
            "what": what,
            "why": why,
            "disagreement": warn_of_disagreement(about),
            "count": len(self.changes),
            "checked": describe_checked(about),
            "command": self._command,
            "picture": PICTURE if list_measures(about) else None,
            "others": table["rows"],
            "measures": table["measures"],
        }

    @property
    def _command(self) -> str | None:
        """What to run again once labels are checked; None: the same call of `dross.clean`."""
        about = self.project.about
        if about.get("kind") == CHATS or about["request"].get("given") is not None:
            return None
        return write_command(about, self.project.folder, short=True)

    def count_followed(self, decisions: Mapping[int, Decision]) -> int:
        """How many instances are decided as the plan recommends."""
        return sum(decisions.get(id) == decision for id, decision in self.changes.items())

    def draw(self) -> bytes | None:
        """The figure of all plans, as SVG; None where none was measured."""
        with self._drawing:
            return self._drawn

    @cached_property
    def _drawn(self) -> bytes | None:
        drawn = draw_plans_figure(self.project.about)
        return drawn.encode() if drawn else None
