"""How well scores agree with the truth: estimated and actual changes, instance by instance."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
_SHARE_AT_EACH_END = 1 / 8  # of the instances to check: the most harmful, and the most helpful
_NORMAL_95 = 1.96
_COUNTS = (64, 48, 32, 24, 16, 12, 8, 6)  # of instances to check
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
_REVERSED = (
    "the order is reversed: a score estimates the query without the instance minus the query with "
    "it. Negate these scores; do not act on them as they are"
)
_UNCLEAR = "these are too few to tell whether the scores describe this run; do not act on them yet"


@dataclass(frozen=True)
class RankCorrelation:
    """What the interval of a rank correlation of K pairs depends on, see `fisher_interval`."""

    scale: float
    lost: int  # artanh of the correlation has the variance scale / (K - lost)
    half_step: Callable[[int], float]  # half the difference between 1 and the value below it


KENDALL = RankCorrelation(0.437, 4, lambda count: 2 / (count * (count - 1)))
SPEARMAN = RankCorrelation(1.06, 3, lambda count: 6 / (count * (count**2 - 1)))


@dataclass(frozen=True)
class Verification:
    """The scores of K instances compared with the true changes. Made by `Run.verify`.

    tau, its interval and spearman are computed on the instances that were drawn at random, so that
    they estimate the agreement over all instances: extreme scores are easier to rank. They are
    means over the queries if there are several, and nan where removing the instances changes
    nothing. If the instances were passed to `Run.verify`, all of them count as drawn.
    """

    instances: np.ndarray  # int64 [K]: the ids that were checked
    estimated: np.ndarray  # float64 [K], or [Q, K]: their scores
    actual: np.ndarray  # same shape: the true changes, computed by counterfactual runs
    drawn: np.ndarray  # bool [K]: drawn at random; the others were added for their extreme scores
    tau: float  # Kendall's tau: how well the scores rank the randomly drawn instances
    interval: tuple[float, float]  # 95 % confidence interval of tau; wide if few were drawn
    tau_of_all: float  # tau over all checked instances, including those with extreme scores
    spearman: float  # Spearman's rank correlation over the randomly drawn instances
    slope: float  # regression slope of actual on estimated changes; 1 means the same magnitude
    jaccard: float  # Jaccard index of the most extreme estimated and actual changes, 0 to 1
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


def choose(scores: Scores, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The ids to check: a random sample of all that were used, and a few with extreme scores.

    Arguments:
        scores: their extremes are the most harmful and the most helpful instances.
        n: how many.
        seed: of the sample.

    Returns:
        int64 [n], in ascending order, and bool [n]: which were drawn at random. All that were used
        if there are no more than n.
    """
    if check_whole(n, "n") < 2:
        raise InvalidInput(f"A verification needs at least 2 instances, not {n}.")
    means = np.atleast_2d(scores.values).mean(0)
    order = np.argsort(means, kind="stable")[: np.count_nonzero(~np.isnan(means))]
    if n >= len(order):
        return np.sort(order), np.ones(len(order), dtype=bool)
    at_each_end = int(n * _SHARE_AT_EACH_END)
    extremes = np.concatenate([order[:at_each_end], order[len(order) - at_each_end :]])
    shuffled = np.random.default_rng(seed).permutation(order)
    others = np.cumsum(~np.isin(shuffled, extremes))
    sample = shuffled[: np.searchsorted(others, n - len(extremes)) + 1]  # may contain extremes
    ids = np.union1d(extremes, sample)
    return ids, np.isin(ids, sample)


def compare(
    instances: np.ndarray,
    estimated: np.ndarray,
    actual: np.ndarray,
    drawn: np.ndarray | None = None,
) -> Verification:
    """Compare the scores of some instances with the true changes.

    Instances that were never used have neither, and do not count.

    Arguments:
        instances: their ids [K].
        estimated: their scores [K], or [Q, K].
        actual: the true changes, in the same shape.
        drawn: which of them are a random sample, bool [K]; all by default.
    """
    drawn = np.ones(len(instances), dtype=bool) if drawn is None else drawn
    tau, spearman, _, _ = _mean_agreement(estimated[..., drawn], actual[..., drawn])
    tau_of_all, _, slope, jaccard = _mean_agreement(estimated, actual)
    known = np.isfinite(np.atleast_2d(actual).sum(axis=0))
    found = Verification(
        instances=instances,
        estimated=estimated,
        actual=actual,
        drawn=drawn,
        tau=tau,
        interval=fisher_interval(tau, int((known & drawn).sum()), KENDALL),
        tau_of_all=tau_of_all,
        spearman=spearman,
        slope=slope,
        jaccard=jaccard,
        sentence="",
    )
    return replace(found, sentence=_sentence(found, known))


