"""What was found, in a few sentences: for the terminal, the report, the page and a notebook."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..support.messages.option_names import name_option
from .confidence.agreement import warn_of_disagreement
from .copies.words import describe_copies
from .inputs.chats.read import CHATS
from .inputs.source import Frame
from .plans.actions import REMOVE
from .plans.known import find_vanished, read_recommended

_FEWEST_TO_COMPARE = 10  # fewer removals say nothing about how they fall on the classes
_MOST_FROM_ONE_CLASS = 0.8
_CLASS_HOLDS_NEARLY_ALL = 0.75  # then most removals come from it anyway
_NAMED = 5  # classes in a sentence
_COLUMNS = ["source", "label", "prediction", "score", "harmful_in", "loss"]  # in a notebook
_ROWS = 10  # there
TOO_MANY = 0.5  # of held-out labels: then it is not clear who is wrong, they or the models


EXPECTED_ERROR = "expected_error"  # `measure` in project.json; earlier versions scored the loss


def name_measure(about: dict[str, Any]) -> str:
    """What the scores are changes of, given `Project.about`.

    For classes it is the mean of 1 - p(label), the expected share of mistakes; for chats, the
    same for the tokens of the answers. For numbers, every validation instance counts from 0, where
    the prediction is exact, to 1, where it is far off.
    """
    if about.get("measure") != EXPECTED_ERROR:
        return "validation loss"
    return "expected validation error" if is_share(about) else "bounded validation error"


def is_share(about: dict[str, Any]) -> bool:
    """Whether the scores are changes of a share of the validation part, to be told in percent."""
    counted = bool(about["classes"]) or about.get("kind") == CHATS
    return about.get("measure") == EXPECTED_ERROR and counted


def describe_change(value: float, about: dict[str, Any]) -> str:
    """A score in words: "about 0.020 % fewer mistakes", or what happens to another measure.

    Takes a change that is not 0, and `Project.about`.
    """
    size = describe_amount(value, about)
    if is_share(about):
        return f"about {size} {'fewer' if value < 0 else 'more'} mistakes"
    return f"the {name_measure(about)} {'falls' if value < 0 else 'rises'} by about {size}"


def describe_amount(value: float, about: dict[str, Any]) -> str:
    """The size of a change without its sign, in percent where it is of a share."""
    return f"{format_amount(100 * value)}\u00a0%" if is_share(about) else format_amount(value)


def format_amount(value: float) -> str:
    """Return two significant digits, without the sign: -0.00012345 -> 0.00012."""
    value = float(f"{abs(value):.1e}")  # 0.0000999 is 0.00010
    if value == 0 or not math.isfinite(value):
        return "0"
    if value < 1e-5:
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:.{max(0, 1 - math.floor(math.log10(value)))}f}"


def list_findings(about: dict[str, Any], instances: Frame) -> list[str]:
    """Sentences on what is recommended, what is harmful, what is probably mislabelled, and what
    is there twice, if anything is.

    If the runs agree poorly, or validation labels are doubted, another sentence says so. Takes
    `Project.about` and `Project.instances`.
    """
    what, why = describe_recommendation(about, instances)
    found = [f"{what} {why}", _harmful(about, instances)]
    if (
        about.get("kind") != CHATS
    ):  # whose answers are not classes that a model could take for another
        found.append(_suspected(about, instances))
    more = [warn_of_disagreement(about), describe_doubts(about), describe_copies(about)]
    return [*found, *(sentence for sentence in more if sentence)]


def describe_recommendation(about: dict[str, Any], instances: Frame) -> tuple[str, str]:
    """What is recommended, and why, how sure that is and what to be careful about.

    Takes `Project.about` and `Project.instances`.
    """
    suggested = about["suggested"]
    reason = suggested["reason"]
    why = f"{reason[:1].upper()}{reason[1:].rstrip('.')}."
    if not suggested["m"]:
        return "Recommended: change nothing.", why
    what = suggested.get("what") or f"remove the {suggested['m']:,} most harmful"
    if not about["classes"]:
        return f"Recommended: {what}.", why
    warnings = _warn_of_one_class(instances) + _warn_of_vanished(about, instances)
    return f"Recommended: {what}.", f"{why}{warnings}"


def describe_doubts(about: dict[str, Any]) -> str:
    """A sentence on doubted validation labels, given `Project.about`; "" if there are none."""
    labels = about.get("validation_labels", {})  # earlier versions doubted none
    doubted, count = labels.get("doubted", 0), labels.get("count", 0)
    if not doubted:
        return ""
    share = f"{doubted:,} of {count:,} validation labels"
    if doubted < TOO_MANY * count:
        verb, them = ("is", "it") if doubted == 1 else ("are", "them")
        return (
            f"{share} {verb} doubted by models that have not learnt {them}; the report and dross "
            "review list first those on which the recommendation depends most."
        )
    return (
        f"Careful: {share} are doubted, and everything here was chosen by them. Either many of "
        "them are wrong, or the models have learnt little. Check some with dross review and clean "
        f"again, or give a validation part that was checked: {name_option('validation')}. If they "
        f"are right, pass {name_option('trusted_validation', True)}."
    )


def name_some(classes: Sequence[str]) -> str:
    """The first names of classes, and how many more there are."""
    named = ", ".join(f"'{name}'" for name in classes[:_NAMED])
    return named if len(classes) <= _NAMED else f"{named} and {len(classes) - _NAMED} more"


def _harmful(about: dict[str, Any], instances: Frame) -> str:
    runs = about["runs"]
    in_every_run = (instances["harmful_in"] == runs) & (instances["score"] < 0)
    which = f"every one of {runs} independent runs" if runs > 1 else "the run that was recorded"
    harm = (
        "led to more mistakes on the validation part"
        if is_share(about)
        else f"made the {name_measure(about)} worse"
    )
    return (
        f"Of {len(instances):,} training instances, {int(in_every_run.sum()):,} {harm} in {which}."
    )


def _suspected(about: dict[str, Any], instances: Frame) -> str:
    suspects = int((instances["mislabel_rank"] >= 0).sum())
    if about["classes"]:
        return (
            f"{suspects:,} instances have a label that the models would not give them; "
            "the report lists the likeliest mistakes first."
        )
    return (
        f"{suspects:,} instances are far from what the models predict for them; "
        "the report lists them."
    )


def _warn_of_vanished(about: dict[str, Any], instances: Frame) -> str:
    """A plan may take the last instances of a class."""
    plan = read_recommended(about, instances)
    if plan is None:
        return ""
    gone = find_vanished(instances["label"], plan.removed, plan.relabelled, about["classes"])
    if not gone:
        return ""
    it = "it" if len(gone) == 1 else "them"
    return (
        f" But it leaves no training instance of {name_some(gone)}, and no model can predict {it} "
        f"then. If {it} should be predicted, look at those instances and keep the right ones: "
        "dross review."
    )


def _warn_of_one_class(instances: Frame) -> str:
    """A ranking that blames one class mostly moves the decision between classes."""
    removed = instances[instances["action"] == REMOVE]["label"].value_counts()
    m = int(removed.sum())
    if m < _FEWEST_TO_COMPARE:
        return ""
    shares = instances["label"].value_counts(normalize=True)
    name, count = removed.index[0], removed.iloc[0]
    if count < _MOST_FROM_ONE_CLASS * m or shares[name] > _CLASS_HOLDS_NEARLY_ALL:
        return ""
    return (
        f" But {count} of them are '{name}': that shifts the decision between the classes more "
        "than it removes mistakes. Look at them, and at those that are probably mislabelled, "
        "before you remove them."
    )


def show_project(
    folder: Path, about: dict[str, Any], instances: Frame, verdicts: list[dict[str, Any]]
) -> str:
    """What a project looks like in a notebook, as HTML.

    What was found, the first suggestions, and the latest verdict.
    """
    from ..support.html import render, safe

    first = instances.sort_values("harm_rank").head(_ROWS)
    return render(
        "project.html",
        findings=list_findings(about, instances),
        table=safe(first[_COLUMNS].to_html(border=0)),
        folder=str(folder),
        verdict=verdicts[-1] if verdicts else None,
    )
