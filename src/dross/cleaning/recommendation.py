"""What a project keeps of the plans that were compared, and of the one that is recommended."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..support.arguments import fit_together, fits
from .plans import RULES, Figure

KEEP, REMOVE, RELABEL = "keep", "remove", "relabel"
ACTIONS = (KEEP, REMOVE, RELABEL)  # what happens to an instance: the column `action`
NOISE_AWARE = "noise-aware "  # before the name of a measure that allows for wrong held-out labels
ERROR_MEASURES = ("error", "token error", f"{NOISE_AWARE}error")  # shares: in percent and points
# what people see of the figures of a plan, in the words of a verdict
_TITLES = {
    "error": "error",
    f"{NOISE_AWARE}log loss": "log loss",
    "log loss": "plain log loss",
    "absolute error": "absolute error",
    f"{NOISE_AWARE}squared error": "squared error",
    "squared error": "plain squared error",
    "token error": "token error",
}


@dataclass(frozen=True)
class KnownPlan:
    """A plan of a project, and what it did to models on held-out instances.

    Attributes:
        name: what `--plan` takes.
        what: what it does, in words.
        removed: the ids that are removed, int64 [R].
        relabelled: {id: new label}.
        figures: {measure: `Figure` with before, after, change and its 95 % interval}.
    """

    name: str
    what: str
    removed: np.ndarray
    relabelled: dict[int, str]
    figures: dict[str, Figure]

    def __len__(self) -> int:
        return len(self.removed) + len(self.relabelled)

    def __repr__(self) -> str:
        return f"<plan {self.name}: {self.what}>"

    def to_json(self) -> dict[str, Any]:
        """The plan as project.json keeps it."""
        return {
            "name": self.name,
            "what": self.what,
            "removed": [int(id) for id in self.removed],
            "relabelled": [[int(id), label] for id, label in self.relabelled.items()],
            "figures": {name: asdict(figure) for name, figure in self.figures.items()},
        }

    @staticmethod
    def from_json(saved: dict[str, Any]) -> "KnownPlan":
        """Read what `to_json` wrote."""
        figures = {
            name: Figure(**(figure | {"interval": tuple(figure["interval"])}))
            for name, figure in saved["figures"].items()
        }
        relabelled = {int(id): str(label) for id, label in saved["relabelled"]}
        removed = np.array(saved["removed"], dtype=np.int64)
        return KnownPlan(saved["name"], saved["what"], removed, relabelled, figures)


def describe_actions(removed: int, relabelled: int) -> str:
    """How many are relabelled and removed, in words; "change nothing" if none is."""
    counts = {RELABEL: relabelled, REMOVE: removed}
    actions = " and ".join(f"{action} {count:,}" for action, count in counts.items() if count)
    return actions or "change nothing"


def read_plans(about: dict[str, Any]) -> list[KnownPlan]:
    """The plans of a project, the best first, given `Project.about`."""
    saved = about.get("recommendation", {}).get("plans", [])
    return [KnownPlan.from_json(plan) for plan in saved]


def read_recommended(about: dict[str, Any]) -> KnownPlan | None:
    """The recommended plan, given `Project.about`; None: change nothing."""
    name = about.get("recommendation", {}).get("recommended")
    return next((plan for plan in read_plans(about) if plan.name == name), None)


def is_recommendation(saved: Any, counts: Mapping[str, int], classes: Sequence[str]) -> bool:
    """Whether a value is a recommendation as project.json keeps it.

    Arguments:
        saved: The value.
        counts: How many instances each part has.
        classes: The names of the classes; none where labels are numbers.
    """
    if not fits(saved, dict) or not fits(saved.get("plans"), list[dict]):
        return False
    if not fits(saved.get("reason"), str) or not fits(saved.get("state"), str):
        return False
    count = counts.get("train", 0)
    if not all(_is_plan(plan, count, classes) for plan in saved["plans"]):
        return False
    names = (plan["name"] for plan in saved["plans"])
    return "recommended" in saved and saved["recommended"] in (None, *names)


def _is_plan(saved: dict[str, Any], count: int, classes: Sequence[str]) -> bool:
    """Whether an object is a plan for `count` instances as `KnownPlan.to_json` writes it."""
    hints: dict[str, Any] = {
        "name": str,
        "what": str,
        "removed": list[int],
        "relabelled": list[list],
        "figures": dict[str, dict],
    }
    if set(saved) != set(hints) or not fit_together(saved, hints):
        return False
    pairs = saved["relabelled"]
    if any(len(pair) != 2 or not fits(pair[0], int) or not fits(pair[1], str) for pair in pairs):
        return False
    if not all(0 <= id < count for id in [*saved["removed"], *(pair[0] for pair in pairs)]):
        return False
    if classes and not all(label in classes for _, label in pairs):
        return False
    return all(_is_figure(figure) for figure in saved["figures"].values())


def _is_figure(saved: dict[str, Any]) -> bool:
    numbers = ("before", "after", "change")
    interval: Any = saved.get("interval")
    return (
        set(saved) == {*numbers, "interval"}
        and all(fits(saved[name], float) for name in numbers)
        and fits(interval, list[float])
        and len(interval) == 2
    )


def name_figures(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """The figures of a plan that people see, by their names in a verdict."""
    return {title: figures[name] for name, title in _TITLES.items() if name in figures}


def tabulate_plans(plans: Sequence[KnownPlan], recommended: str | None) -> dict[str, Any]:
    """A table of plans, as JSON: `measures`, and `rows` with a figure for each measure.

    recommended: the name of the one that is.
    """
    named = [name_figures(plan.figures) for plan in plans]
    measures = list(named[0]) if plans else []
    rows = [
        {
            "name": plan.name,
            "what": plan.what,
            "rule": RULES[plan.name].words if plan.name in RULES else "",
            "figures": [describe_figure(name, figures[name]) for name in measures],
            "recommended": plan.name == recommended,
        }
        for plan, figures in zip(plans, named, strict=True)
        if all(name in figures for name in measures)
    ]
    return {"measures": measures, "rows": rows}


def describe_figure(name: str, figure: Figure) -> dict[str, str]:
    """A figure in words: before, after, and the change with its 95 % interval."""
    low, high = figure.interval
    if name in ERROR_MEASURES:
        digits = 2 if abs(100 * figure.change) < 0.95 else 1
        percent = lambda value: f"{100 * value:.{digits}f} %"
        points = lambda value: f"{100 * value:+.{digits}f}"
        return {
            "before": percent(figure.before),
            "after": percent(figure.after),
            "change": f"{points(figure.change)} points",
            "interval": f"{points(low)} to {points(high)}",
        }
    return {
        "before": f"{figure.before:.3g}",
        "after": f"{figure.after:.3g}",
        "change": f"{figure.change:+.2g}",
        "interval": f"{low:+.2g} to {high:+.2g}",
    }


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


def draw_plans(panels: Sequence[Any], about: dict[str, Any], measures: Sequence[str]) -> None:
    """Draw the change of each measure under every plan with its interval, a panel per measure.

    Arguments:
        panels: Axes, one for each measure.
        about: `Project.about`.
        measures: Names of `list_measures(about)`.
    """
    from ..support.charts import BLUE

    plans = [plan for plan in read_plans(about)[::-1] if plan.figures]
    recommended = about["recommendation"].get("recommended")
    places = np.arange(len(plans))
    for panel, name in zip(panels, measures, strict=True):
        unit = 100 if name in ERROR_MEASURES else 1
        for place, plan in zip(places, plans, strict=True):
            figure = name_figures(plan.figures)[name]
            chosen = plan.name == recommended
            colour = BLUE if chosen else "0.45"
            low, high = figure.interval
            panel.plot([unit * low, unit * high], [place, place], color=colour, linewidth=1.5)
            panel.plot(unit * figure.change, place, marker="o", color=colour, markersize=5)
        panel.axvline(0, color="0.4", linewidth=0.7)
        panel.set_yticks(places, [plan.name for plan in plans])
        panel.set(
            xlabel=f"change of the {name}, points" if unit == 100 else f"change of the {name}"
        )
        panel.margins(y=0.2)
        panel.locator_params(axis="x", nbins=5)


def list_measures(about: dict[str, Any]) -> list[str]:
    """The measures of a picture of all plans; empty where no plan was measured."""
    named = [name_figures(plan.figures) for plan in read_plans(about) if plan.figures]
    if not named:
        return []
    shown = [name for name in named[0] if not name.startswith("plain ")]
    return [name for name in shown if all(name in figures for figures in named)]
