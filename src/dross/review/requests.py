"""What the page may ask for, as a schema. A request is read whole before anything is done.

Every request that changes something is a frozen dataclass here, and each of its fields knows how
it is read. What does not fit is a InvalidInput with a sentence, and nothing has happened.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from ..cleaning.decisions import ACTIONS, check_new_label
from ..cleaning.task import read_learnable
from ..errors import InvalidInput

_MAX_TEXT = 200  # characters
_MAX_DIGITS = 15
_MAX_QUOTED = 50  # characters
_CHANGES = "A decision is written as [[action, label, [ids]], ...]"
_Request = TypeVar("_Request")


@dataclass(frozen=True)
class Change:
    """One action about some instances, as the page sends it."""

    action: str
    label: str | None
    ids: list[int]


def read_count(value: Any, name: str) -> int:
    """Read a whole number that is not negative."""
    if type(value) is not int or not 0 <= value < 10**_MAX_DIGITS:  # True is an int, too
        raise InvalidInput(f"The {name} must be a whole number, not {describe(value)}.")
    return value


def read_short_text(value: Any, name: str) -> str:
    """Read a short text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise InvalidInput(f"The field {name} must be text, not {describe(value)}.")
    if len(value) > _MAX_TEXT:
        raise InvalidInput(f"The field {name} may have at most {_MAX_TEXT} characters.")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidInput(f"The field {name} holds half a character: {describe(value)}.")
    return value


def read_flag(value: Any, name: str) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise InvalidInput(f"The field {name} must be true or false, not {describe(value)}.")
    return value


def read_changes(value: Any, name: str) -> list[Change]:
    """Read [[action, label, [ids]], ...]; whether ids and labels exist is checked later."""
    if not isinstance(value, list) or not value:
        raise InvalidInput(f"{_CHANGES}, not as {describe(value)}.")
    return [_read_change(entry) for entry in value]


def _read_change(entry: Any) -> Change:
    if not isinstance(entry, list) or len(entry) != 3:
        raise InvalidInput(f"{_CHANGES}, with three parts each, not as {describe(entry)}.")
    action, label, ids = entry
    if not isinstance(action, str) or action not in ACTIONS:
        raise InvalidInput(
            f"{describe(action)} is not a decision. It is one of {', '.join(ACTIONS)}."
        )
    check_new_label(action, label, describe(label))
    if not isinstance(ids, list) or not ids:
        raise InvalidInput(
            f"A decision needs a list of at least one instance, not {describe(ids)}."
        )
    for id in ids:
        read_count(id, "id of an instance")
    return Change(action, label, ids)


def _read_by(read: Callable[[Any, str], Any]) -> Mapping[str, Any]:
    return {"read": read}


@dataclass(frozen=True, kw_only=True)
class UndoRequest:
    """Undo or redo the latest decision of a person ("": of anybody)."""

    revision: int = field(metadata=_read_by(read_count))  # what the page knows
    who: str = field(default="", metadata=_read_by(read_short_text))
    once: str = field(default="", metadata=_read_by(read_short_text))


@dataclass(frozen=True, kw_only=True)
class DecideRequest:
    """Decide about some instances."""

    changes: list[Change] = field(metadata=_read_by(read_changes))
    revision: int = field(metadata=_read_by(read_count))
    who: str = field(default="", metadata=_read_by(read_short_text))
    why: str = field(default="", metadata=_read_by(read_short_text))
    once: str = field(default="", metadata=_read_by(read_short_text))


@dataclass(frozen=True, kw_only=True)
class PreviewRequest:
    """Ask what a decision would do."""

    changes: list[Change] = field(metadata=_read_by(read_changes))


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """Start a judgement."""

    seeds: int = field(metadata=_read_by(read_count))
    quick: bool = field(default=False, metadata=_read_by(read_flag))


@dataclass(frozen=True, kw_only=True)
class CancelRequest:
    """Stop the judgement that was started from the page."""


def read_request(kind: type[_Request], body: bytes) -> _Request:
    """Read a request from the JSON that was sent.

    Raises:
        InvalidInput: It is not JSON, or not such a request; the message says what is wrong.
    """
    sent = _parse_object(body)
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    unknown = next((name for name in sent if name not in known), None)
    if unknown is not None:
        raise InvalidInput(f"There is no field {describe(unknown)} in this request.")
    values = {}
    for name, entry in known.items():
        if name in sent:
            values[name] = entry.metadata["read"](sent[name], name)
        elif entry.default is MISSING:
            raise InvalidInput(f"The field {name} is missing in this request.")
    return kind(**values)


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        sent = json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_unique_names)
    except RecursionError:
        raise InvalidInput("The request is nested too deeply.") from None
    except InvalidInput:
        raise
    except ValueError:
        raise InvalidInput("The request is not JSON.") from None
    if not isinstance(sent, dict):
        raise InvalidInput("The request is not a JSON object.")
    return sent


def _refuse_constant(name: str) -> None:
    raise InvalidInput(f"{name} is not a number that JSON has.")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidInput("A field is given twice in this request.")
    return found


# The parameters of an address


def query_count(query: Mapping[str, str], name: str) -> int:
    """Read a parameter that is a whole number."""
    return parse_count(query.get(name, ""), name)


def parse_count(text: str, name: str) -> int:
    """Read a whole number that is written in plain digits."""
    if not re.fullmatch(f"[0-9]{{1,{_MAX_DIGITS}}}", text):
        raise InvalidInput(f"The {name} must be a whole number, not {describe(text)}.")
    return int(text)


def query_text(query: Mapping[str, str], name: str) -> str:
    """Read a parameter that is a short text; "" if it is not there."""
    return read_short_text(query.get(name, ""), name)


def is_learnable(text: str) -> bool:
    """Whether a text is a number that a model can learn, without blanks and not endless."""
    return len(text) <= _MAX_TEXT and text == text.strip() and read_learnable(text) is not None


def describe(value: Any) -> str:
    """Return a value as it may stand in a sentence: short, and safe to print."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = value if isinstance(value, str) else repr(value)
    shown = text[:_MAX_QUOTED] + (" …" if len(text) > _MAX_QUOTED else "")
    return repr(shown) if isinstance(value, str) else shown
