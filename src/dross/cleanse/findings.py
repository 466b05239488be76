"""What was found, in three sentences: for the terminal, the report and a notebook."""

from typing import Any

from .inputs.source import Frame

_FEWEST_TO_COMPARE = 10  # fewer removals say nothing about how they fall on the classes
_MOST_FROM_ONE_CLASS = 0.8
_CLASS_HOLDS_NEARLY_ALL = 0.75  # then most removals come from it anyway


EXPECTED_ERROR = "expected_error"  # `measure` in project.json; earlier versions scored the loss


def name_measure(about: dict[str, Any]) -> str:
    """What the scores are changes of, given `Project.about`.

    For classes it is the mean of 1 - p(label), the expected share of mistakes. For numbers every
    validation instance counts from 0, where the prediction is exact, to 1, where it is far off.
    """
    if about.get("measure") != EXPECTED_ERROR:
        return "validation loss"
    return "expected validation error" if about["classes"] else "bounded validation error"


def is_share(about: dict[str, Any]) -> bool:
    """Whether the scores are changes of a share of the validation part, to be told in percent."""
    return about.get("measure") == EXPECTED_ERROR and bool(about["classes"])


def list_findings(about: dict[str, Any], instances: Frame) -> list[str]:
    """Sentences on what is harmful, what is suggested, and what is probably mislabelled.

    Takes `Project.about` and `Project.instances`.
    """
    return [_harmful(about, instances), _suggested(about, instances), _suspected(about, instances)]


def _harmful(about: dict[str, Any], instances: Frame) -> str:
    runs = about["runs"]
    in_every_run = (instances["harmful_in"] == runs) & (instances["score"] < 0)
    which = f"every one of {runs} independent runs" if runs > 1 else "the run that was recorded"
    return (
        f"Of {len(instances):,} training instances, {int(in_every_run.sum()):,} made "
        f"the {name_measure(about)} worse in {which}."
    )


def _suggested(about: dict[str, Any], instances: Frame) -> str:
    m, reason = about["suggested"]["m"], about["suggested"]["reason"]
    if not m:
        return f"No removal is suggested: {reason}."
    warning = _warn_of_one_class(instances, m) if about["classes"] else ""
    return f"Removing the {m:,} most harmful is suggested: {reason}.{warning}"


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


def _warn_of_one_class(instances: Frame, m: int) -> str:
    """A ranking that blames one class mostly moves the decision between classes."""
    if m < _FEWEST_TO_COMPARE:
        return ""
    removed = instances[instances["harm_rank"] < m]["label"].value_counts()
    shares = instances["label"].value_counts(normalize=True)
    name, count = removed.index[0], removed.iloc[0]
    if count < _MOST_FROM_ONE_CLASS * m or shares[name] > _CLASS_HOLDS_NEARLY_ALL:
        return ""
    return (
        f" But {count} of them are '{name}': that shifts the decision between the classes more "
        "than it removes mistakes. Look at them, and at those that are probably mislabelled, "
        "before you remove them."
    )
