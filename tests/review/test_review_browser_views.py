"""What the review page shows in a real browser: hostile data, long lists, small screens."""

import json
import os
import re
import sys
from pathlib import Path

import pandas as pd
import pytest

from dross._io import seal
from dross._text import printable
from dross.cleaning.project import Project
from tests.cleaning.made_inputs import change_json
from tests.review.browser_page import (
    decisions_on_disk,
    focused_id,
    focused_place,
    reload,
    selected_id,
    visit,
    wait_for_text,
    wait_until,
    wait_until_saved,
)
from tests.review.review_client import serve_in_thread
from tests.review.review_project import (
    HOSTILE,
    judge_command,
    make_project,
    make_verdict,
    write_verdict,
)

# where `make browser` puts it
_FETCHED = Path(sys.prefix) / "axe-core" / "package" / "axe.min.js"
AXE = Path(os.environ.get("AXE_CORE", _FETCHED))
JUDGE = """
assert sys.argv[2:] == ['--seeds', '4']
(folder / 'judging.json').write_text(json.dumps({'done': 2, 'of': 8, 'stage': 'after'}))
while not (folder / 'go').exists(): time.sleep(0.02)
(folder / 'verdicts').mkdir()
(folder / 'verdicts' / '1.json').write_text(VERDICT)
"""


@pytest.mark.parametrize("kind", ["table", "images", "text"])
def test_hostile_data_run_nothing_and_are_shown_as_they_are(browser, tmp_path, kind):
    project = make_project(tmp_path / "p", kind, 30, hostile=True)
    write_verdict(project, make_verdict(sentence=HOSTILE[0]))
    with serve_in_thread(project) as server, visit(browser, server, "&tab=all") as page:
        page.wait_for_selector("#why-body .reasons")
        for _ in range(6):
            page.keyboard.press("j")
        page.keyboard.press("r")
        page.wait_for_selector("#relabel[open]")
        assert HOSTILE[0] in page.text_content("#relabel-body")
        page.keyboard.press("Escape")
        page.click("#open-bulk")
        page.wait_for_selector("#bulk-confirm:enabled")
        page.select_option("#bulk-action", "relabel")
        page.keyboard.press("Escape")
        page.keyboard.press("v")
        page.wait_for_selector(".sentence")
        assert page.text_content(".sentence") == HOSTILE[0]
        assert page.text_content("h1") == HOSTILE[4]
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type(HOSTILE[1])
        wait_until(page, "location.search.includes('q=')")
        reload(page)
        assert page.evaluate("window.broken") is None
        assert page.locator("body script, [onerror], [onload], [onmouseover], main a").count() == 0


def test_the_page_escapes_what_the_command_line_escapes(browser, shared_project):
    escape_all = """async () => {
        const { printable } = await import("/static/dom.js");
        const all = Array.from({ length: 0x10000 }, (_, code) => [code, String.fromCharCode(code)]);
        return all.map(([code, text]) => [code, text, printable(text)])
            .filter(([, text, shown]) => shown !== text).map(([code, , shown]) => [code, shown]);
    }"""
    expected = {code: printable(chr(code)) for code in range(0x10000)}
    expected = {code: shown for code, shown in expected.items() if shown != chr(code)}
    with serve_in_thread(shared_project) as server, visit(browser, server) as page:
        assert dict(page.evaluate(escape_all)) == expected
        whole = "async () => (await import('/static/dom.js')).printable('🦊 Größe')"
        assert page.evaluate(whole) == "🦊 Größe"


@pytest.mark.parametrize("kind", ["table", "text"])
def test_control_characters_are_shown_escaped_and_decided_as_they_are(browser, tmp_path, kind):
    name, label = "a\x1b[31mb\u202ec\0", "\ufeffyes\x1b\u202e"
    folder = make_project(tmp_path / "p", kind, 30).folder
    first = Project.open(folder).classes[0]
    change_json(folder / "project.json", lambda content: content["classes"].__setitem__(0, label))
    instances = pd.read_parquet(folder / "instances.parquet").replace({first: label})
    instances.assign(source=name).to_parquet(folder / "instances.parquet")
    content = pd.read_parquet(folder / "content.parquet")
    column = "text" if kind == "text" else "workclass"
    content = content.assign(**{column: name}).rename(columns={"education": name})
    content.to_parquet(folder / "content.parquet")
    with (
        serve_in_thread(Project.open(folder)) as server,
        visit(browser, server, "&tab=all") as page,
    ):
        page.wait_for_selector("#why-body .reasons")
        text = page.text_content("body")
        assert "a\\x1b[31mb\\u202ec\\x00" in text and "\ufeffyes\\x1b\\u202e" in text
        page.click("#open-bulk")
        page.select_option("#bulk-action", "relabel")
        page.select_option("#bulk-label", index=0)
        page.wait_for_selector("#bulk-confirm:enabled")
        seen = page.evaluate("document.documentElement.outerHTML")
        page.click("#bulk-confirm")
        wait_until_saved(page)
    seen = re.sub(r'(value|data-key)="[^"]*"', "", seen)  # what is decided, not what is shown
    assert printable(seen) == seen
    assert {tuple(each) for each in decisions_on_disk(Project.open(folder)).values()} == {
        ("relabel", label)
    }


