"""Decisions through the API: on disk when acknowledged, shared, counted once, and checked."""

import json
import math
import threading

from dross.cleaning.decisions import Decisions
from dross.cleaning.project import Project
from dross.cleaning.project_files import write_sealed
from tests.cleaning.made_inputs import change_json
from tests.review.review_client import client_of, connect, decide, serve_in_thread
from tests.review.review_project import make_project


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


REMOVE_1 = [["remove", None, [1]]]
NONSENSE = [
    {"changes": 3},
    {"changes": {}},
    {"changes": [["remove", None]]},
    {"changes": [["remove", None, [72]]]},  # 60 instances and 12 labels
    {"changes": [["remove", None, [-1]]]},
    {"changes": [["explode", None, [1]]]},
    {"changes": [["relabel", "no such class", [1]]]},
    {"changes": [["relabel", None, [1]]]},
    {"changes": [["remove", ">50K", [1]]]},
    {"changes": [["remove", None, []]]},
    {"changes": [["remove", None, "12"]]},  # is not 1 and 2
    {"changes": [["remove", None, {"1": 1}]]},
    {"changes": [["remove", None, [True]]]},
    {"changes": [["remove", None, [1.5]]]},
    {"changes": [["remove", None, ["1"]]]},
    {"changes": [["remove", None, [[1]]]]},
    {"changes": [["remove", None, [1]], ["keep", None, [1]]]},
    *({"changes": REMOVE_1, "revision": bad} for bad in ("x", "0", None, -1, 0.5, True, 10**30, 7)),
    *({"changes": REMOVE_1, name: "x" * 201} for name in ("who", "why", "once")),
    {"changes": REMOVE_1, "who": 3},
    {"changes": REMOVE_1, "who": "\ud800"},
    {"changes": REMOVE_1, "whoo": "ana"},
]
BROKEN = [
    b"",
    b"{",
    b"[]",
    b"\xff",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"changes": [["remove", null, [Infinity]]], "revision": 0}',
    b'{"changes": [["remove", null, [1]]], "revision": NaN}',
    b'{"changes": [["remove", null, [1e999]]], "revision": 0}',
    b'{"changes": [["remove", null, [1]]], "revision": ' + b"1" * 5000 + b"}",
    b'{"changes": [["remove", null, [1]]]}',
]


def test_nonsense_is_refused_with_a_sentence_before_anything_is_done(fresh):
    bodies = [json.dumps({"revision": 0} | body).encode() for body in NONSENSE] + BROKEN
    with client_of(fresh) as client:
        for body in bodies:
            answer = client.post("/api/decide", content=body)
            assert answer.status_code == 400, (body[:80], answer.text)
            assert answer.json()["error"].endswith("."), (body[:80], answer.text)
        decide(client, ["remove", None, [5]])
        for path in ("/api/undo", "/api/redo"):
            for bad in ({"revision": "x"}, {}, {"revision": 0, "once": []}):
                assert client.post(path, json=bad).status_code == 400
    assert fresh.decisions.revision == 1


def test_the_parameters_of_an_address_are_checked_too(fresh):
    long = "9" * 5000
    with client_of(fresh) as client:
        for path in (
            *(f"/api/since?revision={bad}" for bad in ("", "x", "-1", "1_0", "%D9%A1", "5", long)),
            *(f"/api/why?id={bad}" for bad in ("", "72", "1.5", long)),
            *("/api/items?ids=1,x", "/api/list?min=x", f"/api/project?who={long}"),
        ):
            answer = client.get(path)
            assert answer.status_code == 400 and answer.json()["error"].endswith("."), path
        for id in (long, "9" * 300, "-1", "1x", "%D9%A1"):
            assert client.get(f"/image/train/{id}").status_code == 400


def test_a_regression_takes_numbers_as_labels(tmp_path):
    with client_of(make_project(tmp_path / "r", "table", 40, task="regression")) as client:
        for label, status in (
            *(("3.5", 200), ("-2e3", 200), ("much", 400), ("nan", 400)),
            *(("1e999", 400), ("1e39", 400), ("1_000", 400), ("\u0661", 400), ("", 400)),
        ):
            assert decide(client, ["relabel", label, [1]]).status_code == status


def test_a_bulk_decision_can_be_looked_at_first(fresh):
    with client_of(fresh) as client:
        decide(client, ["keep", None, [0, 1]])
        labels = fresh.table["label"]
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


def test_data_that_json_cannot_hold_do_not_break_the_page(fresh):
    change_json(fresh.folder / "project.json", lambda content: content.update(name="half \udc80"))
    (fresh.folder / "verdicts").mkdir()
    metric = {"before": [math.nan], "after": [math.inf], "interval": [math.nan, 1.5]}
    verdict = {"metrics": {"error": metric | {"random_difference": math.nan}}}
    write_sealed(fresh.folder / "verdicts" / "1.json", verdict)
    (fresh.folder / "judging.json").write_text('{"done": Infinity, "of": 1}')
    with client_of(Project.open(fresh.folder)) as client:
        assert client.get("/").status_code == 200
        assert client.get("/api/project").json()["name"] == "half \udc80"
        assert client.get("/api/judge").json()["state"] == "idle"
        verdict = client.get("/api/verdicts").json()["verdicts"][0]
        metric = {"before": [None], "after": [None], "interval": [None, 1.5]}
        assert verdict["metrics"]["error"] == metric | {"random_difference": None}
