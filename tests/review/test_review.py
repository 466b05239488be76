"""The review page's server: what it answers, what it refuses, and what it never gives away."""

import json
import os
import socket
import sys
import threading
import time

import httpx
import pytest

from dross.cleanse.decisions import Decisions
from dross.errors import BadInput, TapeDamaged
from dross.review.class_balance import class_warnings
from dross.review.sentences import format_amount, reason_sentences
from dross.review.server import serve, serve_in_thread
from review.review_project import HOSTILE, make_project, make_verdict


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return make_project(tmp_path_factory.mktemp("projects") / "table", "table", 300)


@pytest.fixture
def fresh(tmp_path):
    return make_project(tmp_path / "fresh", "table", 60)


@pytest.fixture(scope="module")
def page(project):
    with serve_in_thread(project) as server, client(server) as talking:
        yield talking


def client(server, **headers):
    return httpx.Client(
        base_url=server.origin, headers={"X-Dross-Token": server.token} | headers, trust_env=False
    )


def decide(talking, *changes, **more):
    return talking.post("/api/decide", json={"changes": list(changes), "revision": 0} | more)


def wait_for(condition, seconds=15.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
    return found


# Lists


def test_the_tabs_are_in_the_order_of_their_ranks(page, project):
    harm, mislabel = project.instances["harm_rank"], project.instances["mislabel_rank"]
    harmful, mislabelled, everything = (
        page.get("/api/list", params={"tab": tab}).json()["ids"]
        for tab in ("harmful", "mislabelled", "all")
    )
    assert harmful == [
        id for id in harm.sort_values().index if project.instances.at[id, "score"] < 0
    ]
    assert mislabelled == list(mislabel[mislabel >= 0].sort_values().index)
    assert everything == list(harm.sort_values().index)


def test_every_filter_keeps_what_it_says(page, project):
    rows = project.instances
    ask = lambda **filter: set(page.get("/api/list", params={"tab": "all"} | filter).json()["ids"])
    assert ask(**{"class": ">50K"}) == set(rows.index[rows["label"] == ">50K"])
    assert ask(prediction="differs") == set(rows.index[rows["label"] != rows["prediction"]])
    assert ask(prediction="agrees", min="-1e-4", max="0") == set(
        rows.index[(rows["label"] == rows["prediction"]) & rows["score"].between(-1e-4, 0)]
    )
    assert ask(q="masters") == set(project.content.index[project.content["education"] == "Masters"])
    assert ask(q="ROW 17") >= {15}
    assert ask(q="nothing has this") == set()
    assert page.get("/api/list", params={"state": "maybe"}).status_code == 400
    assert "not a number" in page.get("/api/list", params={"min": "low"}).json()["error"]


def test_filters_on_decisions_follow_them(fresh):
    with serve_in_thread(fresh) as server, client(server) as talking:
        decide(talking, ["remove", None, [1, 2]], ["keep", None, [3]], ["relabel", ">50K", [4]])
        ask = lambda state: set(
            talking.get("/api/list", params={"tab": "all", "state": state}).json()["ids"]
        )
        assert (ask("remove"), ask("keep"), ask("relabel"), ask("decided")) == (
            {1, 2},
            {3},
            {4},
            {1, 2, 3, 4},
        )
        assert ask("undecided") == set(range(60)) - {1, 2, 3, 4}


def test_items_look_like_their_kind(tmp_path, page, project):
    item = page.get("/api/items", params={"ids": "7,3"}).json()["items"][0]
    assert (
        item["id"] == 7
        and item["cells"][0] == project.content.at[7, "age"]
        and item["cells"][5] is None
    )  # every seventh is missing
    for kind, key in (("images", "source"), ("text", "text")):
        with (
            serve_in_thread(make_project(tmp_path / kind, kind, 30)) as server,
            client(server) as talking,
        ):
            assert key in talking.get("/api/items", params={"ids": "0"}).json()["items"][0]
            assert talking.get("/api/project").json()["layout"] == kind
            assert talking.get("/picture/train/0").status_code == (200 if kind == "images" else 404)


def test_why_is_told_in_plain_words(page, project):
    worst = int(project.instances["harm_rank"].idxmin())
    why = page.get("/api/why", params={"id": worst}).json()
    told = " ".join(sentence["text"] for sentence in why["sentences"])
    assert (
        "validation loss would fall" in told
        and "it makes the model worse" in told
        and "of 4 training runs" in told
    )
    assert (
        "trained again without it" in told
        and "Its label is" in told
        and "more unusual than" in told
    )
    assert (
        len(why["hurts"]) == 4
        and len(why["similar"]) == 4
        and all(entry["label"] and entry["brief"] for entry in why["hurts"])
    )
    assert (
        page.get("/api/why", params={"id": 10**6}).status_code
        == page.get("/api/why", params={"id": "x"}).status_code
        == 400
    )


def test_sentences_of_every_case():
    row = {
        "score": -2e-4,
        "spread": 1e-5,
        "harmful_in": 4,
        "label": "cat",
        "prediction": "dog",
        "probability": 0.93,
        "agreement": 1.0,
        "label_probability": 0.02,
        "verified": 3e-5,
        "outlier": 0.5,
    }
    told = lambda task="classification", runs=4, **changed: [
        s["text"] for s in reason_sentences(row | changed, {"task": task, "runs": runs})
    ]
    assert (
        told()[0]
        == "Without it, the mean validation loss would fall by about 0.00020: it makes the model worse."
    )
    assert told(score=2e-4)[0].endswith("it helps the model.") and "the same" in told(score=0.0)[0]
    assert (
        "all runs agree" in told()[1]
        and "may be chance" in told(harmful_in=2)[1]
        and "one training run" in told(runs=1)[1]
    )
    assert (
        told()[2].startswith("Its label is cat, but the models say dog with 93\u00a0%")
        and "say so too" in told(prediction="cat")[2]
    )
    assert (
        told(task="regression", label="3", prediction="5.1")[2]
        == "Its value is 3; the models predict 5.1."
    )
    assert (
        "rose by 0.000030, unlike the estimate" in told()[3]
        and "Not checked" in told(verified=float("nan"))[3]
    )
    assert [format_amount(value) for value in (0, 0.5, -12.3, 1.23e-7)] == [
        "0",
        "0.50",
        "12",
        "1.2e-7",
    ]


# Decisions


def test_a_decision_is_on_disk_when_it_is_acknowledged_and_undo_survives_a_restart(fresh):
    with serve_in_thread(fresh) as server, client(server) as talking:
        answer = decide(talking, ["remove", None, [5]], ["relabel", ">50K", [6]], who="ana").json()
        assert (
            answer["progress"]["remove"] == answer["progress"]["relabel"] == 1
            and answer["undoable"]
            and not answer["redoable"]
        )
        assert Decisions(fresh.folder / "decisions.sqlite").current() == {
            5: ("remove", None),
            6: ("relabel", ">50K"),
        }
    with serve_in_thread(fresh) as server, client(server) as talking:
        undone = talking.post("/api/undo", json={"revision": answer["revision"]}).json()
        assert undone["event"]["count"] == 2 and {
            tuple(entry) for entry in undone["decisions"]
        } == {
            (5, "undecided", None),
            (6, "undecided", None),
        }
        again = talking.post("/api/redo", json={"revision": undone["revision"]}).json()
        assert {entry[0] for entry in again["decisions"]} == {5, 6} and not again["redoable"]
        assert talking.post("/api/redo", json={"revision": 0}).json()["event"] is None


def test_an_answer_also_tells_what_others_did_meanwhile(fresh):
    with serve_in_thread(fresh) as server, client(server) as ana, client(server) as ben:
        known = ana.get("/api/project").json()["revision"]
        decide(ben, ["keep", None, [9]], revision=known)
        answer = decide(ana, ["remove", None, [5]], revision=known).json()
        assert {tuple(entry) for entry in answer["decisions"]} == {
            (9, "keep", None),
            (5, "remove", None),
        }
        assert (
            ben.get("/api/since", params={"revision": known}).json()["revision"]
            == answer["revision"]
        )


def test_a_request_that_is_sent_again_counts_once(fresh):
    with serve_in_thread(fresh) as server, client(server) as talking:
        first = decide(talking, ["keep", None, [1]], once="a").json()["revision"]
        assert decide(talking, ["keep", None, [1]], once="a").json()["revision"] == first


def test_many_people_at_once_lose_nothing(fresh):
    with serve_in_thread(fresh) as server:

        def work(first):
            with client(server) as talking:
                for id in range(first, 60, 4):
                    assert (
                        decide(talking, ["remove", None, [id]], who=str(first)).status_code == 200
                    )

        people = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        [person.start() for person in people]
        [person.join() for person in people]
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
    with serve_in_thread(fresh) as server, client(server) as talking:
        answer = talking.post("/api/decide", json={"revision": 0} | body)
        assert answer.status_code == 400 and answer.json()["error"].endswith(".")
        assert talking.post("/api/decide", content=b"{").status_code == 400
    assert fresh.decisions.revision == 0


def test_a_regression_takes_numbers_as_labels(tmp_path):
    with (
        serve_in_thread(make_project(tmp_path / "r", "table", 40, task="regression")) as server,
        client(server) as talking,
    ):
        assert decide(talking, ["relabel", "3.5", [1]]).status_code == 200
        assert (
            decide(talking, ["relabel", "much", [1]]).status_code
            == decide(talking, ["relabel", "nan", [1]]).status_code
            == 400
        )


def test_a_class_that_loses_much_is_named():
    labels = ["cat"] * 100 + ["dog"] * 11
    assert class_warnings(labels, dict.fromkeys(range(19), ("remove", None))) == []
    assert class_warnings(labels, dict.fromkeys(range(20), ("remove", None)))[0].startswith(
        "Class cat would lose 20 of 100"
    )
    assert class_warnings(labels, {100: ("remove", None), 101: ("remove", None)})[0].startswith(
        "Class dog would lose 2 of 11 instances"
    )
    assert (
        class_warnings(
            labels, {100: ("relabel", "cat"), 101: ("relabel", "dog"), 0: ("keep", None)}
        )
        == []
    )
    assert class_warnings(
        ["1", "2"] * 20, dict.fromkeys(range(8), ("remove", None)), regression=True
    )[0].startswith("The training data would lose 8")


def test_a_bulk_decision_can_be_looked_at_first(fresh):
    with serve_in_thread(fresh) as server, client(server) as talking:
        decide(talking, ["keep", None, [0, 1]])
        ids = [
            id
            for id in fresh.instances.index
            if fresh.instances.at[id, "label"] == ">50K" or id < 2
        ]
        seen = talking.post("/api/preview", json={"changes": [["remove", None, ids]]}).json()
        assert (
            seen["count"] == len(ids)
            and seen["changed"] == 2
            and "Class >50K" in " ".join(seen["warnings"])
        )
        assert len(fresh.decisions.current()) == 2


# Safety


def test_nothing_without_the_token(fresh):
    with (
        serve_in_thread(fresh) as server,
        httpx.Client(base_url=server.origin, trust_env=False) as stranger,
    ):
        for path in (
            "/",
            "/api/project",
            "/api/list",
            "/api/why?id=1",
            "/picture/train/1",
            "/api/since?revision=0",
            "/nowhere",
        ):
            assert stranger.get(path).status_code == 401
        for path in ("/api/decide", "/api/undo", "/api/redo", "/api/judge", "/api/judge/cancel"):
            assert stranger.post(path, json={"changes": [["remove", None, [1]]]}).status_code == 401
        assert stranger.get("/api/project", headers={"X-Dross-Token": "wrong"}).status_code == 401
        assert stranger.get("/?token=wrong").status_code == 401
        assert stranger.get(server.address).status_code == 200  # sets the cookie
        assert stranger.get("/").status_code == 200
        assert (
            stranger.get("/api/project").status_code
            == stranger.post("/api/undo", json={}).status_code
            == 401
        )  # a cookie is not enough
    assert fresh.decisions.revision == 0


def test_the_cookie_is_for_the_page_and_its_pictures_only(fresh):
    with serve_in_thread(fresh) as server:
        cookie = httpx.get(server.address, trust_env=False).headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and "domain" not in cookie


def test_another_host_or_origin_is_turned_away(fresh):
    with serve_in_thread(fresh) as server, client(server) as talking:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            assert talking.get("/api/project", headers={"Host": host}).status_code == 421
        assert talking.get("/api/project", headers={"Host": "LOCALHOST:1"}).status_code == 200
        assert (
            talking.post(
                "/api/undo", json={"revision": 0}, headers={"Origin": "http://evil.example"}
            ).status_code
            == 403
        )


def test_every_answer_is_locked_down(page):
    for path in ("/", "/api/project", "/api/nowhere", "/static/main.js", "/picture/train/99999999"):
        headers = page.get(path).headers
        assert (
            "default-src 'none'" in headers["content-security-policy"]
            and "unsafe" not in headers["content-security-policy"]
        )
        assert (
            headers["x-content-type-options"] == "nosniff"
            and headers["referrer-policy"] == "no-referrer"
        )
        assert headers["cache-control"] == "no-store"
    assert page.get("/static/main.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static//etc/passwd",
        "/picture/train/..%2f..%2fproject.json",
        "/picture/..%2f/1",
        "/picture/train/1.png",
        "/picture/verdicts/1",
        "/project.json",
        "/decisions.sqlite",
        "/static/",
    ],
)
def test_no_path_leads_out(page, path):
    answer = exactly(page, f"GET {path} HTTP/1.1")
    assert (
        answer.split()[1] in (b"404", b"405") and b"import" not in answer and b"root:" not in answer
    )


