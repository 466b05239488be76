"""The recommended plan as the page shows it: what, why, how sure, and what others would give."""

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ...cleanse.confidence.agreement import warn_of_disagreement
from ...cleanse.decision_state import Decision
from ...cleanse.findings import describe_recommendation
from ...cleanse.plans.known import tabulate_plans
from ...cleanse.project import Project
from ...cleanse.report import draw_competition

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
        table = tabulate_plans(self.project.plans, about.get("plans", {}).get("recommended"))
        return {
            "what": what,
            "why": why,
            "disagreement": warn_of_disagreement(about),
            "count": len(self.changes),
            "picture": PICTURE if "plans" in about or "curve" in about else None,
            "others": table["rows"],
            "kinds": table["kinds"],
        }

    def count_followed(self, decisions: Mapping[int, Decision]) -> int:
        """How many instances are decided as the plan recommends."""
        return sum(decisions.get(id) == decision for id, decision in self.changes.items())

    def draw(self) -> bytes | None:
        """The picture of all plans that were tried, as SVG; None where there is none."""
        with self._drawing:
            return self._drawn

    @cached_property
    def _drawn(self) -> bytes | None:
        about = self.project.about
        known = "plans" in about or "curve" in about
        return draw_competition(about).encode() if known else None
