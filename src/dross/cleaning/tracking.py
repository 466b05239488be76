"""What a tracker gets of a verdict and of a plan."""

import numpy as np

from .._progress import report
from .plans import PlanResult
from .verdict import IMPROVED, WORSE, Verdict

_SIGNS = {IMPROVED: 1.0, WORSE: -1.0}


def report_verdict(verdict: Verdict, number: int) -> None:
    """Report a verdict to the tracker, if there is one.

    number: counts the verdicts of a project from 1.
    """
    values = {"verdict/improved": _SIGNS.get(verdict.verdict, 0.0)}
    for name, metric in verdict.metrics.items():
        low, high = metric.interval
        about = {
            "before": np.mean(metric.before),
            "after": np.mean(metric.after),
            "random": np.mean(metric.random),
            "difference": metric.difference,
            "lowest": low,
            "highest": high,
        }
        values |= {f"verdict/{name}/{key}": float(value) for key, value in about.items()}
    report(values, number)


def report_plan(plan: PlanResult | None) -> None:
    """Report what is recommended to the tracker, if there is one."""
    values = {"clean/removed": 0.0, "clean/relabelled": 0.0}
    if plan is not None:
        values = {
            "clean/removed": float(len(plan.removed)),
            "clean/relabelled": float(len(plan.relabelled)),
        }
        for name, figure in plan.figures.items():
            values[f"clean/{name}"] = figure.change
    report(values, 0)
