"""The list of labels to check first: what the server answers."""

import pandas
import pytest

from dross.cleaning.decisions import Decisions
from dross.cleaning.project import Project
from tests.cleaning.made_inputs import change_json
from tests.review.review_client import client_of, decide
from tests.review.review_project import add_checks, make_labels, make_project


@pytest.fixture
def asking(fresh):
    return add_checks(fresh)


def listed(client, **query):
    return client.get("/api/list", params={"tab": "validation"} | query).json()["ids"]


def test_the_list_is_in_the_order_of_what_decides_most(asking):
    with client_of(asking) as client:
        ids = listed(client)
        assert ids == [60, 61, 62, 63, 64]  # after the 60 training instances
        items = client.get("/api/items", params={"ids": "60,61,3"}).json()["items"]
        assert [item.get("part", "train") for item in items] == ["validation"] * 2 + ["train"]
        assert items[0]["source"] == "row 60" and items[0]["label"] != items[0]["prediction"]
        assert len(items[0]["cells"]) == len(items[2]["cells"])
        assert listed(client, min="70") == [60, 61, 62] and listed(client, q="row 62") == [62]
        assert listed(client, prediction="agrees") == []
        assert all(id < 60 for id in client.get("/api/list?tab=all").json()["ids"])
        why = client.get("/api/why", params={"id": 61}).json()
        said = {entry["about"]: entry["text"] for entry in why["sentences"]}
        assert "models that were not trained on it predict" in said["Label"]
        assert "wrong with probability 86" in said["Label"]
        assert "dross clean command again" in said["What to do"]
        assert "hurts" not in why and why["content"]["fields"]


def test_decisions_about_both_parts_are_apart_and_undone_in_order(asking):
    log = Decisions(asking.folder / "decisions.sqlite")
    with client_of(asking) as client:
        decide(client, ["remove", None, [2]])
        name = asking.label_table.loc[2, "prediction"]
        answer = decide(client, ["relabel", name, [62]]).json()
        assert answer["decisions"] == [[2, "remove", None], [62, "relabel", name]]
        progress = answer["progress"]
        assert progress["checked"] == 1 and progress["remove"] == 1
        assert (progress["to_check"], progress["to_check_decided"]) == (5, 1)
        assert log.current() == {2: ("remove", None)}
        assert log.current("validation") == {2: ("relabel", name)}
        assert listed(client, state="relabel") == [62] == listed(client, state="decided")
        answer = decide(client, ["remove", None, [70]]).json()  # nobody asked for it
        assert answer["progress"]["checked"] == 2 and answer["progress"]["to_check_decided"] == 1
        assert listed(client)[-1] == 70
        told = client.get("/api/project").json()
        assert [70, "remove", None] in told["decisions"] and told["trusted"] is False
        undone = client.post("/api/undo", json={"revision": 0}).json()["event"]
        assert undone["first"] == 70 and undone["source"] == "row 70"
        client.post("/api/undo", json={"revision": 0})
        assert log.current("validation") == {} and log.current() == {2: ("remove", None)}
    log.close()


def test_what_is_not_there_is_refused_and_changes_nothing(asking):
    with client_of(asking) as client:
        for changes in (
            ["keep", None, [72]],
            ["relabel", "no class", [60]],
            ["keep", None, [3, 60]],
        ):
            answer = decide(client, changes)
            assert answer.status_code == 400 and answer.json()["error"]
        missing = decide(client, ["keep", None, [72]]).json()["error"]
        assert missing == "There is no instance 72: ids run from 0 to 71."  # of both parts
        preview = client.post("/api/preview", json={"changes": [["remove", None, [60, 61]]]})
        assert preview.json() == {"count": 2, "changed": 0, "warnings": []}
        assert client.get("/api/why", params={"id": 72}).status_code == 400
    assert asking.decisions.revision == 0


