"""The tour, large images, marked words and the values of a row, in a real browser."""

import json
from dataclasses import replace
from itertools import cycle
from math import log

import pytest
from PIL import Image

from dross.cleaning.inputs import Request
from dross.cleaning.project import Project
from dross.cleaning.project_files import write_sealed
from tests.review.browser_page import focused_id, reload, selected_id, visit, wait_until
from tests.review.review_client import client_of, serve_in_thread
from tests.review.review_project import make_project
from tests.review.test_review_browser_views import AXE, check_with_axe


def with_originals(folder, size=(300, 200)):
    """A project of images whose input is there, as `dross clean` notes it."""
    project = make_project(folder / "p", "images", 30)
    for name in project.content["path"]:
        path = folder / "input" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, "red").save(path)
    info = replace(project.info, request=Request(str(folder / "input")))
    write_sealed(project.folder / "project.json", info)
    return Project.open(project.folder)


def check_accessibility(page, where):
    if AXE.exists():
        check_with_axe(page, where)


def test_the_tour_has_four_steps_once_and_again_from_the_help(browser, shared_project):
    with (
        serve_in_thread(shared_project) as server,
        visit(browser, server, tour=True, reduced_motion="reduce") as page,
    ):
        for step in range(1, 5):
            wait_until(page, "document.activeElement.id === 'tour-title'")
            assert page.text_content("#tour-place") == f"Step {step} of 4"
            assert page.locator(".toured").count() == 1
            if step == 2:
                check_accessibility(page, "tour")
            page.keyboard.press("x")  # decides nothing while the tour is shown
            page.click("#tour-next")
        wait_until(page, "!document.querySelector('dialog[open], .toured')")
        assert focused_id(page) == str(selected_id(page))
        assert page.locator(".item[data-decision=remove]").count() == 0
        reload(page)
        assert page.locator("dialog[open]").count() == 0  # remembered
        page.keyboard.press("?")
        page.click("#start-tour")
        page.click("#tour-next")
        page.click("#tour-back")
        assert page.text_content("#tour-place") == "Step 1 of 4"
        page.keyboard.press("Escape")
        wait_until(page, "!document.querySelector('dialog[open]')")


@pytest.fixture
def images(tmp_path):
    return with_originals(tmp_path)


def test_an_image_is_enlarged_by_key_and_by_click_and_the_focus_returns(browser, images):
    with serve_in_thread(images) as server, visit(browser, server) as page:
        page.wait_for_selector(".item[aria-selected=true] img")
        page.keyboard.press("z")
        wait_until(
            page, "document.getElementById('zoom-note').textContent.includes('300 \u00d7 200')"
        )
        width = lambda: page.eval_on_selector("#zoom-stage img", "image => image.clientWidth")
        assert width() > 300  # to fit the window
        check_accessibility(page, "zoom")
        page.keyboard.press("1")
        assert width() == 300
        assert page.get_attribute("[data-zoom=original]", "aria-pressed") == "true"
        page.keyboard.press("+")
        assert width() == 450
        page.click("[data-zoom=out]")
        page.click("[data-zoom=out]")
        assert width() == 200
        page.keyboard.press("0")
        assert width() > 300
        page.keyboard.press("Escape")
        assert focused_id(page) == str(selected_id(page))
        page.click("#why-body .enlarge >> nth=0")
        page.wait_for_selector("#zoom[open]")
        page.click("#zoom [data-close]")
        assert page.evaluate("document.activeElement.className") == "enlarge"


def test_a_small_image_is_shown_in_squares_where_the_original_is_gone(browser, tmp_path):
    project = make_project(tmp_path / "p", "images", 30)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.wait_for_selector(".item[aria-selected=true] img")
        page.keyboard.press("z")
        note = "document.getElementById('zoom-note').textContent"
        wait_until(page, f"{note}.includes('28 \u00d7 28') && {note}.includes('small copy')")
        style = "image => getComputedStyle(image).imageRendering"
        assert page.eval_on_selector("#zoom-stage img", style) == "pixelated"


def test_marked_words_can_be_told_apart_without_colour(browser, tmp_path):
    project = make_project(tmp_path / "p", "text", 30)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.wait_for_selector("#why-body mark.against")
        style = """mark => [getComputedStyle(mark).textDecorationStyle,
            getComputedStyle(mark).textDecorationLine, getComputedStyle(mark).fontWeight]"""
        speaking_for = page.eval_on_selector("#why-body mark.for", style)
        against = page.eval_on_selector("#why-body mark.against", style)
        assert speaking_for == ["solid", "underline", "600"]
        assert against == ["wavy", "underline", "600"]


