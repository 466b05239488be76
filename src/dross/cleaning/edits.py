"""What to remove and what to relabel: decisions, a plan, or the top of a list."""

from dataclasses import dataclass

import numpy as np

from ..errors import InvalidInput
from .decisions import TRAIN, Decision, check_belongs
from .modality import MIN_INSTANCES
from .plans import KEEP, RELABEL, REMOVE, RULES, Edits, PlanResult
from .project import Project

BY_DECISIONS = "decisions"


class NothingToChange(InvalidInput):
    """There is no change to judge, or none between two versions: nothing is wrong."""


@dataclass(frozen=True)
class ChosenEdits(Edits):
    """How the cleaned training data differ from the original, and why."""

    what: str  # in words; BY_DECISIONS where a person decided on the page
    rule: str | None = None  # the rule that they follow, if any; see RULES
    ranked: bool = False  # whether they are the top of a list that models have ordered
    blind: bool = False  # whether they were made without the labels of other rows
    kept: tuple[int, ...] = ()  # the ids that a person decided to keep

    def decisions(self) -> dict[int, Decision]:
        """What happens to each instance, in the order of ids, with those that a person kept."""
        decided: dict[int, Decision] = dict.fromkeys(self.kept, (KEEP, None))
        decided |= {int(id): (REMOVE, None) for id in self.removed}
        decided |= {id: (RELABEL, label) for id, label in self.relabeled.items()}
        return dict(sorted(decided.items()))


def choose_edits(
    project: Project,
    remove: int | None,
    relabel: int | None,
    decisions: bool,
    plan: str | None = None,
) -> ChosenEdits:
    """The edits that a caller asks for.

    remove, relabel: how many of the most harmful, and of those most likely to be mislabeled; plan:
    the name of a plan. Without them: what was decided on the review page; where nothing was
    decided, the recommended plan, unless `decisions` insists.
    """
    count = len(project.table)
    if plan is not None:
        if remove is not None or relabel is not None or decisions:
            raise InvalidInput(
                "`plan` determines the changes; leave out `remove`, `relabel` and `decisions`."
            )
        return _from_plan(find_plan(project, plan))
    for option, value in (("remove", remove), ("relabel", relabel)):
        if value is not None and not 0 < value < count:
            raise InvalidInput(
                f"`{option}` must lie between 1 and {count - 1}, not {value}: there are "
                f"{count} training instances."
            )
    if relabel is not None or remove is not None:
        return _from_rankings(project, remove or 0, relabel or 0)
    decided = _from_decisions(project)
    if len(decided):
        return decided
    if decisions:
        raise InvalidInput(
            "No instance has been removed or relabeled on the review page yet. Make decisions "
            f"with dross review {project.folder}, or pass `remove`."
        )
    if project.recommended is None:
        raise NothingToChange(
            "There is nothing to change: no change is recommended, and nothing has been decided "
            f"with dross review. {project.info.recommendation.reason}"
        )
    return _from_plan(project.recommended)


def _from_rankings(project: Project, remove: int, relabel: int) -> ChosenEdits:
    """An instance in both lists is relabeled, not removed."""
    instances = project.table
    suspects = instances[instances["mislabel_rank"] >= 0].sort_values("mislabel_rank")
    if not remove and suspects.empty:
        raise InvalidInput(
            "`relabel` has nothing to change: no label is likely to be wrong. Pass `remove`, or "
            f"relabel by hand with dross review {project.folder}."
        )
    predictions = suspects.head(relabel)["prediction"]
    relabeled = {int(id): str(label) for id, label in predictions.items()}
    harmful = instances.sort_values("harm_rank").index.to_numpy()[:remove]
    in_both = np.isin(harmful, list(relabeled))
    what = []
    if remove:
        what.append(f"the {len(harmful)} most harmful removed")
    if relabel:
        what.append(f"the {len(relabeled)} most likely label errors relabeled")
    if in_both.any():
        what.append(f"{int(in_both.sum())} instances in both lists relabeled, not removed")
    return ChosenEdits(harmful[~in_both], relabeled, ", ".join(what), ranked=True)


def _from_decisions(project: Project) -> ChosenEdits:
    decisions = project.current_decisions()
    count = len(project.table)
    path = project.folder / "decisions.sqlite"
    check_belongs(decisions, path, TRAIN, count, project.classes)
    removed = [id for id, (action, _) in decisions.items() if action == REMOVE]
    relabeled = {id: str(label) for id, (action, label) in decisions.items() if action == RELABEL}
    kept = tuple(id for id, (action, _) in decisions.items() if action == KEEP)
    if len(removed) > count - MIN_INSTANCES // 2:
        raise InvalidInput(
            f"These decisions would remove {len(removed)} of {count} training instances, leaving "
            "too few to train on. Undo some of them."
        )
    return ChosenEdits(np.array(removed, dtype=np.int64), relabeled, BY_DECISIONS, kept=kept)


def find_plan(project: Project, name: str) -> PlanResult:
    """The plan of this name; `recommended` is the recommended one."""
    if name == "recommended" and project.recommended is not None:
        return project.recommended
    for plan in project.plans:
        if name == plan.name:
            return plan
    known = ", ".join(plan.name for plan in project.plans) or "none"
    raise InvalidInput(f"There is no plan '{name}' in {project.folder}. Its plans: {known}.")


def _from_plan(plan: PlanResult) -> ChosenEdits:
    rule = plan.name if plan.name in RULES else None
    what = f"the plan {plan.name} ({plan.what})"
    return ChosenEdits(plan.removed, plan.relabeled, what, rule=rule)
