"""The review page in a real browser: deciding for an hour, in a minute."""

import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from dross.cleanse.decisions import Decisions
from dross.review.server import serve_in_thread
from review.review_project import HOSTILE, make_project, make_verdict

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the browser tests need playwright: pip install playwright"
)
CHROMIUM = Path("/usr/bin/chromium")
AXE = Path(
    os.environ.get("AXE_CORE", Path(sys.prefix) / "axe-core" / "package" / "axe.min.js")
)  # where `make browser` puts it
if not CHROMIUM.exists():
    pytest.skip("the browser tests need /usr/bin/chromium", allow_module_level=True)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path / "p", "table", 120)


@contextmanager
def visit(browser, server, query="", context=None, **options):
    """A page that is ready; nothing may have gone wrong in it when it is left."""
    own = context or browser.new_context(viewport={"width": 1300, "height": 800}, **options)
    page = own.new_page()
    page.set_default_timeout(8000)
    page.wrong = []
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on(
        "console",
        lambda message: (
            page.wrong.append(message.text) if "Content Security" in message.text else None
        ),
    )
    page.goto(server.address + query)
    page.wait_for_selector("body[data-ready]")
    yield page
    assert page.wrong == []
    page.close()
    if context is None:
        own.close()


def until(page, condition):
    """page.wait_for_function evaluates strings, which the page's policy rightly forbids."""
    end = time.monotonic() + 10
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < end, (condition, page.text_content("#problem"))
        page.wait_for_timeout(25)


def saved(page):
    until(page, "document.getElementById('saved').textContent === 'Saved'")


def on_disk(project):
    log = Decisions(project.folder / "decisions.sqlite")
    found = log.current()
    log.close()
    return found


def selected(page):
    return int(page.locator(".item[aria-selected=true]").get_attribute("data-id"))


def decision(page, id):
    return page.locator(f".item[data-id='{id}']").get_attribute("data-decision")


def harmful(project):
    return [
        int(id)
        for id in project.instances["harm_rank"].sort_values().index
        if project.instances.at[id, "score"] < 0
    ]


def test_deciding_undoing_and_reloading_by_keyboard(browser, project):
    first, second, third, fourth, *_ = harmful(project)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        assert selected(page) == first and "token" not in page.url
        page.keyboard.press("x")
        page.keyboard.press("k")
        page.wait_for_selector(f".item[data-id='{third}'] .effect")
        page.keyboard.press("r")
        other = next(
            name for name in ("<=50K", ">50K") if name != project.instances.at[third, "label"]
        )
        page.keyboard.press("1" if other == "<=50K" else "2")
        saved(page)
        assert on_disk(project) == {
            first: ("remove", None),
            second: ("keep", None),
            third: ("relabel", other),
        }
        assert selected(page) == fourth
        page.keyboard.press("u")
        until(
            page,
            f"document.querySelector(\".item[data-id='{third}']\").dataset.decision === 'undecided'",
        )
        assert selected(page) == third
        page.keyboard.press("ArrowUp")
        assert selected(page) == second and page.evaluate(
            "document.activeElement.dataset.id"
        ) == str(second)
        until(page, f"location.search.includes('item={second}')")
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert selected(page) == second and decision(page, first) == "remove"
        page.keyboard.press("Shift+U")
        until(
            page,
            f"document.querySelector(\".item[data-id='{third}']\").dataset.decision === 'relabel'",
        )
        page.keyboard.press("Control+z")
        page.keyboard.press("Control+z")
        until(
            page,
            f"document.querySelector(\".item[data-id='{second}']\").dataset.decision === 'undecided'",
        )
    with serve_in_thread(project) as server, visit(browser, server) as page:  # after a restart
        page.click("#undo")
        until(
            page,
            f"document.querySelector(\".item[data-id='{first}']\").dataset.decision === 'undecided'",
        )
        saved(page)
        assert on_disk(project) == {}


