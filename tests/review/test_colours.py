"""Colours of the page and of the report: readable in the light and in the dark, and the same."""

import re
from pathlib import Path

import pytest

import dross

ROOT = Path(dross.__file__).parent
SHEETS = [ROOT / "review/static/base.css", ROOT / "templates/document.html"]
READABLE = 4.5  # WCAG AA


def palettes(sheet):
    light, dark = sheet.read_text(encoding="utf-8").split("prefers-color-scheme: dark")
    return {"light": colours_of(light), "dark": colours_of(light) | colours_of(dark)}


def colours_of(css):
    found = re.findall(r"--([\w-]+):\s*#([0-9a-f]{3,6})\b", css)
    return {
        name: "#" + (hex if len(hex) == 6 else "".join(2 * c for c in hex)) for name, hex in found
    }


def luminance(colour):
    shades = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shades]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("sheet", SHEETS, ids=["page", "report"])
def test_words_can_be_read(sheet, scheme):
    palette = palettes(sheet)[scheme]
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    words = palette.keys() & {"ink", "quiet", "good", "bad", "accent", "odd"}
    grounds = palette.keys() & {"paper", "card", "tint"}
    assert len(words) >= 4 and grounds
    for name in words:
        for ground in grounds:
            assert contrast(palette[name], palette[ground]) >= READABLE, (name, ground)


def test_the_page_and_the_report_have_the_same_colours():
    page, paper = (palettes(sheet) for sheet in SHEETS)
    for scheme in ("light", "dark"):
        for name in ("good", "bad", "accent"):
            assert page[scheme][name] == paper[scheme][name]
