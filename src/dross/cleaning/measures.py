"""Measures as people read them: rounded alike, so that before, after and the change add up."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

NOISE_AWARE = "noise-aware "  # before the name of a measure that allows for wrong held-out labels
ERROR_MEASURES = ("error", "token error", f"{NOISE_AWARE}error")  # shares: in percent and points
# why the figures of a verdict are not those of the plan comparison
OF_THIS_MODEL = (
    "dross clean used two kinds of models to compare the plans, so its figures differ from these."
)
_DIGITS = 3  # of a measure that is not a share
_SMALL_NOISE = 0.005  # a smaller share of wrong labels is not worth a word


@dataclass(frozen=True)
class ShownChange:
    """How a measure changes, in words.

    Attributes:
        is_share: whether values are in percent and changes in percentage points.
        decimals: of every number here.
        before, after: with their unit.
        change: with its sign and its unit; the difference of what `before` and `after` show.
        interval: of the change, without a unit.
    """

    is_share: bool
    decimals: int
    before: str
    after: str
    change: str
    interval: str

    def number(self, value: float, unit: str = " points") -> str:
        """Another change of the same measure, rounded alike."""
        return _signed(100 * value if self.is_share else value, self.decimals) + (
            unit if self.is_share else ""
        )


def show_change(name: str, before: float, after: float, interval: Sequence[float]) -> ShownChange:
    """Round a measure, its change, and the 95 % confidence interval of the change to the same
    decimals.

    Shares have one decimal, other measures three significant digits. There is one decimal more
    where the change or an end of its interval would be rounded to 0.

    Arguments:
        name: of the measure.
        before, after: its values.
        interval: of the change.
    """
    is_share = name in ERROR_MEASURES
    scale = 100 if is_share else 1
    unit = " %" if is_share else ""
    before, after, *ends = (scale * float(value) for value in (before, after, *interval))
    decimals = 1 if is_share else _decimals(max(abs(before), abs(after)))
    decimals += any(value and not round(value, decimals) for value in (after - before, *ends))
    shown = [round(value, decimals) for value in (before, after)]
    low, high = (_signed(value, decimals) for value in ends)
    return ShownChange(
        is_share=is_share,
        decimals=decimals,
        before=f"{shown[0]:,.{decimals}f}{unit}",
        after=f"{shown[1]:,.{decimals}f}{unit}",
        change=_signed(shown[1] - shown[0], decimals) + (" points" if is_share else ""),
        interval=f"{low} to {high}",
    )


def show_metric(name: str, metric: Mapping[str, Any]) -> ShownChange:
    """Round a measure of a verdict. metric: the fields of a `Comparison`."""
    return show_change(name, fmean(metric["before"]), fmean(metric["after"]), metric["interval"])


def explain_error(wrong: float) -> str:
    """Why the error of no model can be 0 if a share of the given labels is wrong; or ""."""
    if wrong < _SMALL_NOISE:
        return ""
    return (
        f"About {100 * wrong:.0f} % of these labels are estimated to be wrong. The error counts "
        f"them as correct, so even a perfect model would have an error of about {100 * wrong:.0f} %."
    )


def tabulate_verdict(verdict: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each measure, in words: {title of a column: cell}.

    verdict: the fields of a `Verdict`, as JSON.
    """
    rows = []
    for kind, about in (("metrics", ""), ("plain", ", counting all given labels as correct")):
        for name, metric in verdict.get(kind, {}).items():
            shown = show_metric(name, metric)
            row = {
                "measure": f"{name}{about}",
                "before": shown.before,
                "after": shown.after,
                "change": shown.change,
                "95 % confidence interval": shown.interval,
                "random control": shown.number(metric["random_difference"]),
            }
            rows.append(row)
    return rows


def _decimals(size: float) -> int:
    """How many decimals show three significant digits."""
    if not size or not math.isfinite(size):
        return _DIGITS
    return max(0, _DIGITS - 1 - math.floor(math.log10(size)))


def _signed(value: float, decimals: int) -> str:
    rounded = round(value, decimals)
    return f"{rounded:+,.{decimals}f}" if rounded else f"{0:.{decimals}f}"
