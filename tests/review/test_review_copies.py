"""The list of copies: in the API, and in a real browser."""

import pandas as pd
import pytest

from dross.cleaning.duplicates import FILE, Copies, join_content
from dross.cleaning.project import Project
from tests.review.browser_page import (
    decisions_on_disk,
    selected_id,
    visit,
    wait_for_text,
    wait_until,
    wait_until_saved,
)
from tests.review.review_client import client_of, serve_in_thread
from tests.review.review_project import HOSTILE, make_project


def add_copies(project: Project) -> Project:
    """12 is also in the test part; 7 and 3 are nearly the same, and have different labels."""
    rows = [(0, "train", 12), (0, "test", 4), (1, "train", 7), (1, "train", 3)]
    names, labels = project.table["source"], project.table["label"]
    table = pd.DataFrame(rows, columns=["group", "part", "id"]).assign(
        source=[names[12], "row 6", names[7], names[3]],
        label=[labels[12], labels[12], "one", "other"],
        same=[0, 0, 1, 2],
        exact=[True, True, False, False],
        distance=[0.0, 0.0, 0.07, 0.07],
    )
    content = project.content.loc[[12, 12, 7, 3]]
    join_content(Copies(table, content)).to_parquet(project.folder / FILE)
    return Project.open(project.folder)


def test_the_list_has_the_training_instances_group_by_group(fresh):
    with client_of(add_copies(fresh)) as client:
        ask = lambda **query: client.get("/api/list", params={"tab": "copies"} | query).json()[
            "ids"
        ]
        assert ask() == [12, 7, 3]
        assert ask(q=fresh.table.at[7, "source"]) == [7]
        items = client.get("/api/items", params={"ids": "12,7,0"}).json()["items"]
        assert [item["copy"] for item in items] == [
            {"group": 0, "leaks": True, "words": "the same as row 6 in the test set"},
            {"group": 1, "leaks": False, "words": "nearly the same as row 5"},
            None,
        ]


def test_why_says_what_is_wrong_and_what_to_do(fresh):
    with client_of(add_copies(fresh)) as client:
        ask = lambda id: client.get("/api/why", params={"id": id}).json()
        leaked, repeated = ask(12), ask(7)
    assert leaked["sentences"][0] == {
        "about": "Duplicates",
        "text": "The same, in the training set and the test set: this makes results too "
        "optimistic. Keep it in one of them only.",
    }
    assert "in the training set 2 times" in repeated["sentences"][0]["text"]
    assert (
        "The labels differ (one, other), so at least one is wrong."
        in repeated["sentences"][0]["text"]
    )
    (copy,) = leaked["copies"]
    assert (copy["part"], copy["id"], copy["how"]) == ("test", 4, "test set, the same")
    assert copy["brief"] == "Every cell is the same."
    assert repeated["copies"][0]["brief"].startswith(f"age {fresh.content.at[3, 'age']}, ")


def test_without_copies_there_is_no_such_list_and_why_does_not_speak_of_them(page):
    assert 'data-tab="copies"' not in page.get("/").text
    why = page.get("/api/why", params={"id": 0}).json()
    assert why["copies"] == []
    assert "Duplicates" not in [entry["about"] for entry in why["sentences"]]
    assert page.get("/api/list", params={"tab": "copies"}).json()["ids"] == []


@pytest.mark.parametrize("kind", ["table", "images", "text"])
def test_a_copy_is_removed_with_one_key(browser, tmp_path, kind):
    project = add_copies(make_project(tmp_path / "p", kind, 30))
    with serve_in_thread(project) as server, visit(browser, server) as page:
        page.click("[data-tab=copies]")
        wait_until(page, "document.querySelectorAll('.item').length === 3")
        assert "too optimistic" in page.text_content("#meaning") and selected_id(page) == 12
        wait_until(page, "document.querySelectorAll('.item .copy').length === 3")
        assert page.locator(".item .copy.leaks").count() == 1
        wait_for_text(page, "why-body", "Duplicates and near duplicates")
        page.keyboard.press("x")
        wait_until_saved(page)
        assert selected_id(page) == 7
        wait_for_text(page, "why-body", "in the training set 2 times")
        page.click("#why-body .others button.small >> nth=0")
        wait_until(page, "document.activeElement.dataset.id === '3'")
    assert decisions_on_disk(project) == {12: ("remove", None)}


def test_hostile_copies_run_nothing(browser, tmp_path):
    project = add_copies(make_project(tmp_path / "p", "table", 30, hostile=True))
    with serve_in_thread(project) as server, visit(browser, server, "&tab=copies") as page:
        wait_until(page, "document.querySelectorAll('.item .copy').length === 3")
        wait_for_text(page, "why-body", "Duplicates and near duplicates")
        assert page.evaluate("window.broken") is None
        assert any(text in page.text_content("#why-body") for text in HOSTILE)
