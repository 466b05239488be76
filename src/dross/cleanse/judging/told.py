"""What a tracker is told of a verdict and of a plan."""

import numpy as np

from ...support.progress import report
from ..plans.known import KnownPlan
from ..verdict import Verdict

_SIGNS = {"improved": 1.0, "worse": -1.0}


def report_verdict(verdict: Verdict, number: int) -> None:
    """Tell the tracker, if there is one; `number` counts the verdicts of a project from 1."""
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


def report_plan(plan: KnownPlan | None) -> None:
    """Tell the tracker, if there is one, what is recommended."""
    values = {"clean/removed": 0.0, "clean/relabelled": 0.0}
    if plan is not None:
        values = {
            "clean/removed": float(len(plan.removed)),
            "clean/relabelled": float(len(plan.relabelled)),
        }
        if plan.change is not None:
            values["clean/change"] = plan.change
    report(values, 0)