def test_what_was_left_out_says_that_nothing_was_predicted(asking):
    path = asking.folder / "labels.parquet"
    table = pandas.read_parquet(path)
    table.loc[7, ["prediction", "checked"]] = ["", "wrong"]
    table.loc[7, ["wrong", "probability", "label_probability"]] = float("nan")
    table.to_parquet(path)
    with client_of(Project.open(asking.folder)) as client:
        assert listed(client)[-1] == 67 and 67 not in listed(client, prediction="differs")
        why = client.get("/api/why", params={"id": 67}).json()
        said = {entry["about"]: entry["text"] for entry in why["sentences"]}
        assert said["Label"].endswith("so there is no prediction for it.")
        assert "nan" not in str(said) and "Checked by a person" in said["Checked"]


def test_a_project_without_labels_to_check_has_no_list_of_them(fresh):
    with client_of(fresh) as client:
        page = client.get("/").text
        assert listed(client) == [] and 'data-tab="validation"' not in page
        assert '<meta name="dross-tab" content="harmful">' in page


def test_the_page_begins_with_the_labels_and_names_the_command_to_run_again(asking):
    with client_of(asking) as client:
        assert '<meta name="dross-tab" content="validation">' in client.get("/").text
        plan = client.get("/api/project").json()["plan"]
        assert plan["command"].startswith("dross clean people.csv --label income --out ")
        assert plan["checked"] == ""


def test_data_from_python_have_no_command_to_run_again(asking):
    change_json(
        asking.folder / "project.json",
        lambda content: content["request"].update(memory={"x": "array"}),
    )
    with client_of(Project.open(asking.folder)) as client:
        assert client.get("/api/project").json()["plan"]["command"] is None


def test_the_page_says_what_the_checks_changed(asking):
    said = {"to_check": 0, "checked": 3, "wrong": 2, "before": "relabel 4"}
    change_json(
        asking.folder / "project.json",
        lambda content: content["training"]["checked_labels"].update(said),
    )
    with client_of(Project.open(asking.folder)) as client:
        assert client.get("/api/project").json()["plan"]["checked"] == (
            "You checked 3 labels: 2 were wrong. Recommended before the check: relabel 4; now: "
            "change nothing."
        )


def test_labels_of_the_training_part_are_checked_where_there_is_no_validation_file(tmp_path):
    project = make_project(tmp_path / "p", "table", 40)
    train = project.content.assign(
        **{" source": project.table["source"], " label": project.table["label"]}
    )
    make_labels(train, project.classes, 2).to_parquet(project.folder / "labels.parquet")
    change_json(
        project.folder / "project.json",
        lambda content: content["counts"].update(validation=0, test=0),
    )
    with client_of(Project.open(project.folder)) as client:
        assert listed(client) == [40, 41]
        item = client.get("/api/items", params={"ids": "41"}).json()["items"][0]
        assert item["source"] == "row 3" and item["place"] == 1
        assert item["image_part"] == "train"
        decide(client, ["remove", None, [41]])
    log = Project.open(project.folder).decisions
    assert log.current() == {} and log.current("validation") == {1: ("remove", None)}


def test_validation_decisions_alone_are_nothing_to_judge(asking):
    with client_of(asking) as client:
        decide(client, ["remove", None, [60]])
        answer = client.post("/api/judge", json={"seeds": 4})
        assert answer.status_code == 400 and "nothing to judge" in answer.json()["error"]


@pytest.mark.parametrize("kind", ["images", "text"])
def test_every_kind_of_instance_is_listed(tmp_path, kind):
    project = add_checks(make_project(tmp_path / "p", kind, 40))
    with client_of(project) as client:
        why = client.get("/api/why", params={"id": 40}).json()
        assert why["place"] == 0 and why["part"] == "validation"
        if kind == "images":
            assert client.get("/image/validation/0").headers["content-type"] == "image/png"
        else:
            assert why["content"]["text"] == project.validation.loc[0, "text"]
