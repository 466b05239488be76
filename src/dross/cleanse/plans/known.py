"""The plans of a finished project: those that reached the last stage of the competition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .actions import KEEP, RELABEL, REMOVE
from .candidates import Plan


@dataclass(frozen=True)
class KnownPlan:
    """A plan, and what it did to validation data that had no part in its ranking."""

    name: str  # what `--plan` takes
    what: str  # in words
    removed: np.ndarray  # int64 [R]: ids
    relabelled: dict[int, str]  # id -> the label that the models predict
    change: float | None  # of the validation error; below 0 is better. None: not tried as a whole
    error: float | None  # the standard error of the change
    by_kind: dict[str, float] = field(default_factory=dict)  # the change for models of other kinds

    def __repr__(self) -> str:
        return f"<plan {self.name}: {self.what}>"


def read_plans(about: dict[str, Any], predictions: Any) -> list[KnownPlan]:
    """The finalists, the best first; none in projects of earlier versions.

    Takes `Project.about` and the column `prediction` of `Project.instances`.
    """
    plans = []
    for entry in about.get("plans", {}).get("finalists", []):
        removed, relabelled = (
            np.array(entry[key], dtype=np.int64) for key in ("removed", "relabelled")
        )
        what = Plan(entry["kind"], removed, relabelled).describe()
        labels = {int(id): str(predictions.loc[id]) for id in relabelled}
        by_kind = entry.get("by_kind", {})  # earlier versions tried no other kinds
        figures = (entry["change"], entry["error"], by_kind)
        plans.append(KnownPlan(entry["name"], what, removed, labels, *figures))
    return plans


def read_recommended(about: dict[str, Any], instances: Any) -> KnownPlan | None:
    """What the column `action` of `Project.instances` says; None where everything is kept."""
    actions = instances["action"]
    if (actions == KEEP).all():
        return None
    removed = instances.index[actions == REMOVE].to_numpy(dtype=np.int64)
    relabelled = instances.index[actions == RELABEL]
    labels = {int(id): str(instances.loc[id, "prediction"]) for id in relabelled}
    suggested, plans = about["suggested"], about.get("plans", {})
    what = suggested.get("what") or f"remove the {len(removed):,} most harmful"
    name = plans.get("recommended") or "recommended"
    figures = {entry["name"]: entry for entry in plans.get("finalists", [])}.get(name, {})
    in_one_round = about.get("rounds", 1) == 1
    change, error = (figures.get(key) if in_one_round else None for key in ("change", "error"))
    by_kind = figures.get("by_kind", {}) if in_one_round else {}
    return KnownPlan(name, what, removed, labels, change, error, by_kind)


def tabulate_plans(plans: Sequence[KnownPlan], recommended: str | None) -> dict[str, Any]:
    """A table of plans, as JSON: `rows`, and `kinds`, the other models that tried all of them.

    recommended: the name of the one that is.
    """
    kinds = [kind for kind in (plans[0].by_kind if plans else ()) if _all_tried(plans, kind)]
    rows = [
        {
            "name": plan.name,
            "what": plan.what,
            "change": plan.change,
            "error": plan.error,
            "by_kind": [plan.by_kind[kind] for kind in kinds],
            "recommended": plan.name == recommended,
        }
        for plan in plans
    ]
    return {"kinds": kinds, "rows": rows}


def _all_tried(plans: Sequence[KnownPlan], kind: str) -> bool:
    return all(kind in plan.by_kind for plan in plans)


def find_vanished(
    labels: Any, removed: np.ndarray, relabelled: Mapping[int, str], classes: Sequence[str]
) -> list[str]:
    """The classes that have training instances, and none once some are removed or relabelled.

    labels: the column `label` of `Project.instances`; relabelled: id -> its new label. Numbers are
    not classes, and do not vanish.
    """
    left = labels.drop(removed).to_dict() | relabelled
    gone = set(labels) - set(left.values())
    return [name for name in classes if name in gone]
