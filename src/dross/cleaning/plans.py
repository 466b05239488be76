"""What to do about labels that are likely wrong: rules, and a comparison that decides between them.

A rule turns the estimate of `label_noise` into edits: labels that change, and rows that go. The
plan comparison compares every rule with doing nothing, and nothing wins unless a rule is better by
more than chance would explain and by an effect that matters. Whoever judges a label must not have
helped to choose it. So the rows are split into folds, and for each fold the whole procedure
(experts, noise model, edits) is repeated without it; models of two kinds are trained on the edited
rest and predict the fold.

Two tests can allow a rule. Both use the Brier score, which is proper: a model cannot improve it by
being surer than it should be.

    all rows      predictions of true classes are turned into predictions of given labels by the
                  noise model of the other folds, and compared with the given labels; the rule must
                  also beat the plain score of doing nothing
    trusted rows  plain predictions are compared with labels that are mostly right: those of a
                  validation file, or those that a person has checked

Neither counts where the error or the log loss on the same rows gets worse.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from .._progress import show_progress
from ..data.seeds import mix_seeds
from .label_noise import (
    LIKELY,
    PRIORS,
    LabelPosterior,
    LabelPrior,
    NumberNoiseModel,
    Rows,
    assign_folds,
    draw_sample,
    estimate_label_noise,
    list_experts,
    principal_components,
)
from .measures import ERROR_MEASURES, NOISE_AWARE, show_change

KEEP = "keep"
REMOVE = "remove"
RELABEL = "relabel"
ACTIONS = (KEEP, REMOVE, RELABEL)  # what happens to an instance: the column `action`
# what people see of the figures of a plan, in the words of a verdict
_TITLES = {
    "error": "error",
    f"{NOISE_AWARE}log loss": "log loss",
    "absolute error": "absolute error",
    f"{NOISE_AWARE}squared error": "squared error",
    "token error": "token error",
}

NOTHING = "nothing"  # a rule that edits nothing
_LEAST_PROBABILITY = 1e-3  # in the log loss
_LEAST_LEFT = 5  # rows of each class that edits must leave
_FOLDS = 6
_INNER_FOLDS = 3
MOST_MEASURED = 4_000  # rows in the folds of the plan comparison; of more, a sample
_FEWEST_TRUSTED = 100  # validation rows for a test on them alone
FEWEST_CHECKED = 30  # rows that a person has checked, for the same
_LEARNED = 3.0  # standard errors by which experts must beat the class frequencies
_MANY_WRONG = 0.02  # share of rows that look wrong, from which on a decision needs checks
_CHECKS = 40
_RANDOM_CHECKS = 0.3  # share of checks that are drawn from all rows


@dataclass(frozen=True)
class Edits:
    """Which rows are removed, and which get another label.

    Attributes:
        removed: ids, int64 [R].
        relabeled: {id: new label}, as the file writes it, or as a training target.
    """

    removed: np.ndarray
    relabeled: dict[int, Any]

    def __len__(self) -> int:
        return len(self.removed) + len(self.relabeled)

    @property
    def ids(self) -> np.ndarray:
        """All rows that are edited, int64 [R + L]."""
        return np.array([*self.removed, *self.relabeled], dtype=np.int64)

    def apply(self, y: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids that are left, and the labels of all rows."""
        changed = y.copy()
        changed[list(self.relabeled)] = list(self.relabeled.values())
        return np.setdiff1d(ids, self.removed), changed


NO_EDITS = Edits(np.zeros(0, dtype=np.int64), {})


@dataclass(frozen=True)
class PlanResult(Edits):
    """A plan, and what it does to models on held-out rows.

    Attributes:
        name: the value to pass to `--plan`.
        what: what it does, in words.
        removed: the ids that are removed, int64 [R].
        relabeled: {id: new label}.
        figures: {metric: `Figure` with before, after, change and its 95 % confidence interval}.
    """

    name: str
    what: str
    figures: dict[str, "Figure"]

    def __repr__(self) -> str:
        return f"<plan {self.name}: {self.what}>"


