"""The list of validation labels to check first: what the server answers."""

import pandas
import pytest

from dross.cleanse.decisions import Decisions
from dross.cleanse.project import Project
from review.doubtful_project import add_doubts
from review.review_client import client_of, decide
from review.review_project import make_project


@pytest.fixture
def doubtful(fresh):
    return add_doubts(fresh)


def listed(client, **query):
    return client.get("/api/list", params={"tab": "validation"} | query).json()["ids"]


def test_the_list_is_in_the_order_of_what_hangs_on_a_label(doubtful):
    with client_of(doubtful) as client:
        ids = listed(client)
        assert ids == [60, 61, 62, 63, 64]  # after the 60 training instances
        items = client.get("/api/items", params={"ids": "60,61,3"}).json()["items"]
        assert [item.get("part", "train") for item in items] == ["validation"] * 2 + ["train"]
        assert items[0]["source"] == "row 60" and items[0]["label"] != items[0]["prediction"]
        assert len(items[0]["cells"]) == len(items[2]["cells"])
        assert listed(client, min="0.01") == [60, 62, 64] and listed(client, q="row 62") == [62]
        assert listed(client, prediction="agrees") == []
        assert all(id < 60 for id in client.get("/api/list?tab=all").json()["ids"])
        why = client.get("/api/why", params={"id": 61}).json()
        said = {entry["about"]: entry["text"] for entry in why["sentences"]}
        assert "have not learnt it, say" in said["Label"] and "speaks for the" in said["Weight"]
        assert "wrong is 96" in said["Label"] and "hurts" not in why and why["content"]["fields"]


def test_decisions_about_both_parts_are_apart_and_undone_in_order(doubtful):
    log = Decisions(doubtful.folder / "decisions.sqlite")
    with client_of(doubtful) as client:
        decide(client, ["remove", None, [2]])
        name = doubtful.validation_labels.loc[2, "prediction"]
        answer = decide(client, ["relabel", name, [62]]).json()
        assert answer["decisions"] == [[2, "remove", None], [62, "relabel", name]]
        assert answer["progress"]["checked"] == 1 and answer["progress"]["remove"] == 1
        assert log.current() == {2: ("remove", None)}
        assert log.current("validation") == {2: ("relabel", name)}
        assert listed(client, state="relabel") == [62] == listed(client, state="decided")
        decide(client, ["remove", None, [70]])  # not doubted; a script may have said it
        assert listed(client)[-1] == 70
        told = client.get("/api/project").json()
        assert [70, "remove", None] in told["decisions"] and told["trusted"] is False
        undone = client.post("/api/undo", json={"revision": 0}).json()["event"]
        assert undone["first"] == 70 and undone["source"] == "row 70"
        client.post("/api/undo", json={"revision": 0})
        assert log.current("validation") == {} and log.current() == {2: ("remove", None)}
    log.close()


def test_what_is_not_there_is_refused_and_changes_nothing(doubtful):
    with client_of(doubtful) as client:
        for changes in (
            ["keep", None, [72]],
            ["relabel", "no class", [60]],
            ["keep", None, [3, 60]],
        ):
            answer = decide(client, changes)
            assert answer.status_code == 400 and answer.json()["error"]
        missing = decide(client, ["keep", None, [72]]).json()["error"]
        assert missing == "There is no instance 72; there are 72."  # of both parts
        preview = client.post("/api/preview", json={"changes": [["remove", None, [60, 61]]]})
        assert preview.json() == {"count": 2, "changed": 0, "warnings": []}
        assert client.get("/api/why", params={"id": 72}).status_code == 400
    assert doubtful.decisions.revision == 0


def test_what_was_left_out_says_that_no_model_was_asked(doubtful):
    path = doubtful.folder / "doubts.parquet"
    table = pandas.read_parquet(path)
    table.loc[7, ["prediction", "checked"]] = ["", "wrong"]
    table.loc[7, ["wrong", "probability", "label_probability", "change"]] = float("nan")
    table.to_parquet(path)
    with client_of(Project.open(doubtful.folder)) as client:
        assert listed(client)[-1] == 67 and 67 not in listed(client, prediction="differs")
        why = client.get("/api/why", params={"id": 67}).json()
        said = {entry["about"]: entry["text"] for entry in why["sentences"]}
        assert said["Label"].endswith("so no model was asked about it.")
        assert "nan" not in str(said) and "a person had said" in said["Checked"]


def test_a_project_without_the_list_is_as_before(fresh):
    with client_of(fresh) as client:
        assert listed(client) == [] and 'data-tab="validation"' not in client.get("/").text
        assert decide(client, ["keep", None, [60]]).status_code == 400


def test_validation_decisions_alone_are_nothing_to_judge(doubtful):
    with client_of(doubtful) as client:
        decide(client, ["remove", None, [60]])
        answer = client.post("/api/judge", json={"seeds": 4})
        assert answer.status_code == 400 and "nothing to judge" in answer.json()["error"]


@pytest.mark.parametrize("kind", ["images", "text"])
def test_every_kind_of_instance_is_listed(tmp_path, kind):
    project = add_doubts(make_project(tmp_path / "p", kind, 40))
    with client_of(project) as client:
        why = client.get("/api/why", params={"id": 40}).json()
        assert why["place"] == 0 and why["part"] == "validation"
        if kind == "images":
            assert client.get("/picture/validation/0").headers["content-type"] == "image/png"
        else:
            assert why["content"]["text"] == project.validation.loc[0, "text"]
