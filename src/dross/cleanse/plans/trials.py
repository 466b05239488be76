"""What plans did to the models that were trained by them, and how sure that is."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .candidates import Plan


@dataclass(frozen=True)
class Trial:
    """What the models that were trained by a plan say, compared with "do nothing"."""

    plan: Plan
    change: float  # of the mean measure; below 0 is better
    error: float  # its standard error
    seeds: int
    by_kind: dict[str, float] = field(default_factory=dict)  # the change for models of other kinds

    def to_json(self) -> dict[str, Any]:
        """The plan and its figures as a project keeps them."""
        return {
            "name": self.plan.name,
            "kind": self.plan.kind,
            "removed": self.plan.removed.tolist(),
            "relabelled": self.plan.relabelled.tolist(),
            "change": self.change,
            "error": self.error,
            "seeds": self.seeds,
            "by_kind": self.by_kind,
        }

    @staticmethod
    def from_json(about: dict[str, Any]) -> "Trial":
        """Read what `to_json` wrote."""
        removed, relabelled = (
            np.array(about[key], dtype=np.int64) for key in ("removed", "relabelled")
        )
        plan = Plan(about["kind"], removed, relabelled)
        by_kind = about.get("by_kind", {})  # earlier versions did not try other kinds
        return Trial(plan, about["change"], about["error"], about["seeds"], by_kind)


def explain_doing_nothing(tried: int, where: str) -> str:
    """Why no plan is recommended, in words.

    Arguments:
        tried: How many plans were.
        where: On what they were compared.
    """
    return f"none of {tried} plans is better than no change by more than chance explains, {where}"


@dataclass(frozen=True)
class Competition:
    """Every plan that was tried, and the one that is recommended."""

    finalists: list[Trial]  # those of the last stage, the best first
    tried: list[dict[str, Any]]  # every plan: kind, size, change, error, seeds
    recommended: Plan | None  # None: do nothing
    reason: str
    on_validation: list[float] | None = None  # what that plan, or the nearest, changes for each

    def to_json(self) -> dict[str, Any]:
        """Everything, as a project keeps it."""
        return {
            "finalists": [trial.to_json() for trial in self.finalists],
            "tried": self.tried,
            "recommended": None if self.recommended is None else self.recommended.name,
            "reason": self.reason,
            "on_validation": self.on_validation,
        }

    @staticmethod
    def from_json(about: dict[str, Any]) -> "Competition":
        """Read what `to_json` wrote."""
        finalists = [Trial.from_json(trial) for trial in about["finalists"]]
        by_name = {trial.plan.name: trial.plan for trial in finalists}
        chosen = None if about["recommended"] is None else by_name[about["recommended"]]
        on_validation = about.get("on_validation")  # earlier versions did not keep it
        return Competition(finalists, about["tried"], chosen, about["reason"], on_validation)


@dataclass
class Entry:
    """A plan, its two forms that each know one half of the validation part, and its results.

    Each result is [validation + training]: what the plan changes for each instance, nan where it
    was not asked about.
    """

    plan: Plan
    forms: tuple[Plan, Plan] | None  # None: the ranking does not look at the validation part
    changes: list[np.ndarray] = field(default_factory=list)  # for networks, one for each seed
    by_kind: dict[str, list[np.ndarray]] = field(default_factory=dict)  # for models of other kinds

    @property
    def mean(self) -> float:
        """The mean change for networks."""
        return mean_change(np.stack(self.changes)) if self.changes else 0.0

    def to_trial(self) -> Trial:
        """The figures."""
        error = standard_error(np.stack(self.changes))
        by_kind = {name: mean_change(np.stack(found)) for name, found in self.by_kind.items()}
        return Trial(self.plan, self.mean, error, len(self.changes), by_kind)

    def describe(self) -> dict[str, Any]:
        """The figures without the plan's ids."""
        trial = self.to_trial()
        about = {"kind": self.plan.kind, "size": self.plan.size}
        return about | {"change": trial.change, "error": trial.error, "seeds": trial.seeds}


def compare(entry: Entry | None, other: Entry | None) -> tuple[float, float]:
    """By how much the first is worse, over models of all kinds alike, and the standard error.

    None stands for doing nothing, where no change is counted.
    """
    known = entry or other
    assert known is not None
    kinds: list[str | None] = [None, *known.by_kind]
    behind = [_results(entry, kind, known) - _results(other, kind, known) for kind in kinds]
    together = np.mean([_by_instance(found, everyone=True) for found in behind], axis=0)
    together = together[~np.isnan(together)]
    over_instances = together.std(ddof=1) / np.sqrt(len(together))
    over_seeds = [_error_of_seeds(found) / len(behind) for found in behind]
    return float(together.mean()), float(np.sqrt(over_instances**2 + np.sum(np.square(over_seeds))))


def _results(entry: Entry | None, kind: str | None, like: Entry) -> np.ndarray:
    """The results for a kind of models (None: networks), [seeds, validation + training]."""
    of = lambda entry: np.stack(entry.changes if kind is None else entry.by_kind[kind])
    return of(entry) if entry is not None else np.zeros_like(of(like))


def mean_change(changes: np.ndarray) -> float:
    """The mean over instances of their mean over seeds, of [seeds, instances]; nan: not asked."""
    return float(_by_instance(changes).mean())


def standard_error(changes: np.ndarray) -> float:
    """The standard error of `mean_change`, over the choice of instances and of seeds."""
    by_instance = _by_instance(changes)
    over_instances = by_instance.std(ddof=1) / np.sqrt(len(by_instance))
    return float(np.hypot(over_instances, _error_of_seeds(changes)))


def _error_of_seeds(changes: np.ndarray) -> float:
    """The standard error of the mean over seeds; 0 where there is only one."""
    if len(changes) == 1:
        return 0.0
    return float(np.nanmean(changes, axis=1).std(ddof=1) / np.sqrt(len(changes)))


def _by_instance(changes: np.ndarray, everyone: bool = False) -> np.ndarray:
    """The mean over seeds; everyone: with nan for those that were never asked about."""
    asked = ~np.isnan(changes).all(0)
    found = np.full(changes.shape[1], np.nan)
    found[asked] = np.nanmean(changes[:, asked], axis=0)
    return found if everyone else found[asked]