def test_every_key_has_a_button_and_keys_can_be_switched_off(browser, project):
    first, second, *_ = harmful(project)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.uncheck("#keys-on")
        page.locator(".item[aria-selected=true]").focus()
        for key in "xkrucwbv/?":
            page.keyboard.press(key)
        assert page.locator("dialog[open]").count() == 0 and page.evaluate(
            "document.activeElement.dataset.id"
        ) == str(first)
        page.click("[data-do=remove]")
        page.click("[data-do=relabel]")
        page.locator(".class-choice:enabled").first.click()
        saved(page)
        assert {id: action for id, (action, _) in on_disk(project).items()} == {
            first: "remove",
            second: "relabel",
        }
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert not page.is_checked("#keys-on")  # remembered
        page.click("#open-help")
        page.check("#keys-on-too")
        page.keyboard.press("Escape")
        page.keyboard.press("x")
        saved(page)
        assert len(on_disk(project)) >= 2 and page.is_checked("#keys-on")


def test_the_filter_is_in_the_address_and_back_goes_back(browser, project):
    rows = project.instances
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.click("[data-tab=all]")
        page.select_option("[name=class]", ">50K")
        page.select_option("[name=prediction]", "differs")
        expected = int(((rows["label"] == ">50K") & (rows["prediction"] != ">50K")).sum())
        until(
            page, f"document.getElementById('found').textContent.startsWith('{expected} instance')"
        )
        assert (
            "class=%3E50K" in page.url
            and "prediction=differs" in page.url
            and "tab=all" in page.url
        )
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert (
            page.text_content("#found").startswith(f"{expected} instance")
            and page.input_value("[name=class]") == ">50K"
        )
        page.keyboard.press("/")
        page.keyboard.type("row 17")
        until(page, "location.search.includes('q=row+17')")
        page.go_back()
        until(
            page, f"document.getElementById('found').textContent.startsWith('{expected} instance')"
        )
        page.fill("[name=min]", "lots")
        until(page, "document.getElementById('problem').textContent.includes('not a number')")


def test_a_bulk_decision_is_counted_confirmed_warned_about_and_undone(browser, project):
    rich = {int(id) for id in project.instances.index[project.instances["label"] == ">50K"]}
    with (
        serve_in_thread(project) as server,
        visit(browser, server, "&tab=all&class=%3E50K") as page,
    ):
        page.keyboard.press("x")
        saved(page)
        page.click("#open-bulk")
        page.wait_for_selector("#bulk-confirm:enabled")
        assert page.text_content("#bulk-confirm") == f"Remove {len(rich)} instances"
        assert "Class >50K would lose" in page.text_content("#bulk-effect")
        page.keyboard.press("Escape")
        assert len(on_disk(project)) == 1
        page.click("#open-bulk")
        page.click("#bulk-confirm:enabled")
        saved(page)
        assert on_disk(
            project
        ).keys() == rich and "Careful: Class >50K would lose" in page.text_content("#warnings")
        page.keyboard.press("u")
        until(page, "document.getElementById('warnings').textContent === ''")
        saved(page)
        assert len(on_disk(project)) == 1


def test_two_tabs_and_two_people_see_each_other(browser, project):
    first, second, *_ = harmful(project)
    with (
        serve_in_thread(project) as server,
        visit(browser, server) as ana,
        visit(browser, server) as ben,
    ):
        ana.keyboard.press("x")
        ben.keyboard.press("j")
        ben.keyboard.press("k")
        for page in (ana, ben):
            until(
                page,
                f"document.querySelector(\".item[data-id='{first}']\").dataset.decision === 'remove'"
                f" && document.querySelector(\".item[data-id='{second}']\").dataset.decision === 'keep'",
            )
        assert on_disk(project) == {first: ("remove", None), second: ("keep", None)}