def _mean_agreement(estimated: np.ndarray, actual: np.ndarray) -> tuple[float, ...]:
    """Each number of `_correlate`, as a mean over the queries."""
    pairs = zip(np.atleast_2d(estimated), np.atleast_2d(actual))
    columns = zip(*(_correlate(e, a) for e, a in pairs))
    return tuple(float(np.mean(column)) for column in columns)


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


def fisher_interval(correlation: float, count: int, kind: RankCorrelation) -> tuple[float, float]:
    """The 95 % confidence interval of a rank correlation of `count` pairs, by Fisher's z.

    E. C. Fieller, H. O. Hartley, E. S. Pearson, "Tests for rank correlation coefficients", 1957:
    artanh(tau) has the variance 0.437 / (K - 4), and that of Spearman's rho 1.06 / (K - 3). A
    correlation of 1, of which artanh is infinite, is taken half a step lower.

    Arguments:
        correlation: tau or rho; a mean of several has at most this variance.
        count: K.
        kind: KENDALL or SPEARMAN.
    """
    if not np.isfinite(correlation):
        return (np.nan, np.nan)
    if count <= kind.lost:
        return (-1.0, 1.0)
    most = 1 - kind.half_step(count)
    z = np.arctanh(np.clip(correlation, -most, most))
    reach = _NORMAL_95 * np.sqrt(kind.scale / (count - kind.lost))
    low = min(correlation, float(np.tanh(z - reach)))
    return (low, max(correlation, float(np.tanh(z + reach))))


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
        times = f", {seconds / cost.training:.1f} times as long as one training run"
    return f"Retraining {count} times {what}: about {say_duration(seconds)}{times}."


def _sentence(check: Verification, known: np.ndarray) -> str:
    """What a verification means.

    known: bool [K]: the instances that the run used.
    """
    count = int(known.sum())
    drawn = int((known & check.drawn).sum())
    if count == 0:
        return "The run used none of these instances, so there is nothing to check."
    checked = f"Checked by retraining without each of {say_count(count, 'instance')}:"
    if not np.isfinite(check.tau):
        if count == 1:
            return f"{checked} a single instance has no order. Check at least 2."
        if np.ptp(check.estimated[..., known]) == 0:
            return f"{checked} their scores are all equal, so their order cannot be judged."
        return f"{checked} their removal has no measurable effect, so the scores cannot be judged."
    of_sample = ""
    of_all = ""
    if drawn < count:
        of_sample = f" for the {drawn} drawn at random"
        of_all = f" and {check.tau_of_all:.2f} with the {count - drawn} most extreme"
    size = "of about the right size"
    if not 0.67 <= check.slope <= 1.5:
        size = f"off in size (true change = {check.slope:.2g} x estimate)"
    verdict, is_limited = _judge(check.tau, check.interval)
    more = " Check more instances for a narrower interval." if is_limited else ""
    return (
        f"{checked} {verdict}. Kendall's tau is {check.tau:.2f}{of_sample} (95 % confidence "
        f"interval {_say_interval(check.interval)}){of_all}. The estimates are {size}.{more}"
    )


def _judge(tau: float, interval: tuple[float, float]) -> tuple[str, bool]:
    """The verdict that the whole interval of tau supports, and whether tau alone has another.

    That scores are wrong needs support, too: it is not said if the interval reaches up to 0.5.
    """
    low, high = interval
    if high < -_VERDICTS[-2][0]:
        return _REVERSED, False
    verdict_of = lambda value: next(verdict for least, verdict in _VERDICTS if value >= least)
    partly = _VERDICTS[-2][0]
    roughly = _VERDICTS[-3][0]
    is_unclear = low < partly and (tau >= partly or high >= roughly)
    verdict = _UNCLEAR if is_unclear else verdict_of(low)
    return verdict, verdict != verdict_of(tau)


@dataclass(frozen=True)
class LinearDatamodelingScore:
    """The summed scores of random subsets compared with the true changes. Made by `Run.lds`.

    value is Spearman's correlation of the estimated with the actual changes, over the subsets: 1
    where the sums of scores rank the subsets as retraining does. For several queries it is the mean
    of their correlations. It is nan if no subset changes the query.
    """

    subsets: tuple[np.ndarray, ...]  # the ids left out of each run
    estimated: np.ndarray  # float64 [M], or [Q, M]: the sum of the scores of each subset
    actual: np.ndarray  # same shape: the true changes, computed by counterfactual runs
    value: float  # 1 if the sums of scores rank the subsets as retraining does
    interval: tuple[float, float]  # 95 % confidence interval of the value
    by_query: np.ndarray  # float64 [Q], or []: the correlation for each query

    @property
    def sentence(self) -> str:
        """A sentence that describes the value."""
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