def test_the_values_of_a_row_come_in_the_order_of_their_weight(browser, tmp_path):
    project = make_project(tmp_path / "p", "table", 40)
    why = json.loads((project.folder / "why.json").read_text())
    weights = [["occupation", -0.9], ["age", 0.4]]
    for entry in why.values():
        entry |= {"columns": weights, "unusual": {"education": "rare: only 0.5 % of rows have it"}}
    (project.folder / "why.json").write_text(json.dumps(why))
    with serve_in_thread(Project.open(project.folder)) as server, visit(browser, server) as page:
        page.wait_for_selector("#why-body .speaks")
        rows = page.locator("#why-body tr").all_inner_texts()[:3]
        assert rows[0].startswith("occupation") and "against the label" in rows[0]
        assert rows[1].startswith("age") and "for the label" in rows[1]
        assert rows[2].startswith("education") and "▲ rare: only 0.5 % of rows" in rows[2]
        assert page.locator(".item .odd-mark").first.inner_text().startswith("▲")


def test_a_change_of_the_loss_is_a_change_of_the_probability(browser, tmp_path):
    project = make_project(tmp_path / "p", "table", 40)
    why = json.loads((project.folder / "why.json").read_text())
    factors = [3, 1.25, 1 / 1.25, 1 / 3]
    for entry in why.values():
        entry["hurts"] = [
            {"id": id, "change": -log(factor), "measured": False}
            for id, factor in enumerate(factors)
        ]
    (project.folder / "why.json").write_text(json.dumps(why))
    with serve_in_thread(Project.open(project.folder)) as server, visit(browser, server) as page:
        page.wait_for_selector("#why-body ul.others")
        listed = page.locator("#why-body ul.others").first.inner_text().replace("\u00a0", " ")
        assert "more likely by a factor of 3.0 without" in listed
        assert "25 % more likely" in listed and "20 % less likely" in listed
        assert "less likely by a factor of 3.0 without" in listed


def test_originals_are_sent_where_they_are_and_nothing_else_is(images, shared_project):
    with client_of(images) as client:
        answer = client.get("/image/original/train/3")
        assert answer.status_code == 200 and answer.content.startswith(b"\x89PNG")
        for address, status in (
            *(("train/999", 404), ("validation/999", 404), ("test/3", 404)),
            *(("train/../3", 400), ("other/3", 400), ("train/-1", 400)),
        ):
            assert client.get(f"/image/original/{address}").status_code == status
    with client_of(shared_project) as client:
        assert client.get("/image/original/train/3").status_code == 404


def test_rows_of_a_list_that_is_flung_are_filled_in_when_it_slows_down(browser, shared_project):
    fling = """() => new Promise((resolve) => {
        const list = document.getElementById("list");
        const frame = (left) => {
            list.scrollTop += 400;
            if (left) requestAnimationFrame(() => frame(left - 1));
            else resolve(list.scrollTop);
        };
        frame(12);
    })"""
    with serve_in_thread(shared_project) as server, visit(browser, server, "&tab=all") as page:
        page.wait_for_selector(".item:not(.loading)")
        assert page.evaluate(fling) > 2000
        wait_until(page, "!document.querySelector('.item.loading')")
        assert page.locator(".item .effect").count() >= 10


HOSTILE_IMAGES = {
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" onload="window.broken=1"><script>'
    b"window.broken=1</script></svg>",
    "html": b"<!doctype html><script>window.broken=1</script>",
    "both": b"\x89PNG\r\n\x1a\n<script>window.broken=1</script>",
    "script": b"window.broken=1",
}


def test_images_that_are_something_else_run_nothing(browser, tmp_path):
    """A project that somebody sent, with markup in place of its images."""
    project = make_project(tmp_path / "p", "images", 30)
    for path, raw in zip((project.folder / "images").iterdir(), cycle(HOSTILE_IMAGES.values())):
        path.write_bytes(raw)
    with serve_in_thread(project) as server:
        with visit(browser, server, "&tab=all") as page:
            assert page.evaluate("window.broken") is None
        tab = browser.new_page()
        tab.goto(server.address)
        for id in range(len(HOSTILE_IMAGES)):  # as by "open image in a new tab"
            tab.goto(f"{server.origin}/image/train/{id}")
            assert tab.evaluate("window.broken") is None
            assert tab.evaluate("document.contentType") == "image/png"
        tab.close()
