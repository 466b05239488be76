"""The verdict: what the models before, after and of the control measure, in figures and in words.

Every measure has one value per pass and row. A pass trains three models on everything (before), on
the edited data (after), and on data with the same number of random edits (the control), and
measures all rows once. The interval of a change covers three kinds of chance: which rows there are
to measure, the seeds of the passes, and that even random edits change a model a little, now for the
better and now for the worse. An edit helps if it does more than that.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import t

from .edits import BY_DECISIONS, ChosenEdits
from .findings import name_some
from .measures import OF_THIS_MODEL, explain_error, show_metric, tabulate_verdict

ERROR = "error"
LOG_LOSS = "log loss"
BRIER = "Brier score"
ABSOLUTE_ERROR = "absolute error"
SQUARED_ERROR = "squared error"
IMPROVED = "improved"
WORSE = "worse"
INCONCLUSIVE = "inconclusive"

# "improved" for random removals, at most; see benchmarks/outcome/false_alarms.py
FALSE_ALARMS = 0.025

PLAIN = "plain "  # before the names of measures that count every given label as right
RATES = "rates"  # not a measure: the estimated share of wrong labels, of each row
_COVERED = 0.975  # of both sides: intervals of 95 %
_VERDICTS_BEFORE_WARNING = 3


@dataclass(frozen=True)
class Comparison:
    """One metric of the models before and after the edits, and of the control. Lower is better.

    Attributes:
        before, after, random: the mean over all evaluated rows, one number per pass [passes].
        difference: the mean of after - before.
        interval: its 95 % confidence interval, which accounts for the choice of rows, the seeds
            and what random edits do by chance.
        random_difference, random_interval: the same for the control.
        random_margin: how much better than the control the edits must be, to rule out chance.
        rows_error: the standard error of the difference that comes from the choice of rows.
        seeds_error: the standard error that comes from the seeds.
    """

    before: list[float]
    after: list[float]
    random: list[float]
    difference: float
    interval: tuple[float, float]
    random_difference: float
    random_interval: tuple[float, float]
    random_margin: float
    rows_error: float
    seeds_error: float

    @property
    def is_better(self) -> bool:
        """Whether the edits lower the metric by more than chance and random edits would explain."""
        beyond_random = self.difference < self.random_difference - self.random_margin
        return self.interval[1] < 0 and beyond_random

    @property
    def is_worse(self) -> bool:
        """Whether the edits raise the metric by more than chance would explain."""
        return self.interval[0] > 0

    @property
    def is_clear(self) -> bool:
        """Whether the edits change the metric by more than chance would explain."""
        return self.is_better or self.is_worse


@dataclass(frozen=True)
class Verdict:
    """Whether the edits help: what `dross.judge` returns.

    Attributes:
        made: the local time at which the verdict was reached.
        what: what was judged, in words.
        removed, relabeled: the numbers of removed and of relabeled instances.
        edited, added: the number of instances whose cells changed, and of new instances; 0 except
            for `dross.compare`.
        seeds: how many times every row was evaluated, each time by newly trained models.
        metrics: the metrics that determine the verdict. For classification: `error`, the share of
            given labels that a model does not predict, and `log loss`, which allows for wrong
            labels: predicted probabilities are passed through the estimated label noise first. For
            regression: `absolute error` and `squared error`, with each error capped at the size
            above which the label is more likely wrong than right.
        plain: metrics that count every given label as correct: `log loss` and `Brier score`, or
            `squared error`.
        per_class: the error of each class before and after; none for a regression.
        verdict: `improved`, `worse` or `inconclusive`.
        sentence: the verdict with its figures, as a sentence.
        advice: what would settle an inconclusive verdict, or a warning; may be empty.
        model: the model used for the verdict: `linear`, `mlp`, ..., or the name of an estimator.
        resampled: whether each pass drew a bootstrap sample of the training rows, because seeds
            make no difference to the model.
        nested: whether there was no test file, so that every row was evaluated by models and edits
            that it did not influence.
        rows: the number of evaluated rows.
        noise: the estimated share of wrong labels among them.
    """

    made: str
    what: str
    removed: int
    relabeled: int
    seeds: int
    metrics: dict[str, Comparison]
    per_class: list[dict[str, Any]]
    verdict: str
    sentence: str
    advice: str
    model: str
    resampled: bool
    plain: dict[str, Comparison]
    nested: bool
    rows: int
    noise: float
    edited: int = 0
    added: int = 0

    def to_json(self) -> dict[str, Any]:
        """Every field as plain dicts, lists, numbers and strings, as in the verdicts folder.

        Returns:
            A dict of the attributes; each metric is a dict, too.
        """
        return asdict(self)

    @property
    def numbers(self) -> dict[str, float]:
        """The figures of `metrics` by name, as `dross.on_progress` passes them to its callback."""
        sign = {IMPROVED: 1.0, WORSE: -1.0, INCONCLUSIVE: 0.0}[self.verdict]
        numbers = {"verdict/improved": sign}
        for name, metric in self.metrics.items():
            numbers |= {
                f"verdict/{name}/before": float(np.mean(metric.before)),
                f"verdict/{name}/after": float(np.mean(metric.after)),
                f"verdict/{name}/random": float(np.mean(metric.random)),
                f"verdict/{name}/difference": metric.difference,
                f"verdict/{name}/lowest": metric.interval[0],
                f"verdict/{name}/highest": metric.interval[1],
            }
        return numbers

    def __repr__(self) -> str:
        return f"<Verdict: {self.verdict}. {self.sentence}>"

    def _repr_html_(self) -> str:
        from .._text import render

        verdict = self.to_json()
        return render("verdict.html", verdict=verdict, measures=tabulate_verdict(verdict))


@dataclass(frozen=True)
class Setup:
    """What is compared: everything that a verdict reports besides the figures."""

    edits: ChosenEdits
    model: str  # which model judges
    changed: Mapping[str, int] | None = None  # how many rows, where the edits do not say it all
    is_estimator: bool = False  # whether it is user-defined
    groups: np.ndarray | None = None  # the group of each measured row, as for `compare_metric`
    classes: Sequence[str] = ()  # their names; none for a regression
    class_of_row: np.ndarray | None = None  # the name of the class of each measured row
    notes: Sequence[str] = ()  # sentences for `Verdict.advice`
    resampled: bool = False  # as in `Verdict`
    nested: bool = False


# --- figures --------------------------------------------------------------------------------------


def compare_metric(values: np.ndarray, groups: np.ndarray | None = None) -> Comparison:
    """Compare one measure.

    Arguments:
        values: float64 [passes, 3 (before, after, random), rows].
        groups: The group of each row; copies of each other do not count as independent.
    """
    before, after, random = (values[:, place].mean(1) for place in range(3))
    change = values[:, 1] - values[:, 0]
    control = values[:, 2] - values[:, 0]
    difference = float(change.mean())
    random_difference = float(control.mean())
    rows_error = _standard_error(change.mean(0), groups)
    seeds_error = _seeds_error(change)
    control_rows = _standard_error(control.mean(0), groups)
    control_seeds = _seeds_error(control)
    draw_error = _draw_error(change, control)
    margin = _margin(len(values), rows_error, seeds_error, draw_error)
    random_margin = _margin(len(values), 0.0, seeds_error, control_seeds, draw_error)
    control_margin = _margin(len(values), control_rows, control_seeds)
    return Comparison(
        before=before.tolist(),
        after=after.tolist(),
        random=random.tolist(),
        difference=difference,
        interval=(difference - margin, difference + margin),
        random_difference=random_difference,
        random_interval=(random_difference - control_margin, random_difference + control_margin),
        random_margin=random_margin,
        rows_error=rows_error,
        seeds_error=seeds_error,
    )


def _standard_error(differences: np.ndarray, groups: np.ndarray | None) -> float:
    """Of the mean of differences [rows]; rows of one group vary together."""
    off = differences - differences.mean()
    count = len(off)
    if groups is not None:
        off = np.bincount(np.unique(groups, return_inverse=True)[1], weights=off)
    if len(off) < 2:
        return float("inf")
    return float(np.sqrt((off**2).sum() * len(off) / (len(off) - 1)) / count)


def _seeds_error(differences: np.ndarray) -> float:
    """Of the mean over passes of differences [passes, rows]."""
    return float(differences.mean(1).std(ddof=1) / np.sqrt(len(differences)))


def _quantile(passes: int) -> float:
    return float(t.ppf(_COVERED, passes - 1))


def _margin(passes: int, rows_error: float, *over_passes: float) -> float:
    """Half a 95 % confidence interval; standard errors are from many rows or from few passes."""
    wide = _quantile(passes) * np.hypot.reduce(over_passes)
    return float(np.hypot(1.96 * rows_error, wide))


def _draw_error(change: np.ndarray, control: np.ndarray) -> float:
    """How far one draw of random edits is from the mean of those seen: its standard error.

    Each pass draws other random edits, with other seeds; the judged edits are the same in each. So
    what the passes of the control vary more comes from the draw of the edits. If the judged edits
    were random, they would be one more draw.
    """
    passes = len(control)
    spread = control.mean(1).var(ddof=1) - change.mean(1).var(ddof=1)
    return float(np.sqrt(max(spread, 0.0) * (1 + 1 / passes)))


def best_reading(noisy: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """The log loss of each kind of model in the reading that suits its predictions better.

    A model trained on noisy labels predicts given labels; one trained on correct labels
    predicts true classes, which are passed through the label noise to predict given ones. Where the
    classes overlap and the overlap is treated as noise, the second reading forgives a model that is
    too sure of itself. It then predicts the given labels no better than the model before the edits,
    each in its best reading.

    Arguments:
        noisy: The log loss after passing through the label noise, [passes, 3, rows].
        plain: The log loss without that.
    """
    suits = noisy.mean((0, 2)) < plain.mean((0, 2))
    return np.where(suits[None, :, None], noisy, plain)


def decide_verdict(metrics: Mapping[str, Comparison], read: Comparison | None = None) -> str:
    """`worse` if any measure is worse; else `improved` if any is better; else `inconclusive`.

    read: of `best_reading`; the edits must not make it worse either.
    """
    compared = [*metrics.values(), *([] if read is None else [read])]
    if any(metric.is_worse for metric in compared):
        return WORSE
    if any(metric.is_better for metric in metrics.values()):
        return IMPROVED
    return INCONCLUSIVE


def reach_verdict(values: Mapping[str, np.ndarray], setup: Setup, *, earlier: int = 0) -> Verdict:
    """Compare what was measured, and decide.

    Arguments:
        values: Each measure as for `compare_metric`; those whose names begin with PLAIN do not
            decide alone. RATES may be among them.
        setup: What was compared.
        earlier: How many verdicts there are already.
    """
    edits = setup.edits
    groups = setup.groups
    measures = {name: each for name, each in values.items() if name != RATES}
    compared = {name: compare_metric(each, groups) for name, each in measures.items()}
    plain = {
        name.removeprefix(PLAIN): each for name, each in compared.items() if name.startswith(PLAIN)
    }
    metrics = {name: each for name, each in compared.items() if not name.startswith(PLAIN)}
    read = None
    if LOG_LOSS in plain:
        read = compare_metric(best_reading(values[LOG_LOSS], values[PLAIN + LOG_LOSS]), groups)
    decided = decide_verdict(metrics, read)
    if decided == IMPROVED and setup.nested and edits.ranked:
        decided = INCONCLUSIVE  # the models that measure helped to choose the list
    changed = {"removed": len(edits.removed), "relabeled": len(edits.relabeled)}
    changed |= setup.changed or {}
    seeds, _, rows = next(iter(measures.values())).shape
    verdict = Verdict(
        made=time.strftime("%Y-%m-%d %H:%M"),
        what=edits.what,
        removed=changed["removed"],
        relabeled=changed["relabeled"],
        edited=changed.get("edited", 0),
        added=changed.get("added", 0),
        seeds=seeds,
        metrics=metrics,
        plain=plain,
        per_class=_compare_classes(values[ERROR], setup) if setup.classes else [],
        verdict=decided,
        sentence="",
        advice="",
        model=setup.model,
        resampled=setup.resampled,
        nested=setup.nested,
        rows=rows,
        # of one pass, whichever, and its first model: each pass has every row once, and passes
        # with the same folds have the same rates
        noise=float(values[RATES][1, 0].mean()) if RATES in values else 0.0,
    )
    notes = [
        advise(decided, metrics, seeds, rows),
        describe_plain(plain, metrics),
        *setup.notes,
        warn_of_sight(edits, is_change=setup.changed is not None)
        if setup.nested
        else warn_of_reuse(earlier),
        "" if edits.rule is None else OF_THIS_MODEL,  # only a rule has figures of dross clean
    ]
    if setup.is_estimator and set(compared) == {ERROR}:
        notes.insert(-1, f"{setup.model} has no predict_proba: only its errors are compared.")
    sentence = describe_verdict(verdict, setup.model if setup.is_estimator else "The model")
    return replace(verdict, sentence=sentence, advice=" ".join(filter(None, notes)))


def _compare_classes(off: np.ndarray, setup: Setup) -> list[dict[str, Any]]:
    """The error of each class that was measured.

    off: [passes, 3, rows]: 1 where a prediction is not the given label.
    """
    compared = []
    for name in setup.classes:
        members = setup.class_of_row == name
        if members.any():
            compared.append(
                {
                    "class": name,
                    "count": int(members.sum()),
                    "before": float(off[:, 0][:, members].mean()),
                    "after": float(off[:, 1][:, members].mean()),
                }
            )
    return compared


# --- words ----------------------------------------------------------------------------------------


def describe_verdict(verdict: Verdict, model: str) -> str:
    """The verdict with its figures. It begins with the model; measures that changed come first."""
    opening = {
        IMPROVED: f"{model} improved",
        WORSE: f"{model} got worse",
        INCONCLUSIVE: f"{model} did not change by more than chance would explain",
    }[verdict.verdict]
    counts = {
        "removed": verdict.removed,
        "relabeled": verdict.relabeled,
        "edited": verdict.edited,
        "added": verdict.added,
    }
    edits = [f"{count:,} {name}" for name, count in counts.items() if count]
    measures = sorted(verdict.metrics.items(), key=lambda item: not item[1].is_clear)
    changes = "; ".join(describe_metric(name, metric) for name, metric in measures)
    where = f"{verdict.rows:,} test rows"
    if verdict.nested:
        where = f"all {verdict.rows:,} rows, each predicted by models that were not trained on it"
    repetitions = f"{verdict.seeds} repetitions with fresh seeds"
    if verdict.resampled:
        repetitions = (
            f"{verdict.seeds} bootstrap samples of the training rows (training gives the same "
            "model with every seed)"
        )
    sentence = f"{opening} with {_list(edits)}: {changes}; on {where} ({repetitions})."
    explained = explain_error(verdict.noise) if ERROR in verdict.metrics else ""
    if explained and LOG_LOSS in verdict.metrics:
        explained += " The log loss takes them into account."
    return f"{sentence} {explained}".strip()


def describe_metric(name: str, metric: Comparison) -> str:
    """As in "error: 15.7 % -> 15.4 % (-0.3 points, 95 % confidence interval -0.5 to -0.1)".

    A change that chance would explain is called no clear change.
    """
    shown = show_metric(name, vars(metric))
    colon = ":" if name == ERROR else ""
    unclear = "" if metric.is_clear else "no clear change: "
    return (
        f"{name}{colon} {shown.before} -> {shown.after} ({unclear}{shown.change}, 95 % confidence "
        f"interval {shown.interval})"
    )


def describe_plain(plain: Mapping[str, Comparison], metrics: Mapping[str, Comparison]) -> str:
    """Why the log loss on the given labels rises where that on true ones falls; or ""."""
    if LOG_LOSS not in plain or LOG_LOSS not in metrics:
        return ""
    if not plain[LOG_LOSS].is_worse or metrics[LOG_LOSS].is_worse:
        return ""
    shown = show_metric(LOG_LOSS, vars(plain[LOG_LOSS]))
    return (
        f"If all given labels were counted as correct, the log loss would rise from "
        f"{shown.before} to {shown.after}, because a model that predicts the true class is "
        "penalized for its confidence where a label is wrong."
    )


def advise(verdict: str, metrics: Mapping[str, Comparison], seeds: int, rows: int) -> str:
    """What it takes to know, if the change that was seen is the true one; "" if it is known.

    rows: how many were measured.
    """
    if verdict != INCONCLUSIVE:
        return ""
    changed = {name: metric for name, metric in metrics.items() if metric.difference}
    if not changed:
        return (
            f"With or without the edits, the models make the same predictions for all {rows:,} "
            "rows. Only more evaluation rows or more edits could reveal a change."
        )
    name, metric = min(changed.items(), key=lambda item: _relative_width(item[1]))
    if metric.interval[1] < 0 and not metric.is_better:
        return f"The same number of random edits lowers the {name} just as much."
    margin = (metric.interval[1] - metric.interval[0]) / 2
    shown = show_metric(name, vars(metric))
    seen = shown.change
    if abs(metric.difference) < margin / 10:
        limit = shown.number(margin).lstrip("+")
        return f"If the {name} changes at all, it is probably by less than {limit}."
    from_seeds = _quantile(seeds) * metric.seeds_error
    by_rows = float(np.sqrt(max(margin**2 - from_seeds**2, 0.0))) / abs(metric.difference)
    by_seeds = from_seeds / abs(metric.difference)
    if by_rows < 0.9:
        enough = _round_up(max(seeds * by_seeds**2 / (1 - by_rows**2), seeds + 2))
        return (
            f"If the {name} really changes by {seen}, about {enough} seeds would be needed to "
            "detect the change (`seeds`)."
        )
    enough = _round_up(rows * max(by_rows, 1.0) ** 2 * 1.3)
    return (
        f"If the {name} really changes by {seen}, about {enough} instances would be needed to "
        f"detect the change (there are {rows:,})."
    )


def _relative_width(metric: Comparison) -> float:
    return (metric.interval[1] - metric.interval[0]) / abs(metric.difference)


def warn_of_sight(edits: ChosenEdits, *, is_change: bool = False) -> str:
    """A fixed list was chosen with knowledge of the labels that measure it; "" for a rule.

    is_change: whether someone else made the edits, and two versions of the data are compared.
    """
    if edits.rule is not None or edits.blind:
        return ""
    if edits.ranked and is_change:
        return (
            "If models or people that made the change knew all labels, they knew those used for "
            "this evaluation, so the change is not called an improvement. Pass a test file that "
            "they have not used (`test`), or `blind=True` if they looked at each row by itself."
        )
    if edits.ranked:
        return (
            "This list was made by models that saw the labels used for this evaluation, so the "
            "change is not called an improvement. Judge a plan, which is rebuilt without those "
            "labels, or pass a test file with `test`."
        )
    who = "These decisions were" if edits.what == BY_DECISIONS else "This list was"
    return (
        f"{who} made with knowledge of all labels, including those that the models are evaluated "
        "on, so the change may look better than it is. A separate test file gives a stronger "
        "verdict (`test`)."
    )


def warn_of_reuse(earlier: int) -> str:
    """Every verdict on the same test rows makes the next one worth less."""
    if earlier < _VERDICTS_BEFORE_WARNING:
        return ""
    return (
        f"This is verdict number {earlier + 1} on the same test rows: if you choose between edits "
        "based on these verdicts, the test rows no longer give an unbiased estimate for your "
        "choice. Keep fresh test data for the final verdict."
    )


def warn_of_vanished(gone: Sequence[str], measured: np.ndarray) -> str:
    """A warning that classes have no training instances any more; "" if there is none.

    gone: their names; measured: the labels of the measured rows.
    """
    if not gone:
        return ""
    count = int(np.isin(measured, list(gone)).sum())
    it = "it" if len(gone) == 1 else "them"
    classes = "this class" if len(gone) == 1 else "these classes"
    if count:
        tests = f"all {count:,} test instances of {classes} are misclassified"
    else:
        tests = f"the test set has no instances of {classes}, so the figures do not show this loss"
    return (
        f"After these edits no training instance of {name_some(gone)} is left: no model can "
        f"predict {it}, and {tests}."
    )


def _list(words: Sequence[str]) -> str:
    """As in "3 removed, 2 edited and 1 added"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _round_up(value: float) -> str:
    """To two digits."""
    size = 10 ** max(0, int(np.log10(max(value, 1))) - 1)
    return f"{int(np.ceil(value / size) * size):,}"