# --- rules ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """Which rows are edited, by the probability that their label is wrong."""

    touch: float  # rows above it are edited
    relabel: float  # a row is relabeled if another label is likelier than this
    remove: bool  # the other rows above `touch` are removed
    words: str

    def __call__(self, noise: LabelPosterior, rows: Rows) -> Edits:
        """The edits; validation rows and checked rows stay as they are."""
        touched = (noise.p_wrong > self.touch) & ~rows.anchors
        relabeled = touched & (noise.p_best_other > self.relabel)
        removed = touched & ~relabeled & self.remove
        if rows.classes:
            spared = _spare_classes(rows, removed, relabeled, noise.best_other)
            removed &= ~spared
            relabeled &= ~spared
        ids = np.flatnonzero(relabeled)
        labels = dict(zip(ids.tolist(), noise.best_other[ids].tolist(), strict=True))
        return Edits(np.flatnonzero(removed), labels)


def _spare_classes(
    rows: Rows, removed: np.ndarray, relabeled: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """Rows of classes of which the edits would leave hardly anything, bool [N]."""
    train = ~rows.validation
    before = np.bincount(rows.y[train], minlength=rows.classes)
    left = np.bincount(rows.y[train & ~removed & ~relabeled], minlength=rows.classes)
    left += np.bincount(other[relabeled], minlength=rows.classes)
    return (left < np.minimum(before, _LEAST_LEFT))[rows.y]


RULES: dict[str, Rule] = {
    "wrong-50": Rule(
        touch=0.5,
        relabel=0.9,
        remove=True,
        words="relabel rows for which another label is more than 90 % likely, and remove other "
        "rows whose label is more than 50 % likely to be wrong",
    ),
    "wrong-70": Rule(
        touch=0.7,
        relabel=0.9,
        remove=True,
        words="relabel rows for which another label is more than 90 % likely, and remove other "
        "rows whose label is more than 70 % likely to be wrong",
    ),
    "wrong-90": Rule(
        touch=0.9,
        relabel=0.9,
        remove=True,
        words="relabel rows for which another label is more than 90 % likely, and remove other "
        "rows whose label is more than 90 % likely to be wrong",
    ),
    "relabel-90": Rule(
        touch=0.5,
        relabel=0.9,
        remove=False,
        words="relabel rows for which another label is more than 90 % likely, and remove nothing",
    ),
}


# --- measures -------------------------------------------------------------------------------------


def held_out_losses(
    probabilities: np.ndarray,
    y: np.ndarray,
    noise: LabelPosterior | None = None,
    rates: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The losses of models for rows that they were not trained on, by name, each [.., n].

    Arguments:
        probabilities: What models predict for classes, [.., n, classes]; for numbers [.., n].
        y: The given labels, [n]; float64 where they are numbers.
        noise: How labels come to be wrong. Predictions are of true classes; with this they are
            turned into predictions of given labels first. A model that predicts the truth then has
            the lowest expected loss even where labels are wrong. Of numbers, an error counts for
            no more than the size from which on the label is more likely wrong than right.
        rates: From `noise.flip_rates` for these rows.

    Returns:
        Of classes `error`, `brier` and `log loss`; of numbers `absolute error` and
        `squared error`.
    """
    if y.dtype.kind == "f":
        errors = np.abs(probabilities - y)
        if noise is not None and rates is not None:
            assert isinstance(noise.model, NumberNoiseModel)
            errors = np.minimum(errors, noise.model.largest_error(rates))
        return {"absolute error": errors, "squared error": errors**2}
    if noise is not None and rates is not None:
        probabilities = noise.add_noise(probabilities, rates)
    of_label = probabilities[..., np.arange(len(y)), y]
    return {
        "error": (probabilities.argmax(-1) != y).astype(np.float64),
        "brier": 1 - 2 * of_label + (probabilities**2).sum(-1),
        "log loss": -np.log(np.maximum(of_label, _LEAST_PROBABILITY)),
    }


@dataclass(frozen=True)
class Figure:
    """A metric of models before and after the edits of a rule, on held-out rows."""

    before: float
    after: float
    change: float  # after - before; below 0 is better
    interval: tuple[float, float]  # 95 % confidence interval of the change

    @property
    def is_clear(self) -> bool:
        """Whether 0, no change, is outside the interval."""
        low, high = self.interval
        return high < 0 or low > 0

    @property
    def error_units(self) -> float:
        """The change divided by its standard error."""
        half = (self.interval[1] - self.interval[0]) / 2
        return 1.96 * self.change / half if half > 0 else 0.0

    @property
    def relative(self) -> float:
        """The change relative to the value before the edits."""
        return self.change / self.before if self.before > 0 else 0.0


def compare(
    before: np.ndarray, after: np.ndarray, groups: np.ndarray, weights: np.ndarray | None = None
) -> Figure:
    """The change in a loss from rows [n]; duplicates share a group and count as one draw."""
    weights = np.ones(len(before)) if weights is None else weights
    if not len(before):
        return Figure(0.0, 0.0, 0.0, (0.0, 0.0))
    total = weights.sum()
    change = float((weights * (after - before)).sum() / total)
    _, group = np.unique(groups, return_inverse=True)
    apart = np.bincount(group, weights=weights * (after - before - change))
    error = float(np.sqrt((apart**2).sum()) / total)
    return Figure(
        before=float((weights * before).sum() / total),
        after=float((weights * after).sum() / total),
        change=change,
        interval=(change - 1.96 * error, change + 1.96 * error),
    )


@dataclass(frozen=True)
class Measured:
    """Losses of held-out rows, by rule and by name, each the mean of the kinds of models."""

    ids: np.ndarray  # int64 [n]: the rows
    losses: dict[str, dict[str, np.ndarray]]  # of given labels, and noise-aware; [n] each

    def figure(
        self,
        rows: Rows,
        rule: str,
        name: str,
        among: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> Figure:
        """One loss with a rule and without it.

        Arguments:
            rows: All rows.
            rule: Its name.
            name: The loss.
            among: bool [N]: the rows that count, all by default.
            weights: [N]: how much each row counts.
        """
        chosen = np.ones(len(self.ids), dtype=bool) if among is None else among[self.ids]
        return compare(
            self.losses[NOTHING][name][chosen],
            self.losses[rule][name][chosen],
            rows.groups[self.ids[chosen]],
            None if weights is None else weights[self.ids[chosen]],
        )


def measure_rules(
    rows: Rows, prior: LabelPrior, rules: list[str], *, seed: int = 0, progress: bool = False
) -> Measured:
    """Repeat the procedure without each fold, and predict the fold.

    Arguments:
        rows: All rows, those of a validation file included.
        prior: What is known about labels.
        rules: Names of the rules to measure; doing nothing is always measured.
        seed: Decides the folds, and the sample of very many rows.
        progress: Whether to show a progress bar.
    """
    ids = np.flatnonzero(draw_sample(rows, MOST_MEASURED, mix_seeds(seed, 8)))
    some = rows.take(ids)
    z = principal_components(some.x)
    fold = assign_folds(some, _FOLDS, mix_seeds(seed, 7))
    by_rule: dict[str, dict[str, np.ndarray]] = {rule: {} for rule in (NOTHING, *rules)}
    numbers = np.unique(fold).tolist()
    for number in show_progress("comparing plans", numbers, show=progress, unit="folds"):
        held_out = np.flatnonzero(fold == number)
        inside = np.flatnonzero(fold != number)
        rest = some.take(inside)
        noise = estimate_label_noise(
            rest, prior, z=z[inside], folds=_INNER_FOLDS, seed=mix_seeds(seed, number)
        )
        rates = noise.flip_rates(z[held_out], some.validation[held_out], some.checked[held_out])
        edits = [NO_EDITS, *(RULES[rule](noise, rest) for rule in rules)]
        predictions = _predict_after(edits, rest, some.x[held_out])
        y = some.y[held_out]
        for by_name, predicted in zip(by_rule.values(), predictions, strict=True):
            losses = held_out_losses(predicted, y)
            aware = held_out_losses(predicted, y, noise, rates)
            losses |= {f"{NOISE_AWARE}{name}": values for name, values in aware.items()}
            for name, values in losses.items():
                by_name.setdefault(name, np.zeros(len(ids)))[held_out] = values.mean(0)
    return Measured(ids, by_rule)


def _predict_after(edits: list[Edits], rest: Rows, x: np.ndarray) -> list[np.ndarray]:
    """Predict with models trained on the edited rows, for each edits [kinds, n(, classes)]."""
    kinds = [one for one in list_experts(rest.x, rest.classes) if one.measures_plans]
    train = np.flatnonzero(~rest.validation)
    by_edits: dict[tuple[Any, ...], np.ndarray] = {}
    predictions = []
    for one in edits:
        key = (one.removed.tobytes(), *one.relabeled.items())
        if key not in by_edits:  # rules often agree
            kept, y = one.apply(rest.y, train)
            models = [expert.fit(rest.x[kept], y[kept], rest.classes) for expert in kinds]
            by_edits[key] = np.stack([model.predict(x).astype(np.float64) for model in models])
        predictions.append(by_edits[key] if rest.classes else by_edits[key][..., 0])
    return predictions


# --- the plan comparison --------------------------------------------------------------------------


@dataclass(frozen=True)
class Strictness:
    """How much better than doing nothing a rule must be."""

    all_rows: float  # standard errors of the noise-aware score
    trusted_rows: float  # standard errors of the plain score on trusted rows
    effect: float  # share of the score of doing nothing


STRICTNESS = {
    "annotated": Strictness(all_rows=1.5, trusted_rows=2.0, effect=0.02),
    "observed": Strictness(all_rows=3.0, trusted_rows=2.0, effect=0.03),
}


@dataclass(frozen=True)
class Recommendation:
    """The plans that were compared with doing nothing, and the one that is recommended."""

    plans: list[PlanResult]  # those that touch at least one row, the best first
    recommended: str | None  # the name of one of them; None: do nothing
    state: str  # recommended, nothing learned, nothing wrong, no gain, or undecided
    reason: str  # a sentence
    # rows whose labels a person should check, the most important first: 1 / the probability that each
    # was drawn
    checks: dict[int, float] = field(default_factory=dict)

    @property
    def plan(self) -> PlanResult | None:
        """The recommended plan; None: do nothing."""
        return next((plan for plan in self.plans if plan.name == self.recommended), None)

    @property
    def numbers(self) -> dict[str, float]:
        """What is recommended, as `dross.on_progress` passes it on."""
        edits = self.plan or NO_EDITS
        numbers = {
            "clean/removed": float(len(edits.removed)),
            "clean/relabeled": float(len(edits.relabeled)),
        }
        figures = {} if self.plan is None else self.plan.figures
        return numbers | {f"clean/{name}": figure.change for name, figure in figures.items()}


def needs_comparison(rows: Rows, noise: LabelPosterior) -> bool:
    """Whether there is a plan to compare with doing nothing."""
    edits = (rule(noise, rows) for rule in RULES.values())
    return learned_something(rows, noise) and any(len(one) > 0 for one in edits)


def recommend(
    rows: Rows,
    noise: LabelPosterior,
    label_kind: str,
    *,
    check_weights: np.ndarray | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Recommendation:
    """Choose between the rules and doing nothing.

    Arguments:
        rows: All rows, those of a validation file included.
        noise: What is known about their labels.
        label_kind: `annotated` or `observed`.
        check_weights: Of checked rows, 1 / the probability with which each was drawn, [N]; nan for
            the others.
        seed: Decides the folds.
        progress: Whether to show a progress bar.
    """
    if not learned_something(rows, noise):
        reason = (
            "No model predicts these labels better than chance, so no label can be called wrong."
        )
        return Recommendation([], None, "nothing learned", reason)
    edits = {name: rule(noise, rows) for name, rule in RULES.items()}
    edits = {name: one for name, one in edits.items() if len(one)}
    if not edits:
        reason = "No label is more likely wrong than right."
        return Recommendation([], None, "nothing wrong", reason)
    measured = measure_rules(rows, PRIORS[label_kind], list(edits), seed=seed, progress=progress)
    trusted, weights = _trusted_rows(rows, check_weights)
    # people have shown how often labels are wrong: noise is no guess
    noise_is_known = (
        rows.given is not None or check_weights is not None
    ) and rows.checked.sum() >= FEWEST_CHECKED
    strictness = STRICTNESS["annotated" if noise_is_known else label_kind]
    compared = [
        _compare_plan(rule, one, measured, rows, strictness, trusted, weights)
        for rule, one in edits.items()
    ]
    compared.sort(key=lambda one: (not one.allowed, one.change))
    plans = [one.plan for one in compared]
    if compared[0].allowed:
        best = plans[0]
        noun = "row" if len(best) == 1 else "rows"
        reason = f"Models improve by more than chance would explain if you {best.what} {noun}."
        return Recommendation(plans, best.name, "recommended", reason)
    likely = int(((noise.p_wrong > LIKELY) & ~rows.anchors).sum())
    aware_score = f"{NOISE_AWARE}{_score_name(rows)}"
    promising = any(plan.figures[aware_score].change < 0 for plan in plans)
    if promising and likely >= max(10, _MANY_WRONG * len(rows)):
        checks = draw_checks(rows, noise, list(edits.values()), seed)
        either = "the classes overlap" if rows.classes else "the rows are hard to predict"
        reason = (
            f"Models disagree with {likely:,} of {len(rows):,} labels. Either they are wrong or "
            f"{either}: check {len(checks)} labels to find out."
        )
        return Recommendation(plans, None, "undecided", reason, checks)
    reason = "No plan improves models by more than chance would explain."
    return Recommendation(plans, None, "no gain", reason)


class _ComparedPlan(NamedTuple):
    """A plan that was compared with doing nothing."""

    plan: PlanResult
    allowed: bool  # whether it may be recommended
    change: float  # of the score that orders plans: the lower, the better


def _compare_plan(
    rule: str,
    edits: Edits,
    measured: Measured,
    rows: Rows,
    strictness: Strictness,
    trusted: np.ndarray,
    weights: np.ndarray | None,
) -> _ComparedPlan:
    """Compare one rule with doing nothing, by the two tests above.

    Arguments:
        rule: Its name.
        edits: What it does to all rows.
        measured: The losses of held-out rows.
        rows: All rows.
        strictness: How much better it must be.
        trusted: Rows whose labels are compared as they are, bool [N].
        weights: How much each of them counts, [N].
    """
    score = _score_name(rows)
    aware_score = f"{NOISE_AWARE}{score}"
    figures = {name: measured.figure(rows, rule, name) for name in measured.losses[rule]}
    plain = {name: each for name, each in figures.items() if not name.startswith(NOISE_AWARE)}
    aware = {name: each for name, each in figures.items() if name.startswith(NOISE_AWARE)}
    on_trusted = {name: measured.figure(rows, rule, name, trusted, weights) for name in plain}
    by_all = (
        _is_better(aware, aware_score, strictness.all_rows, strictness.effect)
        and aware[aware_score].after < plain[score].before
    )
    by_trusted = trusted.any() and _is_better(
        on_trusted, score, strictness.trusted_rows, strictness.effect
    )
    plan = PlanResult(
        removed=edits.removed,
        relabeled=edits.relabeled,
        name=rule,
        what=describe_actions(len(edits.removed), len(edits.relabeled)),
        figures=figures,
    )
    # of several plans that are allowed, the one that does most for all rows and, once more, for
    # those whose labels are mostly right; where there are none of these, they add 0
    change = aware[aware_score].change + measured.figure(rows, rule, aware_score, trusted).change
    return _ComparedPlan(plan, bool(by_all or by_trusted), change)


def _score_name(rows: Rows) -> str:
    """The loss that decides."""
    return "brier" if rows.classes else "absolute error"


def learned_something(rows: Rows, noise: LabelPosterior) -> bool:
    """Whether predictions agree with labels by more than chance would explain.

    The mean over rows of (p - f)(e - f), with p the out-of-fold predictions, e the given labels as
    0 and 1, and f the class frequencies. It is 0 in expectation if the experts predict at random.
    """
    used = noise.mean_prediction.any(1)
    if not used.any():
        return False
    if rows.classes:
        frequencies = np.bincount(rows.y, minlength=rows.classes) / len(rows)
        predicted = noise.mean_prediction - frequencies
        each = predicted[np.arange(len(rows)), rows.y] - predicted @ frequencies
    else:
        order = lambda values: (rankdata(values) - (len(values) + 1) / 2) / len(values)
        each = order(noise.mean_prediction[used, 0]) * order(rows.y[used])
    figure = compare(each * 0, -each, rows.groups)
    return figure.error_units < -_LEARNED


def _trusted_rows(
    rows: Rows, check_weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows whose labels are compared as they are, bool [N]; and how much each counts."""
    if check_weights is not None:
        drawn = rows.checked & np.isfinite(check_weights)
        if drawn.sum() >= FEWEST_CHECKED:
            return drawn, np.where(drawn, check_weights, 0.0)
    if rows.validation.sum() >= _FEWEST_TRUSTED:
        return rows.validation, None
    return np.zeros(len(rows), dtype=bool), None


def _is_better(figures: dict[str, Figure], score: str, errors: float, effect: float) -> bool:
    """Whether the score is better by so many standard errors and this share, and nothing worse."""
    return (
        figures[score].error_units < -errors
        and figures[score].relative < -effect
        and not any(figure.change > 0 for figure in figures.values())
    )


# --- checks ---------------------------------------------------------------------------------------


def draw_checks(
    rows: Rows, noise: LabelPosterior, edits: list[Edits], seed: int
) -> dict[int, float]:
    """Rows for a person to check: {id: 1 / the probability with which it was drawn}.

    Most are drawn from the rows that plans would touch, since those decide; the others from all
    rows, so that nothing is impossible. Systematic sampling draws each row with exactly its
    probability.
    """
    free = ~rows.checked
    if rows.validation.any():
        free &= rows.validation  # plans are compared on them, and they stay as they are
    free = np.flatnonzero(free)
    count = min(_CHECKS, len(free))
    touched = np.zeros(len(rows))
    for one in edits:
        touched[one.ids] = 1
    touched = touched[free]
    chance = np.full(len(free), 1 / max(1, len(free)))
    if touched.any():
        chance = _RANDOM_CHECKS * chance + (1 - _RANDOM_CHECKS) * touched / touched.sum()
    probability = _scale_to(chance, count)
    rng = np.random.default_rng(mix_seeds(seed, 9))
    order = rng.permutation(len(free))
    steps = np.floor(np.cumsum(probability[order]) + rng.random())
    drawn = order[np.diff(steps, prepend=0.0) >= 1]
    drawn = drawn[np.argsort(-noise.p_wrong[free[drawn]], kind="stable")]
    return dict(zip(free[drawn].tolist(), (1 / probability[drawn]).tolist(), strict=True))


def _scale_to(chance: np.ndarray, count: int) -> np.ndarray:
    """Probabilities of being drawn, of sum `count`, none above 1."""
    probability = np.minimum(1, count * chance)
    for _ in range(20):
        free = probability < 1
        missing = count - (len(chance) - free.sum()) - probability[free].sum()
        if missing < 1e-9 or not free.any():
            break
        probability[free] *= 1 + missing / probability[free].sum()
        probability = np.minimum(1, probability)
    return probability


# --- without some rows ----------------------------------------------------------------------------


def edits_without(
    rows: Rows, held_out: np.ndarray, rule: str, label_kind: str, seed: int = 0
) -> tuple[Edits, LabelPosterior]:
    """What a rule would do had some rows not been there: for a verdict on them.

    Arguments:
        rows: All rows.
        held_out: bool [N]; their labels do not affect the result.
        rule: One of RULES.
        label_kind: `annotated` or `observed`.
        seed: Decides the folds.

    Returns:
        The edits, in positions of `rows`; and the noise model. Its `flip_rates` for the rows that
        were held out take their part of `principal_components(rows.x)`.
    """
    inside = np.flatnonzero(~held_out)
    rest = rows.take(inside)
    z = principal_components(rows.x)
    noise = estimate_label_noise(rest, PRIORS[label_kind], z=z[inside], seed=seed)
    edits = RULES[rule](noise, rest)
    relabeled = {int(inside[id]): label for id, label in edits.relabeled.items()}
    return Edits(inside[edits.removed], relabeled), noise


# --- plans of a project ---------------------------------------------------------------------------


def describe_actions(removed: int, relabeled: int) -> str:
    """How many are relabeled and removed, in words; "change nothing" if there are none."""
    counts = {RELABEL: relabeled, REMOVE: removed}
    actions = " and ".join(f"{action} {count:,}" for action, count in counts.items() if count)
    return actions or "change nothing"


def name_figures(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """The figures of a plan that people see, by their names in a verdict."""
    return {title: figures[name] for name, title in _TITLES.items() if name in figures}


def tabulate_plans(plans: Sequence[PlanResult], recommended: str | None) -> dict[str, Any]:
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
    """A figure in words: before, after, and the change with its 95 % confidence interval."""
    shown = show_change(name, figure.before, figure.after, figure.interval)
    return {
        "before": shown.before,
        "after": shown.after,
        "change": shown.change,
        "interval": shown.interval,
    }


@dataclass(frozen=True)
class ClassEffect:
    """What edits do to the training instances of a class."""

    name: str
    before: int
    removed: int
    relabeled: int  # as another class
    gained: int  # of other classes that are relabeled as this one

    @property
    def lost(self) -> int:
        """How many of its instances are removed or relabeled."""
        return self.removed + self.relabeled

    @property
    def left(self) -> int:
        """How many instances it has after the edits."""
        return self.before - self.lost + self.gained


def class_effects(labels: Sequence[str], edits: Edits) -> list[ClassEffect]:
    """What edits do to every class that loses instances, the largest share first.

    labels: the class of each training instance.
    """
    effects = [effect for effect in count_by_class(labels, edits) if effect.lost]
    return sorted(effects, key=lambda effect: -effect.lost / effect.before)


def count_by_class(labels: Sequence[str], edits: Edits) -> list[ClassEffect]:
    """What edits do to every class that has instances before or after them.

    labels: the class of each training instance.
    """
    before = Counter(labels)
    removed = Counter(labels[int(id)] for id in edits.removed)
    moved = {id: label for id, label in edits.relabeled.items() if label != labels[id]}
    relabeled = Counter(labels[id] for id in moved)
    gained = Counter(moved.values())
    return [
        ClassEffect(name, before[name], removed[name], relabeled[name], gained[name])
        for name in dict.fromkeys([*before, *gained])
    ]


def draw_plans(
    panels: Sequence[Any], recommendation: Recommendation, measures: Sequence[str]
) -> None:
    """Draw the change in each measure under every plan with its interval, a panel per measure.

    Arguments:
        panels: Axes, one for each measure.
        recommendation: The plans.
        measures: Names of `list_measures(recommendation.plans)`.
    """
    from .._figures import BLUE

    plans = [plan for plan in recommendation.plans[::-1] if plan.figures]
    places = np.arange(len(plans))
    for panel, name in zip(panels, measures, strict=True):
        unit = 100 if name in ERROR_MEASURES else 1
        for place, plan in zip(places, plans, strict=True):
            figure = name_figures(plan.figures)[name]
            chosen = plan.name == recommendation.recommended
            colour = BLUE if chosen else "0.45"
            low, high = figure.interval
            panel.plot([unit * low, unit * high], [place, place], color=colour, linewidth=1.5)
            panel.plot(unit * figure.change, place, marker="o", color=colour, markersize=5)
        panel.axvline(0, color="0.4", linewidth=0.7)
        panel.set_yticks(places, [plan.name for plan in plans])
        panel.set(xlabel=f"change in {name} (points)" if unit == 100 else f"change in {name}")
        panel.margins(y=0.2)
        panel.locator_params(axis="x", nbins=5)


def list_measures(plans: Sequence[PlanResult]) -> list[str]:
    """The measures that all plans have; none if no plan was measured."""
    named = [name_figures(plan.figures) for plan in plans if plan.figures]
    if not named:
        return []
    return [name for name in named[0] if all(name in figures for figures in named)]
