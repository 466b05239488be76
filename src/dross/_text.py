"""Text for messages, terminals, pages and spreadsheets."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from typing import Any


def say_count(number: int, one: str, many: str = "") -> str:
    """How many there are, with the words that follow a 1 or any other number.

    say_count(2, "row")                                `2 rows`
    say_count(1, "row is empty", "rows are empty")     `1 row is empty`

    Arguments:
        number: Of them.
        one: What follows a 1.
        many: What follows any other number; by default `one` and an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def say_bytes(count: float) -> str:
    """1.5e9 -> 1.5 GB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= factor:
            return f"{_two_digits(count / factor)} {unit}"
    return f"{count:.0f} bytes"


def say_duration(seconds: float) -> str:
    """90 -> 1.5 minutes."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} hours"
    if seconds >= 90:
        return f"{_two_digits(seconds / 60)} minutes"
    return f"{_two_digits(seconds)} s" if seconds >= 0.1 else f"{_two_digits(1e3 * seconds)} ms"


def _two_digits(value: float) -> str:
    """128.4 -> 130; 6.76 -> 6.8: as exact as an estimate is."""
    return f"{float(f'{value:.2g}'):g}"


# Control characters but for tab and line feed, halves of surrogate pairs, line and paragraph
# separators, and what changes the direction of text: on a terminal or a page they hide or forge it.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    r"""The text with its unprintable characters escaped: a NUL becomes the four letters `\x00`."""
    return _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON in ASCII that every reader takes, with null for nan and infinities."""
    return json.dumps(_finite(value), allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def disarm_cell(cell: object) -> object:
    """A cell for a file that a person opens in a spreadsheet.

    A text that a spreadsheet would treat as a formula gets an apostrophe before it, which makes it
    a text there. Numbers, and texts that are numbers, stay as they are.
    """
    if not isinstance(cell, str) or not cell.startswith(_BEGINS_A_FORMULA):
        return cell
    return cell if _is_number(cell) else f"'{cell}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return not text.isspace() and "_" not in text


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("dross"),
        autoescape=True,
        finalize=_show,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _show(value: Any) -> Any:
    """Control characters in data are shown, not sent; what dross made itself stays as it is."""
    return printable(value) if type(value) is str else value


def render(template: str, **values: Any) -> str:
    """Fill in a template of templates/; a value that the template needs and lacks is an error."""
    return _environment().get_template(template).render(**values)


def safe(markup: str) -> Any:
    """Mark HTML or SVG that dross itself made, so that `render` does not escape it."""
    from markupsafe import Markup

    return Markup(markup)


def _text(value: object) -> str:
    return escape(printable(str(value)))


def paragraph(text: object) -> str:
    """A <p> element."""
    return f"<p>{_text(text)}</p>"


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A <table> with a row of headers; every row begins with its name."""
    head = "".join(f'<th scope="col">{_text(header)}</th>' for header in headers)
    body = "".join(
        f'<tr><th scope="row">{_text(first)}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def named_values(values: Mapping[str, object]) -> str:
    """A <table> of two columns without headers: a name and its value."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align: left">{_text(name)}</th>'
        f'<td style="text-align: left">{_text(value)}</td></tr>'
        for name, value in values.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"