def exactly(page, *head):
    """A request as it is written: clients tidy paths up and count lengths."""
    lines = [
        *head,
        "Host: 127.0.0.1",
        f"X-Dross-Token: {page.headers['X-Dross-Token']}",
        "Connection: close",
        "",
        "",
    ]
    with socket.create_connection((page.base_url.host, page.base_url.port)) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_hostile_data_are_data(tmp_path):
    with (
        serve_in_thread(make_project(tmp_path / "h", "table", 30, hostile=True)) as server,
        client(server) as talking,
    ):
        html = talking.get("/").text
        assert "<svg onload" not in html and "&lt;svg onload" in html
        item = talking.get("/api/items", params={"ids": "0"})
        assert (
            item.headers["content-type"] == "application/json"
            and item.json()["items"][0]["source"] == HOSTILE[0]
        )


def test_requests_are_bounded(page):
    for header in ("Content-Length: 1000000000", "Transfer-Encoding: chunked"):
        assert exactly(page, "POST /api/decide HTTP/1.1", header).split()[1] == b"413"
    assert (
        len(
            page.get("/api/items", params={"ids": ",".join("1" for _ in range(2000))}).json()[
                "items"
            ]
        )
        == 500
    )


# The verdict


def judge(folder, script):
    path = folder / "judge.py"
    path.write_text(
        "import json, pathlib, sys, time\nfolder = pathlib.Path(sys.argv[1])\n" + script
    )
    return [sys.executable, str(path), str(folder)]


