"""The recommended plan in a real browser: first on the page, and accepted with one key."""

import pytest

from dross.cleaning.project import Project
from tests.cleaning.made_inputs import change_json
from tests.review.browser_page import (
    decisions_on_disk,
    focused_id,
    reload,
    visit,
    wait_for_decision,
    wait_for_text,
    wait_until,
    wait_until_saved,
)
from tests.review.review_client import serve_in_thread
from tests.review.review_project import make_project


def make_planned(tmp_path, kind="table"):
    return make_project(tmp_path / "p", kind, 60, planned=True)


def planned_ids(project):
    rows = project.table
    chosen = rows[rows["action"] != "keep"].sort_values(["confidence", "harm_rank"])
    return [int(id) for id in chosen.index]


def test_the_plan_is_first_and_one_key_takes_it_over_and_one_takes_it_back(browser, tmp_path):
    project = make_planned(tmp_path)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        assert page.text_content("#plan h2").startswith("Recommended: relabel 5 and remove 5")
        top = page.eval_on_selector("#plan", "plan => plan.getBoundingClientRect().bottom")
        assert top <= page.eval_on_selector("#lists", "lists => lists.getBoundingClientRect().top")
        assert "error 15.0 % -> 13.9 %" in page.text_content("#plan-why")
        assert not page.is_visible("#plan-doubt")
        page.click("[data-tab=harmful]")
        page.wait_for_selector("#plan-doubt:visible")  # it is about the order of harm
        page.keyboard.press("t")
        wait_for_text(page, "plan-state", "Accepted: 10 instances decided")
        wait_until_saved(page)
        expected = dict.fromkeys(project.recommended.removed.tolist(), ("remove", None))
        expected |= {id: ("relabel", new) for id, new in project.recommended.relabeled.items()}
        assert decisions_on_disk(project) == expected
        wait_for_text(
            page, "progress-text", "10 decided (10 of 10 in the plan): 5 remove, 5 relabel"
        )
        assert page.is_disabled("#take-plan")
        page.keyboard.press("u")
        wait_for_text(page, "progress-text", "0 decided (0 of 10 in the plan)")
        assert decisions_on_disk(project) == {} and page.is_enabled("#take-plan")
        page.click("#take-plan")
        wait_for_text(page, "plan-state", "Accepted: 10 instances decided")
        assert focused_id(page) is not None  # in the list, not on a button that is off


def test_a_plan_that_was_taken_over_without_a_server_is_saved_later(browser, tmp_path):
    project = make_planned(tmp_path)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.context.set_offline(True)
        page.keyboard.press("t")
        wait_for_text(page, "problem", "1 decision is waiting")
        page.context.set_offline(False)
        wait_until_saved(page)
        assert len(decisions_on_disk(project)) == 10


@pytest.mark.parametrize("kind", ["table", "images", "text"])
def test_instances_say_what_the_plan_does_with_them(browser, tmp_path, kind):
    project = make_planned(tmp_path, kind)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        assert page.get_attribute("[data-tab=plan]", "aria-current") == "page"
        page.click("[data-tab=all]")
        page.click("#look-plan")
        wait_until(page, "location.search.includes('tab=plan')")
        wait_for_text(page, "found", "10 instances")
        first = planned_ids(project)[0]
        wait_until(page, f"document.activeElement.dataset.id === '{first}'")
        row = project.table.loc[first]
        item = page.locator(f".item[data-id='{first}']")
        assert item.locator(".decision").text_content() == f"plan: {row['action']}"
        if kind != "images":
            assert f"{100 * row['confidence']:.0f}\u00a0%" in item.text_content()
        page.keyboard.press("k")
        wait_for_decision(page, first, "keep")
        assert item.locator(".decision").text_content() == "Keep"
        wait_for_text(page, "plan-state", "0 of 10 decided as recommended, 1 differently")
        page.keyboard.press("t")
        wait_for_text(page, "plan-state", "Accepted: 9 instances decided")
        reload(page)
        assert page.get_attribute("[data-tab=plan]", "aria-current") == "page"
        wait_for_text(page, "plan-state", "9 of 10 decided as recommended, 1 differently")


def test_the_other_plans_are_a_figure_and_a_table(browser, tmp_path):
    project = make_planned(tmp_path)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.click("#open-plans")
        wait_until(page, "document.querySelector('.plans-figure').naturalWidth > 100")
        table = page.text_content("#plans-body table")
        assert "wrong-50 (recommended)" in table and "-1.1 points (-1.4 to -0.8)" in table
        assert "remove 10" in table and "+0.4 points (+0.1 to +0.7)" in table
        assert "plain" not in table
        assert "counts every label as correct" in page.text_content("#plans-body")
        assert "rows whose label is more than 90 % likely to be wrong" in table
        page.keyboard.press("Escape")
        page.click("#plan summary")
        assert not page.is_visible("#plan-why") and page.is_visible("#take-plan")
        reload(page)
        assert not page.is_visible("#plan-why")  # remembered
        page.keyboard.press("?")
        assert "accept the recommended plan" in page.text_content("#help-body")


def test_to_change_nothing_is_said_honestly(browser, tmp_path):
    folder = make_planned(tmp_path).folder
    reason = "No plan improves models by more than chance would explain."

    def change(content):
        content["recommendation"] |= {"recommended": None, "state": "no gain", "reason": reason}
        content["run_agreement"] = 0.7

    change_json(folder / "project.json", change)
    table = Project.open(folder).table.assign(action="keep")
    table.to_parquet(folder / "instances.parquet")
    with serve_in_thread(Project.open(folder)) as server, visit(browser, server) as page:
        assert page.text_content("#plan h2") == "Recommended: change nothing."
        assert (
            page.text_content("#plan-why")
            == "No plan improves models by more than chance would explain."
        )
        assert not page.is_visible("#take-plan") and not page.is_visible("#plan-doubt")
        assert page.is_visible("#open-plans")
        page.keyboard.press("t")
        wait_for_text(page, "plan-state", "there is no plan to accept")
    assert decisions_on_disk(Project.open(folder)) == {}
