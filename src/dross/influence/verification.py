"""How well the scores agree with the truth: estimated against actual changes, instance by instance."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadInput
from .scores import Scores

_EXTREMES = 10  # the paper's choice: the ten largest and the ten smallest


@dataclass(frozen=True)
class Verification:
    instances: np.ndarray  # the ids that were checked
    estimated: np.ndarray  # their scores: [K], or [Q, K]
    actual: np.ndarray  # the true changes by counterfactual runs, in the same shape
    tau: float  # Kendall's, how well the order is right; the mean over queries where there are several
    spearman: float
    slope: float  # actual per estimated: 1 is the right size
    jaccard: float  # overlap of the extremes
    sentence: str

    def __repr__(self) -> str:
        return f"<Verification: {self.sentence}>"

    def to_frame(self):
        """One row per checked instance (and query): id, estimated, actual."""
        import pandas

        estimated, actual = np.atleast_2d(self.estimated), np.atleast_2d(self.actual)
        queries, ids = np.indices(estimated.shape)
        columns = {"query": queries.ravel()} if self.estimated.ndim == 2 else {}
        columns |= {
            "id": self.instances[ids.ravel()],
            "estimated": estimated.ravel(),
            "actual": actual.ravel(),
        }
        return pandas.DataFrame(columns)


def choose(scores: Scores, n: int, seed: int = 0) -> np.ndarray:
    """Half of n from the extremes (most harmful and most helpful), the other half at random from the rest."""
    count = len(scores)
    if n < 2:
        raise BadInput(f"A verification needs at least 2 instances, not {n}.")
    if n >= count:
        return np.arange(count)
    order = np.argsort(np.atleast_2d(scores.values).mean(0), kind="stable")
    low, high = order[: n // 4], order[count - n // 4 :]
    rest = np.setdiff1d(order, np.concatenate([low, high]))
    sample = np.random.default_rng(seed).choice(rest, n - len(low) - len(high), replace=False)
    return np.sort(np.concatenate([low, high, sample]))


def compare(instances: np.ndarray, estimated: np.ndarray, actual: np.ndarray) -> Verification:
    from scipy import stats

    def correlations(e: np.ndarray, a: np.ndarray) -> tuple[float, float, float, float]:
        with warnings.catch_warnings():
            # constant input: the correlation is nan, and the sentence says so
            warnings.simplefilter("ignore")
            kendall: Any = stats.kendalltau(e, a)
            spearman: Any = stats.spearmanr(e, a)
            tau, rho = float(kendall.statistic), float(spearman.statistic)
        spread = float(((e - e.mean()) ** 2).sum())
        slope = (
            float(((e - e.mean()) * (a - a.mean())).sum()) / spread if spread > 0 else float("nan")
        )
        return tau, rho, slope, jaccard_of_extremes(e, a)

    pairs = zip(np.atleast_2d(estimated), np.atleast_2d(actual))
    tau, spearman, slope, jaccard = (
        float(np.mean(column)) for column in zip(*(correlations(e, a) for e, a in pairs))
    )
    return Verification(
        instances,
        estimated,
        actual,
        tau,
        spearman,
        slope,
        jaccard,
        _sentence(len(instances), tau, slope),
    )


def jaccard_of_extremes(estimated: np.ndarray, actual: np.ndarray, m: int = _EXTREMES) -> float:
    """Overlap of {m largest, m smallest} by estimate and by truth (fewer than m where there are not that many)."""
    m = max(1, min(m, len(actual) // 4))
    found, true = ({*np.argsort(v)[:m], *np.argsort(v)[-m:]} for v in (estimated, actual))
    return len(found & true) / len(found | true)


def _sentence(count: int, tau: float, slope: float) -> str:
    checked = f"Checked by retraining without each of {count} instances:"
    if not np.isfinite(tau):
        return f"{checked} removing them changes nothing that can be measured, so the scores cannot be judged."
    if tau >= 0.8:
        verdict = "the scores put them in nearly the true order; trust the ranking"
    elif tau >= 0.5:
        verdict = (
            "the scores put them roughly in the true order; trust the extremes, not the fine order"
        )
    elif tau >= 0.2:
        verdict = "the scores carry some of the truth; use them to choose what to look at, not what to remove"
    else:
        verdict = "the scores say little about this run; do not act on them"
    size = (
        "of about the right size"
        if 0.67 <= slope <= 1.5
        else f"off in size (true change = {slope:.2g} x estimate)"
    )
    return f"{checked} {verdict} (Kendall's tau {tau:.2f}). The estimates are {size}."
