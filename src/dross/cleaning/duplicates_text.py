"""What is said about copies: in the terminal, in the report and on the page."""

from typing import Any

from ..support.arguments import fits
from ..support.counts import say_count
from .duplicates_groups import Copies

_COUNTED = ("test", "validation", "train", "groups", "conflicting", "natural")


def read_counts(about: dict[str, Any]) -> dict[str, int]:
    """How many copies a project has (see `count_copies`); earlier versions did not look for any."""
    found: Any = about.get("copies")
    none: dict[str, int] = dict.fromkeys(_COUNTED, 0)
    return none | found if fits(found, dict[str, int]) else none


def describe_copies(about: dict[str, Any]) -> str:
    """What was found, in one paragraph; empty where there is nothing to say.

    Takes `Project.about`.
    """
    found = read_counts(about)
    sentences = [_describe_leak(found, about["counts"]), _describe_repeated(found)]
    if not any(sentences):
        return ""
    advice = "The list Copies in dross review shows them: remove what is there twice."
    return " ".join(sentence for sentence in [*sentences, advice] if sentence)


def _describe_leak(found: dict[str, int], counts: dict[str, int]) -> str:
    """Those of the test and of the validation part."""
    parts = [part for part in ("test", "validation") if found[part]]
    if not parts:
        return ""
    which = " and ".join(f"{found[part]:,} of {counts.get(part, 0):,} {part}" for part in parts)
    one = sum(found[part] for part in parts) == 1
    verdict = "the verdict" if "test" in parts else "what they measure"
    return (
        f"{which} instances {'is' if one else 'are'} also in the training part, the same or nearly "
        f"the same: {verdict} is too optimistic."
    )


def _describe_repeated(found: dict[str, int]) -> str:
    """Those that the training part has twice."""
    if not found["train"]:
        return ""
    text = (
        f"{found['train']:,} training instances are the same as another one, or nearly, in "
        f"{say_count(found['groups'], 'group')}"
    )
    if not found["conflicting"]:
        return f"{text}."
    differ = f"in {found['conflicting']:,} of them" if found["groups"] > 1 else "there"
    return f"{text}; {differ} the labels differ, so one is wrong."


def describe_natural(about: dict[str, Any]) -> str:
    """What is equal by chance, and so is not listed; empty where nothing is."""
    natural = read_counts(about)["natural"]
    if not natural:
        return ""
    why = "texts of a few words" if about["kind"] == "text" else "columns with few values"
    return (
        f"{natural:,} training instances are equal to others, as expected with {why}. "
        "They are not listed."
    )


def describe_group(copies: Copies, number: int, *, classes: bool) -> str:
    """What is wrong with the training instances of a group, and what to do about it.

    classes: whether labels are classes, of which an instance has one.
    """
    rows = copies.group(number)
    how, others = _likeness(rows), _other_parts(rows)
    conflict = _describe_conflict(rows, classes)
    if others:
        return (
            f"It is also in the {' and in the '.join(others)} part ({how}), so what is "
            f"measured there is too optimistic: remove it here or there.{conflict}"
        )
    return f"It is in the training part {len(rows)} times ({how}): keep one.{conflict}"


def head_group(copies: Copies, number: int, *, classes: bool) -> str:
    """Where the instances of a group are, briefly."""
    rows = copies.group(number)
    parts = " and in the ".join(["training", *_other_parts(rows)])
    twice = "" if _other_parts(rows) else f" {len(rows)} times"
    likeness, conflict = _likeness(rows).capitalize(), _describe_conflict(rows, classes)
    return f"{likeness}, in the {parts} part{twice}.{conflict}"


def _other_parts(rows: list[dict[str, Any]]) -> list[str]:
    present = {row["part"] for row in rows}
    return [part for part in ("test", "validation") if part in present]


def _describe_conflict(rows: list[dict[str, Any]], classes: bool) -> str:
    labels = sorted({row["label"] for row in rows})
    if not classes or len(labels) < 2:
        return ""
    return f" The labels differ ({', '.join(labels[:5])}): one is wrong."


def mark_copy(copies: Copies, id: int) -> dict[str, Any] | None:
    """What a list shows of a training instance that has copies: its group, and where they are."""
    others, number = copies.others(id), copies.group_of(id)
    if not others or number is None:
        return None
    first = min(others, key=lambda row: row["part"] == "train")
    more = "" if len(others) == 1 else f" and {len(others) - 1} more"
    words = f"{name_likeness(first['is_same'])} as {name_place(first)}{more}"
    return {"group": number, "leaks": first["part"] != "train", "words": words}


def name_place(row: dict[str, Any]) -> str:
    """Where an instance is: "row 17", or "row 17 of the test part"."""
    part, source = row["part"], str(row["source"])
    return source if part == "train" else f"{source.removeprefix(f'{part}: ')} of the {part} part"


def name_likeness(same: bool) -> str:
    """How alike two instances are, in words."""
    return "the same" if same else "nearly the same"


def _likeness(rows: list[dict[str, Any]]) -> str:
    return name_likeness(len({row["same"] for row in rows}) == 1)