def test_nothing_is_lost_while_the_server_does_not_answer(browser, project):
    first, second, *_ = harmful(project)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.context.set_offline(True)
        page.keyboard.press("x")
        page.keyboard.press("k")
        until(page, "document.getElementById('saved').textContent === 'Not saved yet'")
        until(page, "document.getElementById('problem').textContent.includes('2 decisions wait')")
        assert on_disk(project) == {}
        assert decision(page, first) == "remove"
        page.context.set_offline(False)
        saved(page)
        assert (
            on_disk(project) == {first: ("remove", None), second: ("keep", None)}
            and page.text_content("#problem") == ""
        )
        page.context.set_offline(True)
        page.keyboard.press("x")
        until(page, "document.getElementById('saved').textContent === 'Not saved yet'")
        page.on("dialog", lambda dialog: dialog.accept())  # "leave this page?"
        page.context.set_offline(False)
        page.reload()
        page.wait_for_selector("body[data-ready]")
        saved(page)
        until(page, "document.getElementById('progress-text').textContent.includes('2 remove')")
        assert len(on_disk(project)) == 3


@pytest.mark.parametrize("kind", ["table", "images", "text"])
def test_hostile_data_run_nothing_and_are_shown_as_they_are(browser, tmp_path, kind):
    project = make_project(tmp_path / "p", kind, 30, hostile=True)
    (project.folder / "verdicts").mkdir()
    (project.folder / "verdicts" / "1.json").write_text(
        json.dumps(make_verdict(sentence=HOSTILE[0]))
    )
    with serve_in_thread(project) as server, visit(browser, server, "&tab=all") as page:
        page.wait_for_selector("#why-body .reasons")
        for _ in range(6):
            page.keyboard.press("j")
        page.keyboard.press("r")
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
        until(page, "location.search.includes('q=')")
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate("window.broken") is None
        assert page.locator("body script, [onerror], [onload], [onmouseover], main a").count() == 0


def test_a_long_list_scrolls_with_few_elements_and_keeps_its_focus(browser, tmp_path):
    project = make_project(tmp_path / "p", "table", 10_000)
    everything = [int(id) for id in project.instances["harm_rank"].sort_values().index]
    with serve_in_thread(project) as server, visit(browser, server, "&tab=all") as page:
        page.keyboard.press("End")
        assert selected(page) == everything[-1]
        page.wait_for_selector(f".item[data-id='{everything[-1]}'] .effect")
        page.evaluate(
            "document.getElementById('list').scrollTop = document.getElementById('list').scrollHeight / 2"
        )
        page.wait_for_selector(".item[data-place='5000']:not(.loading)")
        assert page.locator(".item").count() < 60
        places = page.eval_on_selector_all(
            ".item", "items => items.map(item => Number(item.dataset.place))"
        )
        assert places == sorted(places) and {4999, 5000, 9999} <= set(places)
        assert page.evaluate("document.activeElement.dataset.id") == str(everything[-1])
        page.keyboard.press("Home")
        assert selected(page) == everything[0]
        page.keyboard.press("PageDown")
        assert page.evaluate("Number(document.activeElement.dataset.place)") > 4


def test_pictures_are_a_grid_and_why_shows_others(browser, tmp_path):
    project = make_project(tmp_path / "p", "images", 80)
    with serve_in_thread(project) as server, visit(browser, server) as page:
        until(
            page,
            "[...document.querySelectorAll('#list img')].every((image) => image.complete && image.naturalWidth)",
        )
        before = selected(page)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("Number(document.activeElement.dataset.place)") > 3
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "why-title"
        page.wait_for_selector("#why-body .others img")
        assert all(page.eval_on_selector_all("img", "images => images.map((image) => image.alt)"))
        page.locator(".others button").first.click()
        assert selected(page) != before
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        assert page.is_hidden("#why") and page.evaluate(
            "document.activeElement.className"
        ).startswith("item")


