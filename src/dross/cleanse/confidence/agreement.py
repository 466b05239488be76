"""How far independent runs agree on the order of harm.

The runs are cut into halves, each half is averaged, and the two orders are compared by their rank
correlation r, which is averaged over all cuts. By the Spearman-Brown formula, the mean of all runs
would then have the correlation 2 r / (1 + r) with the mean of as many new runs. Below r = 1/3 that
is less than one half: more than half of the order is chance. That is called poor.
"""

from itertools import combinations
from typing import Any

import numpy as np

from ...support.messages.option_names import name_option

POOR = 1 / 3


def compare_halves(by_run: np.ndarray) -> float | None:
    """The mean rank correlation between the two halves of R runs, over all ways to cut them.

    Arguments:
        by_run: Scores, [R, N].

    Returns:
        None with one run, fewer than three instances, or a half whose scores are all equal.
    """
    runs, count = by_run.shape
    if runs < 2 or count < 3:
        return None
    found = []
    for half in combinations(range(runs), runs // 2):
        if 2 * len(half) == runs and 0 not in half:
            continue  # the same cut as its complement
        chosen = np.isin(np.arange(runs), half)
        found.append(_rank_correlation(by_run[chosen].mean(0), by_run[~chosen].mean(0)))
    return None if np.isnan(found).any() else float(np.mean(found))


def warn_of_disagreement(about: dict[str, Any]) -> str | None:
    """A sentence if the runs of a project agree poorly, given `Project.about`; else None."""
    agreement = about.get("run_agreement")  # earlier versions did not compare them
    if not isinstance(agreement, (int, float)) or agreement >= POOR:
        return None
    return (
        f"The {about['runs']} runs agree poorly on what is harmful (rank correlation "
        f"{agreement:.2f} between halves of them): more than half of the order of harm is chance. "
        "Go by the confidence of each suggestion rather than by its place in the list, or pass a "
        f"higher {name_option('runs')} to dross clean."
    )


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's; nan where one of them is constant."""
    from scipy.stats import rankdata

    a, b = (rankdata(values) - (len(values) + 1) / 2 for values in (first, second))
    sizes = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / sizes if sizes else float("nan")
