"""The recommended plan on the page: said first, listed, and accepted in one step."""

import pytest

from dross.cleaning.decisions import Decisions
from dross.cleaning.plans import RULES
from dross.cleaning.project import Project
from dross.errors import CorruptFile
from tests.cleaning.made_inputs import change_json
from tests.review.review_client import client_of, decide
from tests.review.review_project import make_project


@pytest.fixture
def planned(tmp_path):
    """A project whose plan relabels some instances and removes others."""
    return make_project(tmp_path / "planned", "table", 60, planned=True)


def recommended(project):
    plan = project.recommended
    removed = {int(id): ("remove", None) for id in plan.removed}
    return removed | {id: ("relabel", label) for id, label in plan.relabeled.items()}


def test_the_page_is_told_what_why_how_sure_and_what_others_would_have_given(planned):
    with client_of(planned) as client:
        plan = client.get("/api/project").json()["plan"]
        assert plan["what"] == "Recommended: relabel 5 and remove 5 of 60 instances."
        assert plan["why"] == (
            "Models improve on held-out instances by more than chance would explain: error 15.0 % "
            "-> 13.9 % (-1.1 points, 95 % confidence interval -1.4 to -0.8); log loss 0.400 -> "
            "0.389 (-0.011, 95 % confidence interval -0.014 to -0.008)."
        )
        assert "agree poorly" in plan["disagreement"] and plan["count"] == 10
        assert [other["recommended"] for other in plan["others"]] == [True, False]
        assert plan["measures"] == ["error", "log loss"]
        assert plan["others"][0]["figures"][0] == {
            "before": "15.0 %",
            "after": "13.9 %",
            "change": "-1.1 points",
            "interval": "-1.4 to -0.8",
        }
        assert plan["others"][1]["rule"] == RULES["wrong-90"].words
        figure = client.get(plan["figure"])
        assert figure.headers["content-type"] == "image/svg+xml"
        assert figure.text.startswith("<svg") and "wrong-90" in figure.text
        assert client.get(plan["figure"], headers={"X-Dross-Token": "x"}).status_code == 401
        assert '<meta name="dross-tab" content="plan">' in client.get("/").text


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
    reason = "No plan improves models by more than chance would explain."
    changes = {"recommended": None, "state": "no gain", "reason": reason}
    path = planned.folder / "project.json"
    change_json(path, lambda content: content["recommendation"].update(changes))
    table = planned.table.assign(action="keep")
    table.to_parquet(planned.folder / "instances.parquet")
    with client_of(Project.open(planned.folder)) as client:
        plan = client.get("/api/project").json()["plan"]
        assert plan["what"] == "Recommended: change nothing." and plan["count"] == 0
        assert plan["why"] == "No plan improves models by more than chance would explain."
        refused = client.post("/api/plan", json={"revision": 0})
        assert refused.status_code == 400 and "no plan to accept" in refused.json()["error"]
        assert client.get("/api/list", params={"tab": "plan"}).json()["ids"] == []
    assert Project.open(planned.folder).decisions.revision == 0


def test_where_no_plan_was_measured_there_is_no_figure(fresh):
    with client_of(fresh) as client:
        plan = client.get("/api/project").json()["plan"]
        assert plan["figure"] is None and plan["others"] == [] and plan["measures"] == []
        assert client.get("/image/plans").status_code == 404


def test_a_plan_that_relabels_as_no_class_is_refused_whole(planned):
    relabel = {"0": "no such class"}
    change_json(
        planned.folder / "project.json",
        lambda content: content["recommendation"]["plans"][0].update(relabeled=relabel),
    )
    with pytest.raises(CorruptFile, match="labels that are not classes"):
        Project.open(planned.folder)


def test_the_list_of_the_plan_begins_with_the_least_sure(planned):
    rows = planned.table
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
