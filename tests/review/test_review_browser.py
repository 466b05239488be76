"""Deciding on the review page in a real browser: an hour of it, in a minute."""

from tests.review.browser_page import (
    decisions_on_disk,
    focused_id,
    harmful_ids,
    reload,
    selected_id,
    shown_decision,
    visit,
    wait_for_decision,
    wait_for_text,
    wait_until,
    wait_until_not_saved,
    wait_until_saved,
)
from tests.review.review_client import serve_in_thread


def test_deciding_undoing_and_reloading_by_keyboard(browser, project):
    first, second, third, fourth, *_ = harmful_ids(project)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        assert selected_id(page) == first and "token" not in page.url
        page.keyboard.press("x")
        page.keyboard.press("k")
        page.wait_for_selector(f".item[data-id='{third}'] .effect")
        page.keyboard.press("r")
        page.wait_for_selector("#relabel[open]")
        label = project.table.at[third, "label"]
        other = next(name for name in ("<=50K", ">50K") if name != label)
        page.keyboard.press("1" if other == "<=50K" else "2")
        wait_until_saved(page)
        assert decisions_on_disk(project) == {
            first: ("remove", None),
            second: ("keep", None),
            third: ("relabel", other),
        }
        assert selected_id(page) == fourth
        page.keyboard.press("u")
        wait_for_decision(page, third, "undecided")
        assert selected_id(page) == third
        page.keyboard.press("ArrowUp")
        assert selected_id(page) == second and focused_id(page) == str(second)
        wait_until(page, f"location.search.includes('item={second}')")
        reload(page)
        assert selected_id(page) == second and shown_decision(page, first) == "remove"
        page.keyboard.press("Shift+U")
        wait_for_decision(page, third, "relabel")
        page.keyboard.press("Control+z")
        page.keyboard.press("Control+z")
        wait_for_decision(page, second, "undecided")
    with serve_in_thread(project) as server, visit(browser, server) as page:  # after a restart
        page.click("#undo")
        wait_for_decision(page, first, "undecided")
        wait_until_saved(page)
        assert decisions_on_disk(project) == {}


def test_every_key_has_a_button_and_keys_can_be_switched_off(browser, project):
    first, second, *_ = harmful_ids(project)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.uncheck("#keys-on")
        page.locator(".item[aria-selected=true]").focus()
        for key in "xkrucwbtv/?":
            page.keyboard.press(key)
        assert page.locator("dialog[open]").count() == 0 and focused_id(page) == str(first)
        page.click("[data-do=remove]")
        page.click("[data-do=relabel]")
        page.locator(".class-choice:enabled").first.click()
        wait_until_saved(page)
        actions = {id: action for id, (action, _) in decisions_on_disk(project).items()}
        assert actions == {first: "remove", second: "relabel"}
        reload(page)
        assert not page.is_checked("#keys-on")  # remembered
        page.click("#open-help")
        page.check("#keys-on-too")
        page.keyboard.press("Escape")
        page.keyboard.press("x")
        wait_until_saved(page)
        assert len(decisions_on_disk(project)) >= 2 and page.is_checked("#keys-on")


def test_the_filter_is_in_the_address_and_back_goes_back(browser, project):
    rows = project.table
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.click("[data-tab=all]")
        page.select_option("[name=class]", ">50K")
        page.select_option("[name=prediction]", "differs")
        count = int(((rows["label"] == ">50K") & (rows["prediction"] != ">50K")).sum())
        found = f"document.getElementById('found').textContent.startsWith('{count} instance')"
        wait_until(page, found)
        for part in ("class=%3E50K", "prediction=differs", "tab=all"):
            assert part in page.url
        reload(page)
        assert page.text_content("#found").startswith(f"{count} instance")
        assert page.input_value("[name=class]") == ">50K"
        page.keyboard.press("/")
        page.keyboard.type("row 17")
        wait_until(page, "location.search.includes('q=row+17')")
        page.go_back()
        wait_until(page, found)


def test_a_bulk_decision_is_counted_confirmed_warned_about_and_undone(browser, project):
    rich = {int(id) for id in project.table.index[project.table["label"] == ">50K"]}
    query = "&tab=all&class=%3E50K"
    with serve_in_thread(project) as server, visit(browser, server, query) as page:
        page.keyboard.press("x")
        wait_until_saved(page)
        page.click("#open-bulk")
        page.wait_for_selector("#bulk-confirm:enabled")
        assert page.text_content("#bulk-confirm") == f"Remove {len(rich)} instances"
        assert "Class >50K would lose" in page.text_content("#bulk-effect")
        page.keyboard.press("Escape")
        assert len(decisions_on_disk(project)) == 1
        page.click("#open-bulk")
        page.click("#bulk-confirm:enabled")
        wait_until_saved(page)
        assert decisions_on_disk(project).keys() == rich
        assert "Warning: Class >50K would lose" in page.text_content("#warnings")
        page.keyboard.press("u")
        wait_until(page, "document.getElementById('warnings').textContent === ''")
        wait_until_saved(page)
        assert len(decisions_on_disk(project)) == 1


