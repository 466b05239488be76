"""What the browser tests share: a page that is ready, and waits for what it shows."""

import time
from contextlib import contextmanager

from dross.cleaning.decisions import Decisions


@contextmanager
def visit(browser, server, query="", context=None, *, tour=False, **options):
    """A page that is ready; nothing may have gone wrong in it when it is left.

    tour: as at a first visit, when the tour is shown.
    """
    own = context or browser.new_context(viewport={"width": 1300, "height": 800}, **options)
    if not tour:
        own.add_init_script("try { localStorage.setItem('dross.tour', 'seen') } catch {}")
    page = own.new_page()
    page.set_default_timeout(8000)
    wrong = []

    def note_refusal(message):
        if "Content Security" in message.text:
            wrong.append(message.text)

    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", note_refusal)
    page.goto(server.address + query)
    page.wait_for_selector("body[data-ready]")
    yield page
    assert wrong == []
    page.close()
    if context is None:
        own.close()


def wait_until(page, condition):
    """page.wait_for_function evaluates strings, which the page's policy rightly forbids."""
    end = time.monotonic() + 10
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < end, (condition, page.text_content("#problem"))
        page.wait_for_timeout(25)


def wait_for_text(page, id, text):
    """Wait until an element contains a text."""
    wait_until(page, f"document.getElementById('{id}').textContent.includes('{text}')")


def wait_for_decision(page, id, decision):
    """Wait until the list shows this decision about an instance."""
    item = f"document.querySelector(\".item[data-id='{id}']\")"
    wait_until(page, f"{item}.dataset.decision === '{decision}'")


def wait_until_saved(page):
    wait_until(page, "document.getElementById('saved').textContent === 'Saved'")


def wait_until_not_saved(page):
    wait_until(page, "document.getElementById('saved').textContent === 'Not saved yet'")


def reload(page):
    page.reload()
    page.wait_for_selector("body[data-ready]")


def decisions_on_disk(project):
    log = Decisions(project.folder / "decisions.sqlite")
    found = log.current()
    log.close()
    return found


def selected_id(page):
    return int(page.locator(".item[aria-selected=true]").get_attribute("data-id"))


def focused_id(page):
    return page.evaluate("document.activeElement.dataset.id")


def focused_place(page):
    return page.evaluate("Number(document.activeElement.dataset.place)")


def shown_decision(page, id):
    return page.locator(f".item[data-id='{id}']").get_attribute("data-decision")


def harmful_ids(project):
    rows = project.table
    ordered = rows["harm_rank"].sort_values().index
    return [int(id) for id in ordered if rows.at[id, "score"] < 0]
