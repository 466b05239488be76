"""Small HTML tables for notebooks. Every text is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from .printable import printable


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
