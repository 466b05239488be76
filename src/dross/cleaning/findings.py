"""What was found, in a few sentences: for the terminal, the report, the page and a notebook."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._text import render, safe, say_count
from .duplicates import describe_copies
from .measures import explain_error, tabulate_verdict
from .modality import Frame
from .plans import (
    FEWEST_CHECKED,
    Edits,
    PlanResult,
    class_effects,
    describe_actions,
    describe_figure,
    name_figures,
)
from .project_info import ProjectInfo

_FEWEST_TO_COMPARE = 10  # fewer removals say nothing about how they fall on the classes
_MOST_FROM_ONE_CLASS = 0.8
_CLASS_HOLDS_NEARLY_ALL = 0.75  # then most removals come from it anyway
_NAMED = 5  # classes in a sentence
_COLUMNS = ["source", "label", "prediction", "score", "harmful_in", "loss"]  # in a notebook
_ROWS = 10  # there
_SECONDS_PER_CHECK = 4.5
_POOR_AGREEMENT = 1 / 3  # see `split_half_agreement`


def describe_change(value: float, info: ProjectInfo) -> str:
    """A score in words, such as "the expected held-out error falls by 0.020 points"."""
    if value == 0:
        return "nothing changes"
    moves = "falls" if value < 0 else "rises"
    return f"the {info.measure} {moves} by {describe_amount(value, info)}"


def describe_amount(value: float, info: ProjectInfo) -> str:
    """The size of a change without its sign, in percentage points where it is of a share."""
    return f"{format_amount(100 * value)} points" if info.is_share else format_amount(value)


def format_amount(value: float) -> str:
    """Return two significant digits, without the sign: -0.00012345 -> 0.00012."""
    value = float(f"{abs(value):.1e}")  # 0.0000999 is 0.00010
    if value == 0 or not math.isfinite(value):
        return "0"
    if value < 1e-5:
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:.{max(0, 1 - math.floor(math.log10(value)))}f}"


def list_findings(info: ProjectInfo, instances: Frame) -> list[str]:
    """Sentences on what is recommended, which labels look wrong, what is harmful, and copies.

    If the runs agree poorly, or labels should be checked, another sentence states it.

    Arguments:
        info: `Project.info`.
        instances: `Project.table`.
    """
    recommendation = [*describe_recommendation(info, instances), explain_error_of_plan(info)]
    found = [" ".join(filter(None, recommendation))]
    doubted = describe_doubted(info)
    if doubted is not None and info.recommendation.state != "undecided":  # the reason says it
        found.append(f"{doubted.title}: {doubted.share}. {doubted.detail}")
    return [*found, *list_notes(info, instances)]


def list_notes(info: ProjectInfo, instances: Frame) -> list[str]:
    """The sentences of `list_findings` after those on the recommendation and on wrong labels."""
    # only of chats does the recommendation depend on the ranking of what is harmful
    doubt = warn_of_disagreement(info) if info.modality.has_tokens else None
    sentences = [
        describe_checked(info),
        describe_checks(info),
        describe_harmful(info, instances),
        doubt,
        describe_copies(info.copies, info.counts),
    ]
    return [sentence for sentence in sentences if sentence]


def describe_recommendation(info: ProjectInfo, instances: Frame) -> tuple[str, str]:
    """The recommendation, its effect on models, how certain it is, and what to review."""
    reason = info.recommendation.reason
    plan = info.recommendation.plan
    if plan is None:
        return "Recommended: change nothing.", reason
    actions, comma, note = plan.what.partition(", ")  # as in "remove 1, as checked by you"
    what = f"Recommended: {actions} of {info.counts['train']:,} instances{comma}{note}."
    figures = describe_figures(plan)
    if not figures:
        why = reason
    elif info.modality.has_tokens:
        why = f"On held-out examples: {figures}. {reason}"
    else:
        why = f"Models improve on held-out instances by more than chance would explain: {figures}."
    return what, " ".join(filter(None, [why, *warn_of_classes(info, instances)]))


def explain_error_of_plan(info: ProjectInfo) -> str:
    """What the error of a plan counts, where some labels are wrong; or ""."""
    plan = info.recommendation.plan
    if plan is None or not plan.figures or info.training is None or not info.classes:
        return ""
    return explain_error(info.training.noise.expected_wrong / info.training.noise.rows)


def warn_of_classes(info: ProjectInfo, instances: Frame) -> list[str]:
    """Sentences on classes that the recommended plan takes away, or nearly."""
    plan = info.recommendation.plan
    if plan is None or not info.classes:
        return []
    labels = instances["label"].tolist()
    warnings = (_warn_of_one_class(labels, plan), _warn_of_vanished(labels, plan))
    return [warning for warning in warnings if warning]


def describe_figures(plan: PlanResult) -> str:
    """What a plan does to models, as in "error 15.7 % -> 14.2 % (...)"; "" if not measured.

    Clear changes come first.
    """
    shown = name_figures(plan.figures)
    changes = []
    for name, figure in sorted(shown.items(), key=lambda item: not item[1].is_clear):
        words = describe_figure(name, figure)
        unclear = "" if figure.is_clear else "no clear change: "
        changes.append(
            f"{name} {words['before']} -> {words['after']} ({unclear}{words['change']}, 95 % "
            f"confidence interval {words['interval']})"
        )
    return "; ".join(changes)


class Doubted(NamedTuple):
    """How many labels models doubt, and what that means."""

    title: str
    share: str
    detail: str


def name_alternative(info: ProjectInfo) -> str:
    """What else explains labels that look wrong; "" if correcting them improves models."""
    if info.recommendation.state in ("recommended", "nothing wrong"):
        return ""
    return "the classes overlap" if info.classes else "the rows are hard to predict"


def describe_doubted(info: ProjectInfo) -> Doubted | None:
    """Which labels look wrong; None for chats and if nothing can be predicted.

    The estimated number of wrong labels is stated only if a plan that corrects them improves
    models. Otherwise the data does not show whether these labels are wrong or classes overlap.
    """
    if info.training is None or info.recommendation.state == "nothing learned":
        return None
    noise = info.training.noise
    labels = "labels" if info.classes else "values"
    count = f"{noise.likely_wrong:,} of {noise.rows:,}"
    otherwise = name_alternative(info)
    if not otherwise:
        return Doubted(
            f"{labels.capitalize()} that look wrong",
            count,
            "They are more likely wrong than right. In all, about "
            f"{round(noise.expected_wrong):,} {labels} are estimated to be wrong."
            if noise.likely_wrong
            else f"About {round(noise.expected_wrong):,} {labels} are estimated to be wrong, but "
            "the data does not show which.",
        )
    return Doubted(
        f"{labels.capitalize()} that models disagree with",
        count,
        f"Either they are wrong or {otherwise}: the data alone does not show which.",
    )


def describe_checks(info: ProjectInfo) -> str:
    """A sentence on labels that a person should check; "" if there are none."""
    labels = info.checked_labels
    if labels is None or not labels.to_check:
        return ""
    noun = "validation label" if labels.part == "validation" else "label"
    minutes = max(1, round(labels.to_check * _SECONDS_PER_CHECK / 60))
    return (
        f"Check {say_count(labels.to_check, noun)} (about {say_count(minutes, 'minute')}) with "
        "dross review, then run the same dross clean command again: it takes your answers into "
        "account."
    )


def describe_checked(info: ProjectInfo) -> str:
    """What the labels that a person checked have changed; "" if none was checked."""
    labels = info.checked_labels
    if labels is None or not labels.checked:
        return ""
    wrong = say_count(labels.wrong, "was", "were") if labels.wrong else "none was"
    found = f"You checked {say_count(labels.checked, 'label')}: {wrong} wrong."
    if not labels.wrong and labels.checked >= FEWEST_CHECKED:
        found += " Labels that look wrong are probably right: the classes overlap."
    if labels.before is None:
        return found
    plan = info.recommendation.plan
    now = describe_actions(0, 0) if plan is None else plan.what
    if now == labels.before:
        return f"{found} The recommendation is the same as before: {now}."
    return f"{found} Recommended before the check: {labels.before}; now: {now}."


def warn_of_disagreement(info: ProjectInfo) -> str | None:
    """A sentence if the runs of a project agree poorly; else None."""
    agreement = info.run_agreement
    if agreement is None or agreement >= _POOR_AGREEMENT:
        return None
    return (
        f"The {info.runs} runs agree poorly on which instances are harmful (the rank correlation "
        f"between halves of the runs is {agreement:.2f}): more than half of the variation in the "
        "ranking is due to chance. To make the ranking more stable, run dross clean with a higher "
        "`repeats`."
    )


def name_some(classes: Sequence[str]) -> str:
    """The first names of classes, and how many more there are."""
    named = ", ".join(f"'{name}'" for name in classes[:_NAMED])
    return named if len(classes) <= _NAMED else f"{named} and {len(classes) - _NAMED} more"


def describe_harmful(info: ProjectInfo, instances: Frame) -> str:
    """How many instances are harmful in every run, and how many would be by chance."""
    learned = instances["learned_in"].to_numpy()
    harmful = instances["harmful_in"].to_numpy()
    always = int(((harmful == learned) & (learned > 0)).sum())
    raised = f"{always:,} of {len(instances):,} training instances raise the {info.measure}"
    if learned.max() < 2:
        return f"{raised} in the recorded run."
    share = harmful.sum() / learned.sum()
    expected = float((share ** learned[learned > 0]).sum())
    return (
        f"{raised} in every run that trained on them; about {round(expected):,} would be expected "
        "to do so if the runs were independent."
    )


def _warn_of_vanished(labels: list[str], plan: PlanResult) -> str:
    """A plan may take the last instances of a class."""
    gone = [effect.name for effect in class_effects(labels, plan) if not effect.left]
    if not gone:
        return ""
    it = "it" if len(gone) == 1 else "them"
    return (
        f"The plan would leave no training instances of {name_some(gone)}, so no model could predict "
        f"{it}. If {it} should still be predicted, review those instances with dross review and keep "
        "the correct ones."
    )


def _warn_of_one_class(labels: list[str], plan: PlanResult) -> str:
    """A ranking that blames one class mostly shifts the decision boundary between classes."""
    count = len(plan.removed)
    if count < _FEWEST_TO_COMPARE:
        return ""
    removals = class_effects(labels, Edits(plan.removed, {}))
    most = max(removals, key=lambda effect: effect.lost)
    holds_nearly_all = most.before > _CLASS_HOLDS_NEARLY_ALL * len(labels)
    if most.lost < _MOST_FROM_ONE_CLASS * count or holds_nearly_all:
        return ""
    return (
        f"{most.lost} of the {count} removed instances are '{most.name}': removing them shifts the "
        "decision boundary between the classes more than it corrects mistakes. Review them, and those "
        "that are probably mislabeled, before you remove them."
    )


def show_project(
    folder: Path, info: ProjectInfo, instances: Frame, verdicts: list[dict[str, Any]]
) -> str:
    """What a project looks like in a notebook, as HTML.

    What was found, the first suggestions, and the latest verdict.
    """
    first = instances.sort_values("harm_rank").head(_ROWS)
    doubt = None if info.modality.has_tokens else warn_of_disagreement(info)  # about this ranking
    return render(
        "project.html",
        findings=[*list_findings(info, instances), *([] if doubt is None else [doubt])],
        table=safe(first[_COLUMNS].to_html(border=0)),
        folder=str(folder),
        verdict=verdicts[-1] if verdicts else None,
        measures=tabulate_verdict(verdicts[-1]) if verdicts else [],
    )
