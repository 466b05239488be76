"""Text as it is shown."""

import pytest

from dross import _figures as charts
from dross import _text as html
from dross._text import (
    disarm_cell,
    printable,
    say_bytes,
    say_count,
    say_duration,
    to_json,
)

# --- One thing and many ---


def test_one_and_many():
    assert [say_count(n, "row") for n in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert say_count(1, "query", "queries") == "1 query"
    assert say_count(2, "query", "queries") == "2 queries"


def test_amounts():
    assert [say_bytes(n) for n in (12, 4_100, 2.5e6, 3e9)] == [
        "12 bytes",
        "4.1 KB",
        "2.5 MB",
        "3 GB",
    ]
    durations = [say_duration(seconds) for seconds in (0.02, 12.34, 600, 7200)]
    assert durations == ["20 ms", "12 s", "10 minutes", "2.0 hours"]


def test_json_holds_what_json_cannot():
    odd = {"a": float("nan"), 3: (float("inf"), 1.5, None), "half \udc80": "é"}
    assert to_json(odd) == r'{"a": null, "3": [null, 1.5, null], "half \udc80": "\u00e9"}'


# --- Text from data is shown with what would hide or forge escaped ---


def test_control_characters_are_escaped_and_letters_stay():
    assert printable("a\0b\x1b[31m\r\x9b") == "a\\x00b\\x1b[31m\\x0d\\x9b"
    assert printable("évil\u202egnp.exe") == "évil\\u202egnp.exe"
    assert printable("caf\udce9") == "caf\\xe9"
    plain = "Größe\tin\nm² 👩‍🔬 «x»\u00a0!"
    assert printable(plain) == plain


def test_pages_show_control_characters(monkeypatch):
    from jinja2 import DictLoader

    environment = html._environment().overlay(
        loader=DictLoader({"t": "{{ name }} {{ safe }} {{ number }}"})
    )
    monkeypatch.setattr(html, "_environment", lambda: environment)
    page = html.render("t", name="<b>\0", safe=html.safe("<i>x</i>"), number=3)
    assert page == "&lt;b&gt;\\x00 <i>x</i> 3"


@charts.house_style()
def test_a_dollar_in_a_name_is_a_dollar():
    figure, (panel,) = charts.panels(1, 1)
    panel.set(xlabel="cost in $ and in $\\notamacro$", title="5 $")
    assert "<svg" in charts.as_svg(figure)


# --- Cells that a spreadsheet would run ---


@pytest.mark.parametrize(
    "cell", ['=HYPERLINK("http://x")', "+cmd|' /C calc'!A0", "-1+1", "@SUM(A1)", "\t=1", "\r=1"]
)
def test_a_formula_becomes_a_text(cell):
    assert disarm_cell(cell) == f"'{cell}"


@pytest.mark.parametrize("cell", ["plain", "", "-1.5", "+3e-7", "-inf", "a=b", -2.5, None, "<=50K"])
def test_anything_else_stays(cell):
    assert disarm_cell(cell) is cell
