"""Which instances a list shows, in which order, and how each looks."""

import pandas as pd

from dross.cleaning.project import Project
from tests.review.review_client import client_of, decide
from tests.review.review_project import make_project


def test_the_tabs_are_in_the_order_of_their_ranks(page, shared_project):
    rows = shared_project.table
    harm, mislabel = rows["harm_rank"].sort_values(), rows["mislabel_rank"].sort_values()
    harmful, mislabeled, everything = (
        page.get("/api/list", params={"tab": tab}).json()["ids"]
        for tab in ("harmful", "mislabeled", "all")
    )
    assert harmful == [id for id in harm.index if rows.at[id, "score"] < 0]
    assert mislabeled == list(mislabel[mislabel >= 0].index)
    assert everything == list(harm.index)


def test_every_filter_keeps_what_it_says(page, shared_project):
    rows, content = shared_project.table, shared_project.content
    ask = lambda **filter: set(page.get("/api/list", params={"tab": "all"} | filter).json()["ids"])
    assert ask(**{"class": ">50K"}) == set(rows.index[rows["label"] == ">50K"])
    assert ask(prediction="differs") == set(rows.index[rows["label"] != rows["prediction"]])
    agrees = (rows["label"] == rows["prediction"]) & rows["score"].between(-1e-4, 0)
    assert ask(prediction="agrees", min="-0.01", max="0") == set(rows.index[agrees])
    assert ask(q="masters") == set(content.index[content["education"] == "Masters"])
    assert ask(q="ROW 17") >= {15}
    assert ask(q="nothing has this") == set()
    assert page.get("/api/list", params={"state": "maybe"}).status_code == 400
    assert page.get("/api/list", params={"min": "low"}).status_code == 400


def test_filters_on_decisions_follow_them(fresh):
    with client_of(fresh) as client:
        decide(client, ["remove", None, [1, 2]], ["keep", None, [3]], ["relabel", ">50K", [4]])

        def ask(state):
            answer = client.get("/api/list", params={"tab": "all", "state": state})
            return set(answer.json()["ids"])

        assert (ask("remove"), ask("keep"), ask("relabel")) == ({1, 2}, {3}, {4})
        assert ask("decided") == {1, 2, 3, 4}
        assert ask("undecided") == set(range(60)) - {1, 2, 3, 4}


def test_items_look_like_their_kind(tmp_path, page, shared_project):
    item = page.get("/api/items", params={"ids": "7,3"}).json()["items"][0]
    assert item["id"] == 7 and item["cells"][0] == shared_project.content.at[7, "age"]
    assert item["cells"][5] is None  # every seventh is missing
    for kind, key in (("images", "source"), ("text", "text")):
        with client_of(make_project(tmp_path / kind, kind, 30)) as client:
            assert key in client.get("/api/items", params={"ids": "0"}).json()["items"][0]
            assert client.get("/api/project").json()["layout"] == kind
            assert client.get("/image/train/0").status_code == (200 if kind == "images" else 404)


def test_whole_numbers_and_unusual_cells_of_every_row(tmp_path):
    folder = make_project(tmp_path / "p", "table", 300, task="regression").folder
    content = pd.read_parquet(folder / "content.parquet")
    content["age"] = [float(age) for age in content["age"]]
    content["hours-per-week"] = 40.0
    content.loc[299, "hours-per-week"] = 999.0
    content.astype(object).to_parquet(folder / "content.parquet")
    instances = pd.read_parquet(folder / "instances.parquet").assign(label="50")
    instances.to_parquet(folder / "instances.parquet")
    project = Project.open(folder)
    assert "unusual" not in project._reasons.get("299", {})  # the rule covers all rows
    with client_of(project) as client:
        item = client.get("/api/items", params={"ids": "299"}).json()["items"][0]
        assert item["label"] == "50" and item["cells"][0].isdecimal()
        assert item["unusual"]["hours-per-week"].startswith("unusually high: only 0.3")
        why = client.get("/api/why", params={"id": 299}).json()
        name, cell, unusual, weight = why["content"]["fields"][0]
        assert (name, cell, weight) == ("hours-per-week", "999", None) and "high" in unusual
        assert "Its value is 50;" in " ".join(each["text"] for each in why["sentences"])
