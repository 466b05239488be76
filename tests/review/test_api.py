"""Decisions through the API: on disk when acknowledged, shared, counted once, and checked."""

import threading

import pytest

from dross.cleanse.decisions import Decisions
from dross.review.server import serve_in_thread
from review.review_client import client_of, connect, decide
from review.review_project import make_project


def rows(answer):
    return {tuple(row) for row in answer["decisions"]}


def test_a_decision_is_on_disk_when_it_is_acknowledged_and_undo_survives_a_restart(fresh):
    with client_of(fresh) as client:
        answer = decide(client, ["remove", None, [5]], ["relabel", ">50K", [6]], who="ana").json()
        assert answer["progress"]["remove"] == answer["progress"]["relabel"] == 1
        assert answer["undoable"] and not answer["redoable"]
        on_disk = Decisions(fresh.folder / "decisions.sqlite").current()
        assert on_disk == {5: ("remove", None), 6: ("relabel", ">50K")}
    with client_of(fresh) as client:
        undone = client.post("/api/undo", json={"revision": answer["revision"]}).json()
        assert undone["event"]["count"] == 2
        assert rows(undone) == {(5, "undecided", None), (6, "undecided", None)}
        again = client.post("/api/redo", json={"revision": undone["revision"]}).json()
        assert {entry[0] for entry in again["decisions"]} == {5, 6} and not again["redoable"]
        assert client.post("/api/redo", json={"revision": 0}).json()["event"] is None


def test_an_answer_also_tells_what_others_did_meanwhile(fresh):
    with serve_in_thread(fresh) as server, connect(server) as ana, connect(server) as ben:
        known = ana.get("/api/project").json()["revision"]
        decide(ben, ["keep", None, [9]], revision=known)
        answer = decide(ana, ["remove", None, [5]], revision=known).json()
        assert rows(answer) == {(9, "keep", None), (5, "remove", None)}
        since = ben.get("/api/since", params={"revision": known}).json()
        assert since["revision"] == answer["revision"]


def test_a_request_that_is_sent_again_counts_once(fresh):
    with client_of(fresh) as client:
        first = decide(client, ["keep", None, [1]], once="a").json()["revision"]
        assert decide(client, ["keep", None, [1]], once="a").json()["revision"] == first


def test_many_people_at_once_lose_nothing(fresh):
    with serve_in_thread(fresh) as server:

        def work(first):
            with connect(server) as client:
                for id in range(first, 60, 4):
                    answer = decide(client, ["remove", None, [id]], who=str(first))
                    assert answer.status_code == 200

        people = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for person in people:
            person.start()
        for person in people:
            person.join()
    assert fresh.decisions.current().keys() == set(range(60))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"changes": 3},
        {"changes": [["remove", None]]},
        {"changes": [["remove", None, [60]]]},
        {"changes": [["explode", None, [1]]]},
        {"changes": [["relabel", "no such class", [1]]]},
        {"changes": [["remove", None, []]]},
    ],
)
def test_nonsense_is_refused_with_a_sentence(fresh, body):
    with client_of(fresh) as client:
        answer = client.post("/api/decide", json={"revision": 0} | body)
        assert answer.status_code == 400 and answer.json()["error"].endswith(".")
        assert client.post("/api/decide", content=b"{").status_code == 400
    assert fresh.decisions.revision == 0


def test_a_regression_takes_numbers_as_labels(tmp_path):
    with client_of(make_project(tmp_path / "r", "table", 40, task="regression")) as client:
        for label, status in (("3.5", 200), ("much", 400), ("nan", 400), ("1_000", 400)):
            assert decide(client, ["relabel", label, [1]]).status_code == status


def test_a_bulk_decision_can_be_looked_at_first(fresh):
    with client_of(fresh) as client:
        decide(client, ["keep", None, [0, 1]])
        labels = fresh.instances["label"]
        ids = [id for id in labels.index if labels[id] == ">50K" or id < 2]
        seen = client.post("/api/preview", json={"changes": [["remove", None, ids]]}).json()
        assert seen["count"] == len(ids) and seen["changed"] == 2
        assert "Class >50K" in " ".join(seen["warnings"])
        assert len(fresh.decisions.current()) == 2


def test_a_damaged_verdict_does_not_break_the_page(fresh):
    (fresh.folder / "verdicts").mkdir()
    (fresh.folder / "verdicts" / "1.json").write_text("{")
    with client_of(fresh) as client:
        answer = client.get("/api/verdicts")
        assert answer.status_code == 500 and "not readable JSON" in answer.json()["error"]
        assert client.get("/api/project").status_code == 200
