"""Labels to check first, in a real browser."""

import pytest

from tests.review.browser_page import (
    reload,
    selected_id,
    visit,
    wait_for_text,
    wait_until,
    wait_until_saved,
)
from tests.review.review_client import serve_in_thread
from tests.review.review_project import add_checks, make_project


@pytest.mark.parametrize("kind", ["table", "images", "text"])
def test_labels_are_checked_with_the_usual_keys(browser, tmp_path, kind):
    project = add_checks(make_project(tmp_path / "p", kind, 60))
    with serve_in_thread(project) as server, visit(browser, server, "&tab=harmful") as page:
        assert page.inner_text("[data-do=keep]").startswith("Keep")
        assert "Check these 5 labels (about 1 minute)." in page.inner_text("#plan-checks")
        assert not page.is_visible("#plan-command")
        page.click("#check-labels")
        wait_for_text(page, "found", "5 instances")
        page.wait_for_selector("#why-body .reasons")
        assert selected_id(page) == 60
        assert "Press k if the label is right" in page.inner_text("#meaning")
        assert page.inner_text("[data-do=keep]").startswith("Right")
        page.keyboard.press("k")
        page.keyboard.press("x")
        page.keyboard.press("r")
        page.wait_for_selector("#relabel[open]")
        page.keyboard.press("Enter")  # what the models say has the focus
        wait_until_saved(page)
        said = [page.inner_text(f".item[data-id='{id}'] .decision") for id in (60, 61, 62)]
        wanted = str(project.label_table.loc[2, "prediction"])
        assert said == ["Right", "Wrong", f"Should be {wanted}"]
        log = project.decisions
        assert log.current() == {} and log.current("validation") == {
            0: ("keep", None),
            1: ("remove", None),
            2: ("relabel", wanted),
        }
        assert "3 of 5 labels checked" in page.inner_text("#progress-text")
        assert page.inner_text("#plan-checks").startswith("3 of 5 labels checked.")
        page.keyboard.press("u")
        wait_until_saved(page)
        assert 2 not in log.current("validation") and selected_id(page) == 62
        reload(page)
        wait_for_text(page, "found", "5 instances")
        assert page.inner_text(".item[data-id='61'] .decision") == "Wrong"
        page.click("#open-bulk")
        page.wait_for_selector("#bulk-confirm:enabled")
        assert page.inner_text("#bulk-action option[value=remove]") == "wrong"
        page.select_option("#bulk-action", "keep")
        assert page.inner_text("#bulk-confirm") == "Right: 5 instances"
        page.click("#bulk-confirm")
        wait_for_text(page, "plan-checks", "All 5 labels are checked. Now run this command again")
        assert page.inner_text("#plan-command").startswith("dross clean people.csv --label income")
        assert not page.is_visible("#check-labels")
        page.click("[data-tab=all]")
        wait_for_text(page, "found", "60 instances")
        assert page.inner_text("[data-do=remove]").startswith("Remove")


def test_a_label_can_be_changed_before_its_row_has_come(browser, tmp_path):
    """The key is not lost: the dialog opens when the server has said what the instance is."""
    project = add_checks(make_project(tmp_path / "p", "text", 60))
    with serve_in_thread(project) as server, visit(browser, server, "&tab=harmful") as page:
        held = []
        page.route("**/api/items*", lambda route: held.append(route))
        page.click("[data-tab=validation]")
        wait_for_text(page, "found", "5 instances")
        page.keyboard.press("r")
        wait_until(page, "document.querySelector('.item[aria-selected=true].loading')")
        assert not page.is_visible("#relabel")
        for route in held:
            route.continue_()
        page.wait_for_selector("#relabel[open]")


def test_trusted_labels_are_said_to_be(browser, tmp_path):
    project = add_checks(make_project(tmp_path / "p", "table", 40), wanted=0, trusted=True)
    with serve_in_thread(project) as server, visit(browser, server, "&tab=validation") as page:
        wait_for_text(page, "found", "0 instances")
        assert "--validation-is-clean" in page.inner_text("#meaning")


def test_a_phone_names_what_a_label_to_check_shows(browser, tmp_path):
    """No effect and no confidence: a label that is only to be checked has neither."""
    project = add_checks(make_project(tmp_path / "p", "table", 40))
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True)
    with (
        serve_in_thread(project) as server,
        visit(browser, server, "&tab=validation", context, tour=True) as page,
    ):
        assert "Check labels" in page.inner_text("#tour-text")  # there is no plan to accept
        assert "Accept the plan" not in page.inner_text("#tour-text")
        page.click("#tour-skip")
        names = "[...document.querySelector('.item').children].map((cell) => cell.dataset.name)"
        shown = page.evaluate(names)
        assert "label wrong" in shown and not {"effect", "sure"} & set(shown)
        page.keyboard.press("k")
        wait_until_saved(page)
        assert page.inner_text("#progress-text") == "1 of 5 labels checked"
    context.close()