def test_a_long_list_scrolls_with_few_elements_and_keeps_its_focus(browser, tmp_path):
    project = make_project(tmp_path / "p", "table", 10_000)
    everything = [int(id) for id in project.table["harm_rank"].sort_values().index]
    with serve_in_thread(project) as server, visit(browser, server, "&tab=all") as page:
        page.keyboard.press("End")
        assert selected_id(page) == everything[-1]
        page.wait_for_selector(f".item[data-id='{everything[-1]}'] .effect")
        page.eval_on_selector("#list", "list => list.scrollTop = list.scrollHeight / 2")
        page.wait_for_selector(".item[data-place='5000']:not(.loading)")
        assert page.locator(".item").count() < 60
        read_places = "items => items.map(item => Number(item.dataset.place))"
        places = page.eval_on_selector_all(".item", read_places)
        assert places == sorted(places) and {4999, 5000, 9999} <= set(places)
        assert focused_id(page) == str(everything[-1])
        page.keyboard.press("Home")
        assert selected_id(page) == everything[0]
        page.keyboard.press("PageDown")
        assert focused_place(page) > 4


def test_images_are_a_grid_and_why_shows_others(browser, tmp_path):
    project = make_project(tmp_path / "p", "images", 80)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        images = "[...document.querySelectorAll('#list img')]"
        wait_until(page, f"{images}.every((image) => image.complete && image.naturalWidth)")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert focused_place(page) > 3
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "why-title"
        page.wait_for_selector("#why-body .others img")
        assert all(page.eval_on_selector_all("img", "images => images.map((image) => image.alt)"))
        before = selected_id(page)
        page.locator(".others button.small").first.click()
        wait_until(page, "document.activeElement.matches('.item')")
        assert selected_id(page) != before
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        assert page.is_hidden("#why")
        assert page.evaluate("document.activeElement.className").startswith("item")


def test_a_judgment_is_started_cancelled_and_shown_on_the_page(browser, project):
    verdict = f"VERDICT = {json.dumps(seal(make_verdict(seeds=4)))!r}\n"
    command = judge_command(project.folder, verdict + JUDGE)
    with (
        serve_in_thread(project, judge_command=command) as server,
        visit(browser, server) as page,
    ):
        page.keyboard.press("v")
        wait_for_text(page, "verdicts", "no verdict yet")
        page.click("#judge-start")
        wait_for_text(page, "judge-state", "nothing to judge")
        page.keyboard.press("Escape")
        page.keyboard.press("x")
        wait_until_saved(page)
        page.keyboard.press("v")
        page.fill("#seeds", "4")
        page.click("#judge-start")
        wait_for_text(page, "judge-progress", "2 of 8, after")
        page.click("#judge-cancel")
        wait_for_text(page, "judge-state", "Canceled")
        page.click("#judge-start")
        page.wait_for_selector("#judge-cancel:visible")
        (project.folder / "go").touch()
        page.wait_for_selector(".sentence")
        assert "lowers the test error" in page.text_content(".sentence")
        assert "judged by RandomForestClassifier" in page.text_content("#verdicts")
        assert page.locator("figure circle").count() == 3 * 4 + 2
        assert page.locator("#verdicts table").count() == 4


def test_narrow_and_magnified_screens_need_no_sideways_scrolling(browser, project):
    with serve_in_thread(project) as server, visit(browser, server) as page:
        for width, height in ((360, 740), (320, 256)):  # a telephone; 1280 x 1024 at 400 %
            page.set_viewport_size({"width": width, "height": height})
            wait_until(page, "document.querySelector('#items.narrow .item:not(.loading)')")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.eval_on_selector("#list", "list => list.scrollWidth <= list.clientWidth")
        page.click("[data-do=why]")
        page.wait_for_selector("#why-body .reasons")
        page.click("#close-why")
        page.click("[data-do=keep]")
        wait_until_saved(page)
        assert len(decisions_on_disk(project)) == 1


def check_with_axe(page, where):
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    serious = [entry for entry in found if entry["impact"] in ("serious", "critical")]
    places = {entry["id"]: [node["html"][:120] for node in entry["nodes"][:3]] for entry in serious}
    assert not serious, (where, places)


@pytest.mark.skipif(
    not AXE.exists(), reason="axe-core is not here: make browser fetches it where npm is"
)
@pytest.mark.parametrize("kind", ["table", "images", "text"])
def test_axe_finds_nothing_serious(browser, tmp_path, kind):
    project = make_project(tmp_path / "p", kind, 40, planned=True)
    write_verdict(project, make_verdict())
    with serve_in_thread(project) as server:
        for scheme, width, keys in (
            ("light", 1300, "rv?bt" if kind == "table" else ""),
            ("dark", 1300, "v"),
            ("light", 340, "w"),
        ):
            with visit(browser, server, color_scheme=scheme, reduced_motion="reduce") as page:
                page.set_viewport_size({"width": width, "height": 800})
                page.keyboard.press("x")
                wait_until_saved(page)
                check_with_axe(page, f"{scheme} {width}")
                page.click("#open-plans")
                check_with_axe(page, f"{scheme} {width} plans")
                page.keyboard.press("Escape")
                for key in keys:
                    page.keyboard.press(key)
                    page.wait_for_timeout(250)
                    check_with_axe(page, f"{scheme} {width} {key}")
                    page.keyboard.press("Escape")