def test_a_judgement_from_the_page(browser, project):
    script = project.folder / "judge.py"
    script.write_text(
        "import json, pathlib, sys, time\nfolder = pathlib.Path(sys.argv[1])\nassert sys.argv[2:] == ['--seeds', '4']\n"
        "(folder / 'judging.json').write_text(json.dumps({'done': 2, 'of': 8, 'stage': 'after'}))\n"
        "while not (folder / 'go').exists(): time.sleep(0.02)\n"
        f"(folder / 'verdicts').mkdir()\n(folder / 'verdicts' / '1.json').write_text({json.dumps(make_verdict(seeds=4))!r})\n"
    )
    with (
        serve_in_thread(
            project, judge_command=[sys.executable, str(script), str(project.folder)]
        ) as server,
        visit(browser, server) as page,
    ):
        page.keyboard.press("v")
        until(page, "document.getElementById('verdicts').textContent.includes('no verdict yet')")
        page.click("#judge-start")
        until(
            page, "document.getElementById('judge-state').textContent.includes('nothing to judge')"
        )
        page.keyboard.press("Escape")
        page.keyboard.press("x")
        saved(page)
        page.keyboard.press("v")
        page.fill("#seeds", "4")
        page.click("#judge-start")
        until(
            page, "document.getElementById('judge-progress').textContent.includes('2 of 8, after')"
        )
        page.click("#judge-cancel")
        until(page, "document.getElementById('judge-state').textContent.includes('Cancelled')")
        page.click("#judge-start")
        page.wait_for_selector("#judge-cancel:visible")
        (project.folder / "go").touch()
        page.wait_for_selector(".sentence")
        assert "lowers the test error" in page.text_content(".sentence")
        assert (
            page.locator("figure circle").count() == 3 * 4 + 2
            and page.locator("#verdicts table").count() == 3
        )


def test_narrow_and_magnified_screens_need_no_sideways_scrolling(browser, project):
    with serve_in_thread(project) as server, visit(browser, server) as page:
        for width, height in ((360, 740), (320, 256)):  # a telephone; 1280 x 1024 at 400 %
            page.set_viewport_size({"width": width, "height": height})
            until(page, "document.querySelector('#items.narrow .item:not(.loading)')")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.evaluate(
                "document.getElementById('list').scrollWidth <= document.getElementById('list').clientWidth"
            )
        page.click("[data-do=why]")
        page.wait_for_selector("#why-body .reasons")
        page.click("#close-why")
        page.click("[data-do=keep]")
        saved(page)
        assert len(on_disk(project)) == 1


@pytest.mark.skipif(
    not AXE.exists(), reason="axe-core is not here: make browser fetches it where npm is"
)
@pytest.mark.parametrize("kind", ["table", "images", "text"])
def test_axe_finds_nothing_serious(browser, tmp_path, kind):
    project = make_project(tmp_path / "p", kind, 40)
    (project.folder / "verdicts").mkdir()
    (project.folder / "verdicts" / "1.json").write_text(json.dumps(make_verdict()))
    axe = AXE.read_text()

    def check(page, where):
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        serious = [entry for entry in found if entry["impact"] in ("serious", "critical")]
        assert not serious, (
            where,
            [
                (entry["id"], [node["html"][:120] for node in entry["nodes"][:3]])
                for entry in serious
            ],
        )

    with serve_in_thread(project) as server:
        for scheme, width, keys in (
            ("light", 1300, "rv?b" if kind == "table" else ""),
            ("dark", 1300, "v"),
            ("light", 340, "w"),
        ):
            with visit(browser, server, color_scheme=scheme, reduced_motion="reduce") as page:
                page.set_viewport_size({"width": width, "height": 800})
                page.keyboard.press("x")
                saved(page)
                check(page, f"{scheme} {width}")
                for key in keys:
                    page.keyboard.press(key)
                    page.wait_for_timeout(250)
                    check(page, f"{scheme} {width} {key}")
                    page.keyboard.press("Escape")
