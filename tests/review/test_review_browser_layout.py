"""What fits on a screen: enough rows, whole class names and percentages, targets for a finger."""

import pandas as pd
import pytest

from dross.cleaning.project import Project
from dross.cleaning.report import write_report
from tests.cleaning.made_inputs import change_json
from tests.review.browser_page import visit, wait_until
from tests.review.review_client import serve_in_thread
from tests.review.review_project import make_project, make_verdict, write_verdict
from tests.review.test_review_browser_views import AXE, check_with_axe

LAPTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
LONG = ["Complaint about a delayed international delivery", "Change of the billing address"]
ABSURD = ["x" * 400, "one word and another " * 20]
SHOWN = """() => {
    const end = document.getElementById("actions").getBoundingClientRect().top;
    const boxes = [...document.querySelectorAll(".item:not(.loading)")].map((item) => item.getBoundingClientRect());
    return {
        whole: boxes.filter((box) => box.top >= 0 && box.bottom <= end + 1).length,
        wide: document.documentElement.scrollWidth > innerWidth,
    };
}"""
# texts that leave their box, or the part of the window that the list has
CUT_OFF = """(selector) => {
    const list = document.getElementById("list").getBoundingClientRect();
    return [...document.querySelectorAll(`.item:not(.loading) ${selector}`)].filter((element) => {
        const item = element.closest(".item").getBoundingClientRect();
        const range = document.createRange();
        range.selectNodeContents(element);
        if (element.querySelector("bdi")) range.setStartBefore(element.querySelector("bdi"));
        const text = range.getBoundingClientRect();
        const box = element.getBoundingClientRect();
        return text.width && (text.right > Math.min(box.right, list.right) + 1 || text.left < list.left - 1
            || text.bottom > Math.min(box.bottom, item.bottom) + 1 || text.top < item.top - 1);
    }).map((element) => element.textContent);
}"""
SMALL = """() => [...document.querySelectorAll("button, a, select, input, summary")]
    .filter((element) => element.checkVisibility())
    .map((element) => [element.closest("label") ?? element, element.id || element.textContent])
    .map(([target, name]) => [name, target.getBoundingClientRect().height])
    .filter(([, height]) => height < 40)"""


def make_named(folder, kind, names):
    """A project with these class names, and a plan."""
    project = make_project(folder / "p", kind, 60, planned=True)
    new = dict(zip(project.classes, names))

    def rename(content):
        content["classes"] = [new.get(name, name) for name in content["classes"]]
        for plan in content["recommendation"]["plans"]:
            plan["relabeled"] = {id: new.get(name, name) for id, name in plan["relabeled"].items()}

    change_json(project.folder / "project.json", rename)
    table = pd.read_parquet(project.folder / "instances.parquet")
    table = table.replace({"label": new, "prediction": new})
    table.to_parquet(project.folder / "instances.parquet")
    return Project.open(project.folder)


@pytest.mark.parametrize(
    ("kind", "names"),
    [("table", LONG), ("table", ABSURD), ("images", []), ("images", LONG), ("text", LONG)],
    ids=["table", "table-absurd", "images", "images-long", "text"],
)
def test_suggestions_are_whole_and_enough_rows_are_in_sight(browser, tmp_path, kind, names):
    project = make_named(tmp_path, kind, names)
    with serve_in_thread(project) as server:
        for size in (LAPTOP, PHONE):
            is_phone = size is PHONE
            context = browser.new_context(viewport=size, has_touch=is_phone, is_mobile=is_phone)
            with visit(browser, server, context=context) as page:
                wait_until(page, "document.querySelector('.item:not(.loading) .chip.differs')")
                shown = page.evaluate(SHOWN)
                if names is not ABSURD:
                    fewest = 2 if is_phone else 5 if kind == "images" else 4
                    fewest *= 2 if kind == "images" and not names else 1  # two rows of tiles
                    assert shown["whole"] >= fewest, (size, shown)
                assert not shown["wide"]
                for selector in (".chip.differs", ".effect"):
                    assert page.evaluate(CUT_OFF, selector) == [], size
                chip = page.locator(".chip.differs").first
                assert chip.text_content().endswith("\u00a0%")
                page.click("[data-do=why]")
                page.wait_for_selector(
                    "#why-body .reasons" if is_phone else "#why[hidden]", state="attached"
                )
                if is_phone and names:  # the panel has the whole name
                    assert names[0] in page.text_content("#why-body")
            context.close()


def test_a_phone_has_targets_for_a_finger_and_no_keys(browser, tmp_path):
    project = make_project(tmp_path / "p", "table", 60, planned=True)
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    with serve_in_thread(project) as server, visit(browser, server, context=context) as page:
        page.wait_for_selector(".item .effect")
        assert page.evaluate(SHOWN)["whole"] >= 3
        assert page.evaluate(SMALL) == []
        for id in ("keys-on", "redo", "open-bulk", "meaning", "look-plan", "open-plans"):
            assert page.is_hidden(f"#{id}"), id
        page.tap("#filter-box summary")
        page.tap("#plan-box summary")
        assert page.is_visible("#open-bulk") and page.is_visible("#meaning")
        assert page.is_visible("#open-plans") and page.is_visible("#plan-why")
        assert page.evaluate(SMALL) == [] and not page.evaluate(SHOWN)["wide"]
        page.tap("[data-do=why]")
        page.wait_for_selector("#why-body .reasons")
        assert page.evaluate(SMALL) == []
    context.close()


def test_rows_stay_as_high_as_their_names_need(browser, tmp_path):
    """Short names have low rows; the same page made narrower measures them anew."""
    short = make_project(tmp_path / "p", "table", 60)
    height = "document.querySelector('.item:not(.loading)').getBoundingClientRect().height"
    with serve_in_thread(short) as server, visit(browser, server) as page:
        page.wait_for_selector(".item .effect")
        low = page.evaluate(height)
        assert low < 45
        page.set_viewport_size({"width": 390, "height": 844})
        wait_until(page, f"{height} > {2 * low}")
        page.set_viewport_size({"width": 1300, "height": 800})
        wait_until(page, f"{height} === {low}")


def test_the_report_is_short_and_its_first_screen_tells_the_story(browser, tmp_path):
    project = make_project(tmp_path / "p", "images", 300, planned=True)
    write_verdict(project, make_verdict())
    report = write_report(project).resolve().as_uri()
    for size, most_screens in ((LAPTOP, 4), (PHONE, 5)):
        page = browser.new_page(viewport=size)
        page.goto(report)
        height = page.evaluate("document.documentElement.scrollHeight")
        assert height <= most_screens * size["height"], height
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
        cut_off = "(all) => all.filter((box) => box.scrollWidth > box.clientWidth).length"
        assert page.eval_on_selector_all(".scroll:has(.stacked)", cut_off) == 0
        page.close()
    page = browser.new_page(viewport=LAPTOP)
    page.goto(report)
    bottom = "element => element.getBoundingClientRect().bottom"
    assert page.eval_on_selector(".story", bottom) < LAPTOP["height"] / 2
    assert page.eval_on_selector(".suggested thead", bottom) < LAPTOP["height"]
    for summary in page.locator(".folded > summary").all():
        if summary.locator("..").get_attribute("open") is None:
            summary.click()
    assert page.locator(".cards li img").count() > 20
    if AXE.exists():
        check_with_axe(page, "report")
    page.close()
