"""A judgment is started, watched and stopped from the page."""

import json
import os
import sys

import numpy as np
import pandas
import pytest

import dross
from dross._io import seal
from dross.cleaning.project import Project
from dross.review.judge_process import JudgeProcess
from tests.cleaning.made_inputs import copy_project
from tests.review.review_client import client_of, decide, wait_for
from tests.review.review_project import judge_command, make_verdict

WRITES_A_VERDICT = """
assert sys.argv[2:] == ["--quick"], sys.argv
(folder / "judging.json").write_text(json.dumps({"done": 1, "of": 6, "stage": "before"}))
while not (folder / "go").exists(): time.sleep(0.02)
(folder / "judging.json").unlink(); (folder / "verdicts").mkdir(exist_ok=True)
(folder / "verdicts" / "1.json").write_text(VERDICT)
"""
FAILS = "sys.exit('InvalidInput: no <tapes> here')"
SLEEPS = """
import os
(folder / 'pid').write_text(str(os.getpid()))
time.sleep(60)
"""


def test_a_judgment_is_started_watched_and_shown(fresh):
    verdict = f"VERDICT = {json.dumps(seal(make_verdict()))!r}\n"
    command = judge_command(fresh.folder, verdict + WRITES_A_VERDICT)
    with client_of(fresh, judge_command=command) as client:
        refused = client.post("/api/judge", json={"seeds": 3, "quick": True})
        assert refused.status_code == 400 and "nothing to judge" in refused.json()["error"]
        decide(client, ["remove", None, [1]])
        for bad in ({"seeds": 0}, {"seeds": "3"}, {"seeds": 3, "quick": 1}, {"seeds": 3, "x": 1}):
            assert client.post("/api/judge", json=bad).status_code == 400
        started = client.post("/api/judge", json={"seeds": 3, "quick": True})
        assert started.json()["state"] == "running"
        assert client.post("/api/judge", json={"seeds": 3}).status_code == 400  # one at a time
        status = wait_for(lambda: (now := client.get("/api/judge").json()).get("of") and now)
        assert (status["done"], status["of"], status["stage"]) == (1, 6, "before")
        (fresh.folder / "go").touch()
        since = lambda: client.get("/api/since", params={"revision": 0}).json()
        wait_for(lambda: since()["judge"]["state"] == "done")
        assert client.get("/api/verdicts").json()["verdicts"][0]["verdict"] == "improved"


def test_a_judgment_that_fails_says_what_it_said(fresh):
    with client_of(fresh, judge_command=judge_command(fresh.folder, FAILS)) as client:
        decide(client, ["remove", None, [1]])
        client.post("/api/judge", json={"seeds": 2})
        status = lambda: client.get("/api/judge").json()
        wait_for(lambda: status()["state"] == "failed")
        assert "no <tapes> here" in status()["output"]


def test_a_judgment_can_be_cancelled_and_ends_with_the_page(fresh):
    pid_file = fresh.folder / "pid"

    def start(client):
        pid_file.unlink(missing_ok=True)
        client.post("/api/judge", json={"seeds": 2})
        return int(wait_for(lambda: pid_file.exists() and pid_file.read_text()))

    with client_of(fresh, judge_command=judge_command(fresh.folder, SLEEPS)) as client:
        decide(client, ["remove", None, [1]])
        first = start(client)
        assert client.post("/api/judge/cancel", json={}).json()["state"] == "cancelled"
        second = start(client)
    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_judgment_runs_no_modules_of_the_current_folder(fresh, tmp_path, monkeypatch):
    here = tmp_path / "downloads"
    here.mkdir()
    for name in ("random", "json", "torch", "dross"):
        (here / f"{name}.py").write_text(f"open({str(here / 'ran')!r}, 'w')\nraise SystemExit(3)\n")
    monkeypatch.chdir(here)
    judging = JudgeProcess(fresh.folder.resolve())  # the real command
    judging.start(2, quick=True)
    status = wait_for(lambda: (now := judging.status())["state"] != "running" and now, 60)
    assert not (here / "ran").exists()
    assert "No instance has been removed" in status["output"]  # what the real one says


OWN_MODEL = """
import pathlib
from torch import nn
pathlib.Path("was-run").touch()
def network():
    return nn.Linear(3, 2)
"""


@pytest.fixture(scope="module")
def made_with_own_code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "made"
    folder.mkdir()
    (folder / "ownmodel.py").write_text(OWN_MODEL)
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(90, 3)).round(3), columns=["a", "b", "c"])
    frame["kind"] = np.where(frame["a"] > 0, "yes", "no")
    frame.to_csv(folder / "t.csv", index=False)
    options = {"repeats": 1, "epochs": 2, "lr": 0.1, "check": 2, "progress": False}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(sys, "path", list(sys.path))
        dross.clean("t.csv", "kind", out="run", make="ownmodel:network", **options)
    sys.modules.pop("ownmodel", None)
    (folder / "was-run").unlink()
    return folder


@pytest.fixture
def own_code(made_with_own_code, tmp_path, monkeypatch):
    """A small project whose model is the user's code, in a module of the current folder."""
    run = copy_project(made_with_own_code, tmp_path / "own")
    monkeypatch.chdir(run.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Project.open("run")


def test_the_page_runs_no_code_that_the_command_line_does_not_name(own_code):
    with client_of(own_code) as client:
        decide(client, ["remove", None, [1]])
        refused = client.post("/api/judge", json={"seeds": 2})
        assert refused.status_code == 400
        assert "--trust-code ownmodel:network" in refused.json()["error"]
        assert client.get("/api/judge").json()["state"] == "idle"
    assert not os.path.exists("was-run")


def test_the_page_judges_with_code_that_the_command_line_names(own_code):
    with client_of(own_code, trust_code=["ownmodel:network"]) as client:
        decide(client, ["remove", None, [1]])
        assert client.post("/api/judge", json={"seeds": 2}).json()["state"] == "running"
        status = lambda: client.get("/api/judge").json()
        ended = wait_for(lambda: (now := status())["state"] != "running" and now, 120)
        assert ended["state"] == "done", ended["output"]
        assert client.get("/api/verdicts").json()["verdicts"][0]["seeds"] == 2
    assert os.path.exists("was-run")
