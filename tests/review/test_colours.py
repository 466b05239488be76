"""Colours that carry meaning hold for colour-blind people, in the light and in the dark."""

from itertools import combinations
from pathlib import Path

import pytest

import dross
from tests.review.colour_vision import SIMULATIONS, contrast, distance, read_palette

ROOT = Path(dross.__file__).parent
SHEETS = [ROOT / "review/static/base.css", ROOT / "templates/document.html"]
TELL_APART = {  # colours that stand for different things
    "decisions": ("good", "bad", "accent"),
    "before, after and at random": ("quiet", "accent", "odd"),
    "words for and against the label": ("for", "against"),
}
FAR_ENOUGH = 19  # Delta E; 2.3 is just noticeable, and each has a word or a sign as well
READABLE = 4.5  # WCAG AA


def palettes(sheet):
    light, dark = sheet.read_text().split("prefers-color-scheme: dark")
    named = read_palette(light)
    return {"light": named, "dark": named | read_palette(dark)}


@pytest.mark.parametrize("vision", SIMULATIONS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("sheet", SHEETS, ids=["page", "report"])
def test_colours_that_mean_something_can_be_told_apart_and_read(sheet, scheme, vision):
    palette = palettes(sheet)[scheme]
    for names in TELL_APART.values():
        for one, other in combinations((name for name in names if name in palette), 2):
            apart = distance(palette[one], palette[other], vision)
            assert apart >= FAR_ENOUGH, (one, other, apart)
    text = ("ink", "quiet", "good", "bad", "accent", "odd")
    for name in (name for name in text if name in palette):
        for ground in (name for name in ("paper", "card", "tint") if name in palette):
            assert contrast(palette[name], palette[ground], vision) >= READABLE, (name, ground)


def test_the_page_and_the_report_have_the_same_colours():
    page, paper = (palettes(sheet) for sheet in SHEETS)
    for scheme in ("light", "dark"):
        for name in ("good", "bad", "accent"):
            assert page[scheme][name] == paper[scheme][name]


def test_the_simulation_confuses_what_it_should():
    assert distance("#256b3b", "#a53118", "protanopia") < FAR_ENOUGH  # green and red
    assert distance("#256b3b", "#2f5d8a", "tritanopia") < FAR_ENOUGH  # green and blue
    assert distance("#000000", "#ffffff", "usual") == pytest.approx(100, abs=0.1)
    assert contrast("#000000", "#ffffff", "deuteranopia") == pytest.approx(21, abs=0.1)