def test_a_judgement_is_started_watched_and_shown(fresh):
    verdict = json.dumps(make_verdict())
    command = judge(
        fresh.folder,
        f"""
assert sys.argv[2:] == ["--quick"], sys.argv
(folder / "judging.json").write_text(json.dumps({{"done": 1, "of": 6, "stage": "before"}}))
while not (folder / "go").exists(): time.sleep(0.02)
(folder / "judging.json").unlink(); (folder / "verdicts").mkdir(exist_ok=True)
(folder / "verdicts" / "1.json").write_text({verdict!r})""",
    )
    with serve_in_thread(fresh, judge_command=command) as server, client(server) as talking:
        refused = talking.post("/api/judge", json={"seeds": 3, "quick": True})
        assert refused.status_code == 400 and "nothing to judge" in refused.json()["error"]
        decide(talking, ["remove", None, [1]])
        assert talking.post("/api/judge", json={"seeds": 0}).status_code == 400
        assert (
            talking.post("/api/judge", json={"seeds": "3", "quick": True}).json()["state"]
            == "running"
        )
        assert talking.post("/api/judge", json={"seeds": 3}).status_code == 400  # one at a time
        status = wait_for(lambda: (now := talking.get("/api/judge").json()).get("of") and now)
        assert (status["done"], status["of"], status["stage"]) == (1, 6, "before")
        (fresh.folder / "go").touch()
        wait_for(
            lambda: (
                talking.get("/api/since", params={"revision": 0}).json()["judge"]["state"] == "done"
            )
        )
        assert talking.get("/api/verdicts").json()["verdicts"][0]["verdict"] == "improved"


