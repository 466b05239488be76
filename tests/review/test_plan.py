"""The recommended plan on the page: said first, listed, and accepted in one step."""

import json

import pytest

from dross.cleanse.decisions import Decisions
from dross.cleanse.project import Project
from review.review_client import client_of, decide
from review.review_project import make_project


@pytest.fixture
def planned(tmp_path):
    """A project whose plan relabels some instances and removes others."""
    return make_project(tmp_path / "planned", "table", 60, planned=True)


def recommended(project):
    plan = project.recommended
    removed = {int(id): ("remove", None) for id in plan.removed}
    return removed | {id: ("relabel", label) for id, label in plan.relabelled.items()}


def test_the_page_is_told_what_why_how_sure_and_what_others_would_have_given(planned):
    with client_of(planned) as client:
        plan = client.get("/api/project").json()["plan"]
        assert plan["what"] == "Recommended: relabel 5 and remove 5 that are probably mislabelled."
        assert plan["why"].startswith("Of 45 plans it did best: 1.13 % fewer mistakes (standard")
        assert "agree poorly" in plan["disagreement"] and plan["count"] == 10
        assert [other["recommended"] for other in plan["others"]] == [True, False]
        assert plan["others"][0]["change"] == -0.0113
        assert plan["kinds"] == ["a linear model", "trees"]
        assert [other["by_kind"] for other in plan["others"]] == [[-0.0123, 0.0321], [0.0, 0.0044]]
        picture = client.get(plan["picture"])
        assert picture.headers["content-type"] == "image/svg+xml"
        assert picture.text.startswith("<svg") and "harmful" in picture.text
        assert "confused" not in picture.text  # of that kind nothing was tried
        assert client.get(plan["picture"], headers={"X-Dross-Token": "x"}).status_code == 401


def test_taking_it_over_is_one_step_on_disk_that_is_undone_as_one(planned):
    with client_of(planned) as client:
        answer = client.post("/api/plan", json={"revision": 0, "who": "ana"}).json()
        assert answer["taken"] == 10 and answer["revision"] == 1
        assert answer["progress"]["suggested_followed"] == 10
        on_disk = Decisions(planned.folder / "decisions.sqlite")
        assert on_disk.current() == recommended(planned)
        assert on_disk.history()[0]["why"] == "the recommended plan"
        undone = client.post("/api/undo", json={"revision": 1}).json()
        assert undone["event"]["count"] == 10 and on_disk.current() == {}


def test_what_a_person_decided_stays_and_a_request_sent_again_counts_once(planned):
    first, *_, last = sorted(recommended(planned))
    with client_of(planned) as client:
        decide(client, ["keep", None, [first]], ["remove", None, [last]])
        for _ in range(2):
            answer = client.post("/api/plan", json={"revision": 1, "once": "a"}).json()
            assert answer["taken"] == 8 and answer["revision"] == 2
        assert planned.decisions.current()[first] == ("keep", None)
        again = client.post("/api/plan", json={"revision": 2}).json()
        assert again["taken"] == 0 and again["revision"] == 2  # nothing to say, nothing written
        assert again["progress"]["suggested_decided"] == 10


def test_a_recommendation_to_change_nothing_is_said_and_cannot_be_taken_over(planned):
    about = json.loads((planned.folder / "project.json").read_text())
    about["suggested"] = {"m": 0, "what": "", "reason": "none of 45 plans lowered the error"}
    about["plans"]["recommended"] = None
    (planned.folder / "project.json").write_text(json.dumps(about))
    table = planned.instances.assign(action="keep")
    table.to_parquet(planned.folder / "instances.parquet")
    with client_of(Project.open(planned.folder)) as client:
        plan = client.get("/api/project").json()["plan"]
        assert plan["what"] == "Recommended: change nothing." and plan["count"] == 0
        assert plan["why"] == "None of 45 plans lowered the error."
        refused = client.post("/api/plan", json={"revision": 0})
        assert refused.status_code == 400 and "no plan to accept" in refused.json()["error"]
        assert client.get("/api/list", params={"tab": "plan"}).json()["ids"] == []
    assert Project.open(planned.folder).decisions.revision == 0


def test_a_project_of_an_earlier_version_has_its_removals_as_the_plan(fresh):
    with client_of(fresh) as client:
        plan = client.get("/api/project").json()["plan"]
        assert plan["what"] == "Recommended: remove the 4 most harmful."
        assert plan["picture"] is None and plan["others"] == [] and plan["disagreement"] is None
        assert plan["kinds"] == []
        assert client.get("/picture/plans").status_code == 404
        assert client.post("/api/plan", json={"revision": 0}).json()["taken"] == 4
    assert {action for action, _ in fresh.decisions.current().values()} == {"remove"}


def test_a_plan_that_relabels_as_no_class_is_refused_whole(planned):
    table = planned.instances
    table.loc[table["action"] == "relabel", "prediction"] = "no such class"
    table.to_parquet(planned.folder / "instances.parquet")
    with client_of(Project.open(planned.folder)) as client:
        refused = client.post("/api/plan", json={"revision": 0})
        assert refused.status_code == 400 and "not a class" in refused.json()["error"]
        assert client.get("/api/project").json()["decisions"] == []


def test_the_list_of_the_plan_begins_with_the_least_sure(planned):
    rows = planned.instances
    with client_of(planned) as client:
        ids = client.get("/api/list", params={"tab": "plan"}).json()["ids"]
        assert set(ids) == recommended(planned).keys()
        sure = rows.loc[ids, "confidence"].tolist()
        assert sure == sorted(sure) and sure[0] < sure[-1]
        item = client.get("/api/items", params={"ids": str(ids[0])}).json()["items"][0]
        assert item["action"] == rows.at[ids[0], "action"] and item["confidence"] == sure[0]
        assert item["effect"] == pytest.approx(100 * rows.at[ids[0], "score"])  # in percent
        bounds = {"tab": "all", "min": "-0.01", "max": "0"}
        found = client.get("/api/list", params=bounds).json()["ids"]
        assert set(found) == set(rows.index[rows["score"].between(-1e-4, 0)])
