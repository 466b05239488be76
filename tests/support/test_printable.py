"""Text from data is shown with what would hide or forge escaped."""

import pytest

from dross import _figures as charts
from dross import _text as html
from dross._text import check_encodable, printable
from dross.errors import InvalidInput


def test_control_characters_are_escaped_and_letters_stay():
    assert printable("a\0b\x1b[31m\r\x9b") == "a\\x00b\\x1b[31m\\x0d\\x9b"
    assert printable("évil\u202egnp.exe") == "évil\\u202egnp.exe"
    assert printable("caf\udce9") == "caf\\xe9"
    plain = "Größe\tin\nm² 👩‍🔬 «x»\u00a0!"
    assert printable(plain) == plain


def test_names_that_are_not_utf8_are_refused():
    check_encodable("Größe.csv")
    with pytest.raises(InvalidInput, match=r"caf\\xe9\.csv is not UTF-8"):
        check_encodable("caf\udce9.csv")


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