def test_a_judgement_that_fails_says_what_it_said(fresh):
    with (
        serve_in_thread(
            fresh, judge_command=judge(fresh.folder, "sys.exit('BadInput: no <tapes> here')")
        ) as server,
        client(server) as talking,
    ):
        decide(talking, ["remove", None, [1]])
        talking.post("/api/judge", json={"seeds": 2})
        status = wait_for(
            lambda: (now := talking.get("/api/judge").json())["state"] == "failed" and now
        )
        assert "no <tapes> here" in status["output"]


def test_a_judgement_can_be_cancelled_and_ends_with_the_page(fresh):
    command = judge(
        fresh.folder, "import os\n(folder / 'pid').write_text(str(os.getpid()))\ntime.sleep(60)"
    )

    def started(talking):
        (fresh.folder / "pid").unlink(missing_ok=True)
        talking.post("/api/judge", json={"seeds": 2})
        return int(
            wait_for(lambda: (fresh.folder / "pid").exists() and (fresh.folder / "pid").read_text())
        )

    with serve_in_thread(fresh, judge_command=command) as server, client(server) as talking:
        decide(talking, ["remove", None, [1]])
        first = started(talking)
        assert talking.post("/api/judge/cancel", json={}).json()["state"] == "cancelled"
        second = started(talking)
    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# Serving


def test_a_taken_port_says_what_to_do(fresh):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadInput, match="--port"):
            serve(fresh.folder, port=taken.getsockname()[1], open_browser=False)


def test_a_folder_that_is_no_project_says_so(tmp_path):
    with pytest.raises(TapeDamaged, match="dross clean"):
        serve(tmp_path, open_browser=False)


def test_a_damaged_verdict_does_not_break_the_page(fresh):
    (fresh.folder / "verdicts").mkdir()
    (fresh.folder / "verdicts" / "1.json").write_text("{")
    with serve_in_thread(fresh) as server, client(server) as talking:
        answer = talking.get("/api/verdicts")
        assert answer.status_code == 500 and "not readable JSON" in answer.json()["error"]
        assert talking.get("/api/project").status_code == 200
