"""Chats on the page: tokens coloured by effect, near duplicates together, a filter by source."""

import pytest

from dross.cleaning.project import Project
from dross.errors import InvalidInput
from dross.review.listing import Filter, Listing
from dross.review.sentences import explain_instance
from tests.review.browser_page import visit, wait_for_text, wait_until
from tests.review.conftest import browser  # noqa: F401
from tests.review.review_client import client_of, serve_in_thread


@pytest.fixture(scope="module")
def project(made):
    return Project.open(made[0])


def test_the_api_sends_tokens_with_their_effects_and_filters_by_source(project):
    with client_of(project) as page:
        about = page.get("/api/project").json()
        assert about["layout"] == "chats" and about["origins"] == ["a", "b", "c"]
        assert about["token_scale"] > 0 and about["unit"] == "\u00a0points"
        ids = page.get("/api/list?tab=all&origin=b").json()["ids"]
        assert set(project.table.loc[ids, "origin"]) == {"b"} and len(ids) < 36
        (item,) = page.get(f"/api/items?ids={ids[0]}").json()["items"]
        assert sum(effect is not None for _, effect in item["tokens"]) == 6
        why = page.get(f"/api/why?id={ids[0]}").json()
        total = sum(effect or 0 for _, effect in why["content"]["tokens"])
        assert total == pytest.approx(100 * project.table.loc[ids[0], "score"], rel=0.02)
        assert [entry["about"] for entry in why["sentences"]][-1] == "Loss"
        assert page.get("/api/list?tab=all&origin=nobody").json()["ids"] == []


def test_a_chat_is_kept_or_removed_and_has_no_class(project):
    listing = Listing(project)
    assert listing.ids(Filter(tab="mislabeled"), {}) == []
    with pytest.raises(InvalidInput, match="no training instance 99"):
        explain_instance(listing, 99)


def test_tokens_are_coloured_with_a_legend_and_a_tooltip(browser, project):  # noqa: F811
    with serve_in_thread(project) as server, visit(browser, server, "&tab=all") as page:
        page.wait_for_selector(".item[aria-selected=true] .token")
        wait_for_text(page, "why-body", "Text, token by token")  # with the legend
        spans = page.locator(".item[aria-selected=true] .token")
        assert spans.count() == 6
        kinds = set(page.eval_on_selector_all(".token", "all => all.map(e => e.className)"))
        assert any("harms-" in kind for kind in kinds) and any("helps-" in kind for kind in kinds)
        colour = "e => getComputedStyle(e).backgroundColor"
        worse = page.eval_on_selector(".harms-4", colour)
        better = page.eval_on_selector(".helps-4", colour)
        assert worse != better and "rgba(0, 0, 0, 0)" not in (worse, better)
        title = page.locator(".harms-4").first.get_attribute("title")
        assert title.startswith("\u2212") and "points" in title and "harms" in title
        assert page.is_visible("#why .token-legend") and "<user>" in page.text_content("#why-body")
        assert (
            page.is_hidden("[data-do=relabel]")
            and page.locator("[data-tab=mislabeled]").count() == 0
        )
        page.select_option("select[name=origin]", "c")
        wait_until(page, "location.search.includes('origin=c')")
        count = int((project.table["origin"] == "c").sum())
        wait_for_text(page, "found", f"{count} instances")
        page.keyboard.press("Escape")