def test_two_tabs_and_two_people_see_each_other(browser, project):
    first, second, *_ = harmful_ids(project)
    with (
        serve_in_thread(project) as server,
        visit(browser, server) as ana,
        visit(browser, server) as ben,
    ):
        ana.keyboard.press("x")
        ben.keyboard.press("j")
        ben.keyboard.press("k")
        for page in (ana, ben):
            wait_for_decision(page, first, "remove")
            wait_for_decision(page, second, "keep")
            assert shown_decision(page, first) == "remove"
        assert decisions_on_disk(project) == {first: ("remove", None), second: ("keep", None)}


def test_nothing_is_lost_while_the_server_does_not_answer(browser, project):
    first, second, *_ = harmful_ids(project)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.context.set_offline(True)
        page.keyboard.press("x")
        page.keyboard.press("k")
        wait_until_not_saved(page)
        wait_for_text(page, "problem", "2 decisions are waiting")
        assert decisions_on_disk(project) == {}
        assert shown_decision(page, first) == "remove"
        page.context.set_offline(False)
        wait_until_saved(page)
        assert decisions_on_disk(project) == {first: ("remove", None), second: ("keep", None)}
        assert page.text_content("#problem") == ""
        page.context.set_offline(True)
        page.keyboard.press("x")
        wait_until_not_saved(page)
        page.on("dialog", lambda dialog: dialog.accept())  # "leave this page?"
        page.context.set_offline(False)
        reload(page)
        wait_until_saved(page)
        wait_for_text(page, "progress-text", "2 remove")
        assert len(decisions_on_disk(project)) == 3


def test_a_refused_decision_is_told_and_not_sent_for_ever(browser, project):
    first, second, *_ = harmful_ids(project)
    asked = []
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.evaluate("localStorage.setItem('dross.who', '\\ud800')")  # half a character
        page.keyboard.press("x")
        wait_for_text(page, "problem", "This decision was not accepted: The request is not valid: ")
        wait_until_saved(page)
        assert shown_decision(page, first) == "undecided"
        page.evaluate("localStorage.setItem('dross.who', 'ana')")
        page.keyboard.press("x")
        wait_for_decision(page, second, "remove")
        wait_until_saved(page)
        assert sum("/api/decide" in url for url in asked) == 2
    assert decisions_on_disk(project) == {second: ("remove", None)}


def test_a_server_that_breaks_is_given_up_after_a_few_times(browser, project):
    first, second, *_ = harmful_ids(project)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        broken = []

        def fail(route):
            broken.append(route.request.post_data_json["once"])
            route.fulfill(status=500, json={"error": "Something in dross broke."})

        page.route("**/api/decide", fail)
        page.keyboard.press("x")
        wait_for_text(page, "problem", "This decision was not accepted: Something in dross broke.")
        assert len(broken) == 3 and len(set(broken)) == 1
        page.unroute("**/api/decide")
        page.keyboard.press("k")
        wait_for_decision(page, second, "keep")
        wait_until_saved(page)
        assert shown_decision(page, first) == "undecided"
    assert decisions_on_disk(project) == {second: ("keep", None)}


def test_the_key_that_opens_once_leads_to_the_page(browser, project):
    context = browser.new_context()
    with serve_in_thread(project) as server:
        page = context.new_page()
        page.goto(f"{server.origin}/?token={server.keys.once}")
        page.wait_for_selector("body[data-ready]")
        assert page.url.startswith(server.origin) and "token" not in page.url
        page.keyboard.press("Escape")  # the tour of the first visit
        page.keyboard.press("x")
        wait_until_saved(page)
        reload(page)  # by the cookie alone
        assert len(decisions_on_disk(project)) == 1
    context.close()


def test_what_another_program_stored_under_this_address_is_left_out(browser, project):
    with serve_in_thread(project) as server, visit(browser, server) as page:
        names = "'dross.waiting.' + document.querySelector('meta[name=dross-project]').content"
        for k, stored in enumerate(("[1, null, {}]", "{", '[{"path": "/api/undo"}]')):
            page.evaluate(f"localStorage.setItem({names} + '.{k}', {stored!r})")
        reload(page)
        page.keyboard.press("x")
        wait_until_saved(page)
        assert len(decisions_on_disk(project)) == 1
