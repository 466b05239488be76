"""How well scores agree with the truth: estimated and actual changes, instance by instance."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import check_number, check_whole
from .._figures import open_axes, plot_agreement
from .._text import named_values, paragraph, say_count, say_duration, table
from ..errors import InvalidInput
from .counterfactual import SweepCost
from .query import Query
from .scores import Scores

if TYPE_CHECKING:
    import pandas

_EXTREMES = 10  # the paper's choice: the ten largest and the ten smallest
KENDALL = (0.437, 4)  # see fisher_interval
SPEARMAN = (1.06, 3)
_NORMAL_95 = 1.96
_ALMOST_1 = 1 - 1e-12
_COUNTS = (64, 48, 32, 24, 16, 12, 8, 6)  # of instances to check
_FEW = 24  # below, the interval of tau is wider than from 0.5 to 0.85
_TRAININGS = 5  # a check takes about so many times the training by default,
_ALWAYS_SECONDS = 20.0  # or as long as that
_FEWEST_SUBSETS = 4
_SAME_VALUE = 1e-3  # of a query, relative: in float32 on another device
# the lowest tau of each verdict, and what it means
_VERDICTS = (
    (0.8, "the scores put them in nearly the true order; trust the ranking"),
    (
        0.5,
        "the scores put them roughly in the true order; trust the extremes, not the fine order",
    ),
    (
        0.2,
        "the scores are partly right; use them to choose instances to look at, not to remove",
    ),
    (float("-inf"), "the scores do not describe this run; do not act on them"),
)


@dataclass(frozen=True)
class Verification:
    """Scores beside the true changes of K instances. Made by `Run.verify`.

    Correlations are means over the queries if there are several. They are nan where removing the
    instances changes nothing.
    """

    instances: np.ndarray  # int64 [K]: the ids that were checked
    estimated: np.ndarray  # float64 [K], or [Q, K]: their scores
    actual: np.ndarray  # in the same shape: the true changes by counterfactual runs
    tau: float  # Kendall's: how right the order is
    interval: tuple[float, float]  # of tau, 95 %: wide where few instances were checked
    spearman: float  # the correlation of the ranks
    slope: float  # actual per estimated: 1 is the right size
    jaccard: float  # the overlap of the extremes, 0 to 1
    sentence: str  # what this means for the use of the scores

    def __repr__(self) -> str:
        return f"<Verification: {self.sentence}>"

    def _repr_html_(self) -> str:
        """In a notebook: the sentence, the correlations, and the largest true changes."""
        names = {"Kendall's tau": self.tau, "Spearman's rho": self.spearman, "slope": self.slope}
        numbers = {name: f"{value:.3f}" for name, value in names.items()}
        numbers["95 % confidence interval for tau"] = _say_interval(self.interval)
        numbers["overlap of the largest changes"] = f"{self.jaccard:.0%}"
        estimated, actual = (np.atleast_2d(each)[0] for each in (self.estimated, self.actual))
        largest = np.argsort(-np.abs(actual), kind="stable")[:_EXTREMES]
        rows = [(self.instances[k], f"{estimated[k]:+.3e}", f"{actual[k]:+.3e}") for k in largest]
        of = " (query 0)" if self.estimated.ndim == 2 else ""
        headers = (f"largest true changes{of}", "estimated", "actual")
        return paragraph(self.sentence) + named_values(numbers) + table(headers, rows)

    def plot(self, *, ax: Any = None) -> Any:
        """Plot the estimated against the true changes. On the line they are the same.

        Arguments:
            ax: matplotlib axes to draw on; new ones by default.

        Returns:
            The axes.

        Raises:
            InvalidInput: matplotlib is not installed.
        """
        ax = open_axes(ax)
        plot_agreement(ax, self.estimated.ravel(), self.actual.ravel())
        ax.set_title(f"{len(self.instances):,} instances, Kendall's tau {self.tau:.2f}")
        return ax

    def to_frame(self) -> "pandas.DataFrame":
        """A table with one row per checked instance (and query).

        Returns:
            Columns id, estimated, actual; if there are several queries, the first is query.
        """
        import pandas

        estimated = np.atleast_2d(self.estimated)
        actual = np.atleast_2d(self.actual)
        queries, ids = np.indices(estimated.shape)
        columns = {"query": queries.ravel()} if self.estimated.ndim == 2 else {}
        columns["id"] = self.instances[ids.ravel()]
        columns |= {"estimated": estimated.ravel(), "actual": actual.ravel()}
        return pandas.DataFrame(columns)


def choose(scores: Scores, n: int, seed: int = 0) -> np.ndarray:
    """The ids to check: half of n are the extremes, the others a random sample of the rest.

    Arguments:
        scores: their extremes are the most harmful and the most helpful instances.
        n: how many.
        seed: of the sample.

    Returns:
        int64 [n], in ascending order; all that were used if there are no more than n.
    """
    if check_whole(n, "n") < 2:
        raise InvalidInput(f"A verification needs at least 2 instances, not {n}.")
    means = np.atleast_2d(scores.values).mean(0)
    order = np.argsort(means, kind="stable")[: np.count_nonzero(~np.isnan(means))]
    count = len(order)
    if n >= count:
        return np.sort(order)
    low = order[: n // 4]
    high = order[count - n // 4 :]
    rest = np.setdiff1d(order, np.concatenate([low, high]))
    sample = np.random.default_rng(seed).choice(rest, n - len(low) - len(high), replace=False)
    return np.sort(np.concatenate([low, high, sample]))


def compare(instances: np.ndarray, estimated: np.ndarray, actual: np.ndarray) -> Verification:
    """Compare the scores of some instances with the true changes.

    Instances that were never used have neither, and do not count.

    Arguments:
        instances: their ids [K].
        estimated: their scores [K], or [Q, K].
        actual: the true changes, in the same shape.
    """
    pairs = zip(np.atleast_2d(estimated), np.atleast_2d(actual))
    columns = zip(*(_correlate(e, a) for e, a in pairs))
    tau, spearman, slope, jaccard = (float(np.mean(column)) for column in columns)
    count = int(np.count_nonzero(~np.isnan(np.atleast_2d(actual)).any(0)))
    interval = fisher_interval(tau, count, KENDALL)
    return Verification(
        instances=instances,
        estimated=estimated,
        actual=actual,
        tau=tau,
        interval=interval,
        spearman=spearman,
        slope=slope,
        jaccard=jaccard,
        sentence=_sentence(count, tau, interval, slope),
    )


def _correlate(e: np.ndarray, a: np.ndarray) -> tuple[float, float, float, float]:
    """Kendall's tau, Spearman's rho, the slope and the Jaccard index of two arrays [K].

    What is nan, of instances that were never used, is left out.
    """
    from scipy import stats

    known = ~np.isnan(e) & ~np.isnan(a)
    e = e[known]
    a = a[known]
    if len(e) < 2:
        return np.nan, np.nan, np.nan, np.nan
    with warnings.catch_warnings():
        # constant input: the correlation is nan, and the sentence says so
        warnings.simplefilter("ignore")
        kendall: Any = stats.kendalltau(e, a)
        spearman: Any = stats.spearmanr(e, a)
        tau = float(kendall.statistic)
        rho = float(spearman.statistic)
    e_off = e - e.mean()
    a_off = a - a.mean()
    spread = float((e_off**2).sum())
    slope = float((e_off * a_off).sum()) / spread if spread > 0 else float("nan")
    return tau, rho, slope, jaccard_of_extremes(e, a)


def jaccard_of_extremes(estimated: np.ndarray, actual: np.ndarray, m: int = _EXTREMES) -> float:
    """The overlap of {m largest, m smallest} by estimate and by truth, 0 to 1.

    m is lower if there are fewer than 4 m numbers.
    """
    m = max(1, min(m, len(actual) // 4))
    likely, true = ({*np.argsort(v)[:m], *np.argsort(v)[-m:]} for v in (estimated, actual))
    return len(likely & true) / len(likely | true)


def fisher_interval(
    correlation: float, count: int, variance: tuple[float, int]
) -> tuple[float, float]:
    """The 95 % confidence interval of a rank correlation of `count` pairs, by Fisher's z.

    E. C. Fieller, H. O. Hartley, E. S. Pearson, "Tests for rank correlation coefficients", 1957:
    artanh(tau) has the variance 0.437 / (K - 4), and that of Spearman's rho 1.06 / (K - 3).

    Arguments:
        correlation: tau or rho; a mean of several has at most this variance.
        count: K.
        variance: KENDALL or SPEARMAN.
    """
    scale, lost = variance
    if not np.isfinite(correlation):
        return (np.nan, np.nan)
    if count <= lost:
        return (-1.0, 1.0)
    z = np.arctanh(np.clip(correlation, -_ALMOST_1, _ALMOST_1))
    reach = _NORMAL_95 * np.sqrt(scale / (count - lost))
    return (float(np.tanh(z - reach)), float(np.tanh(z + reach)))


def _say_interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}"


def affordable_count(cost: SweepCost) -> int:
    """The default number of instances to check.

    As many as take a few times as long as the training did, or a few seconds, and at least six. One
    of few numbers, so that small differences in speed do not change it.
    """
    limit = max(_TRAININGS * cost.training, _ALWAYS_SECONDS)
    return next((n for n in _COUNTS if cost.seconds(n) <= limit), _COUNTS[-1])


def describe_cost(cost: SweepCost, count: int, what: str) -> str:
    """How long runs will take: a sentence to show before they begin."""
    seconds = cost.seconds(count)
    times = ""
    if cost.training > 0:
        times = f", {seconds / cost.training:.1f} times as long as one training"
    return f"Retraining {count} times {what}: about {say_duration(seconds)}{times}."


def _sentence(count: int, tau: float, interval: tuple[float, float], slope: float) -> str:
    if count == 0:
        return "The run used none of these instances, so there is nothing to check."
    checked = f"Checked by retraining without each of {count} instances:"
    if not np.isfinite(tau):
        return f"{checked} their removal has no measurable effect, so the scores cannot be judged."
    verdict = next(verdict for least, verdict in _VERDICTS if tau >= least)
    size = "of about the right size"
    if not 0.67 <= slope <= 1.5:
        size = f"off in size (true change = {slope:.2g} x estimate)"
    few = ""
    if count < _FEW:
        few = f" {count} instances are few: pass a larger n for a narrower interval."
    return (
        f"{checked} {verdict} (Kendall's tau {tau:.2f}, 95 % confidence interval "
        f"{_say_interval(interval)}). The estimates are {size}.{few}"
    )


@dataclass(frozen=True)
class LinearDatamodelingScore:
    """Scores beside true changes without random subsets. Made by `Run.lds`.

    value is Spearman's correlation of the estimated with the actual changes, over the subsets: 1
    where the sums of scores rank the subsets as retraining does. For several queries it is the mean
    of their correlations. It is nan if no subset changes the query.
    """

    subsets: tuple[np.ndarray, ...]  # the ids that each run lacked
    estimated: np.ndarray  # float64 [M], or [Q, M]: the sum of the scores of each subset
    actual: np.ndarray  # in the same shape: the true changes by counterfactual runs
    value: float
    interval: tuple[float, float]  # 95 %
    by_query: np.ndarray  # float64 [Q], or []: the correlation for each query

    @property
    def sentence(self) -> str:
        """The value in words."""
        share = len(self.subsets[0])
        return (
            f"Linear datamodeling score {self.value:.2f} (95 % confidence interval "
            f"{_say_interval(self.interval)}), over {len(self.subsets)} runs that each left out "
            f"{say_count(share, 'random instance')}."
        )

    def __repr__(self) -> str:
        return f"<{self.sentence}>"

    def plot(self, *, ax: Any = None) -> Any:
        """Plot the estimated against the true changes. On the line they are the same.

        Arguments, Returns, Raises: as for `Verification.plot`.
        """
        ax = open_axes(ax)
        plot_agreement(ax, self.estimated.ravel(), self.actual.ravel())
        ax.set_title(f"{len(self.subsets):,} subsets, LDS {self.value:.2f}")
        return ax


def draw_subsets(ids: np.ndarray, count: int, share: float, seed: int) -> list[np.ndarray]:
    """Random subsets of some ids, each with that share of them.

    Arguments:
        ids: those that were used in training.
        count: how many subsets, at least 4.
        share: of the ids, between 0 and 1.
        seed: of the draw.
    """
    if check_whole(count, "subsets") < _FEWEST_SUBSETS:
        raise InvalidInput(f"A correlation needs at least {_FEWEST_SUBSETS} subsets, not {count}.")
    size = round(check_number(share, "share") * len(ids)) if np.isfinite(share) else 0
    if not 0 < size < len(ids):
        raise InvalidInput(
            f"share={share:g} of {say_count(len(ids), 'instance')} must leave out at least one "
            "instance and keep at least one."
        )
    rng = np.random.default_rng(seed)
    return [np.sort(rng.choice(ids, size, replace=False)) for _ in range(count)]


def compare_subsets(
    scores: Scores, subsets: Sequence[np.ndarray], actual: np.ndarray
) -> LinearDatamodelingScore:
    """The correlation of the sums of scores with the true changes [M], or [Q, M]."""
    estimated = np.stack([scores.values[..., ids].sum(-1) for ids in subsets], axis=-1)
    pairs = zip(np.atleast_2d(estimated), np.atleast_2d(actual))
    by_query = np.array([_correlate(e, a)[1] for e, a in pairs])
    value = float(np.mean(by_query))
    return LinearDatamodelingScore(
        subsets=tuple(subsets),
        estimated=estimated,
        actual=actual,
        value=value,
        interval=fisher_interval(value, len(subsets), SPEARMAN),
        by_query=by_query.reshape(scores.values.shape[:-1]),
    )


def check_scores(scores: Any, count: int, value: Callable[[Query], np.ndarray]) -> None:
    """Refuse scores of another run or of another query.

    Queries are compared by their value at the trained model.

    Arguments:
        scores: what the user passed.
        count: how many instances the run has.
        value: gives the value of a query at the model.

    Raises:
        InvalidInput: the message explains what is wrong with them.
    """
    if not isinstance(scores, Scores):
        raise InvalidInput(f"Pass the Scores of this run, not {type(scores).__name__}.")
    if len(scores) != count:
        raise InvalidInput(
            f"These are the scores of {len(scores)} instances, but the run has {count}."
        )
    value_now = value(scores.query)
    if value_now.shape != scores.values.shape[:-1]:
        say = lambda shape: say_count(shape[0], "value") if shape else "one value"
        raise InvalidInput(
            f"The query has {say(value_now.shape)}, but the scores have "
            f"{say(scores.values.shape[:-1])}: they are for different data."
        )
    known = scores.query_value
    if known is not None and not np.allclose(value_now, known, rtol=_SAME_VALUE, atol=0):
        raise InvalidInput(
            f"{scores.query.name} has a different value for this model than when the scores were "
            "computed: the scores belong to another run, or to a query on other data."
        )
