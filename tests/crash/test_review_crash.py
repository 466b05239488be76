"""kill -9 of a real server while somebody decides: what was acknowledged is there afterwards.

Three moments with the other tests; DROSS_CRASH_MOMENTS=30 takes thirty.
"""

import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time

import httpx

from dross.cleaning.decisions import Decisions
from tests.review.review_client import read_address
from tests.review.review_project import make_project

MOMENTS = int(os.environ.get("DROSS_CRASH_MOMENTS", 3))
INSTANCES = 400
SERVE = "import sys; from dross.review.server import serve; serve(sys.argv[1], open_browser=False)"


def test_every_acknowledged_decision_survives_kill_9(tmp_path):
    project = make_project(tmp_path / "p", "table", INSTANCES)
    project.decisions.close()
    generator = random.Random(0)
    acknowledged: dict[str, tuple[int, str]] = {}  # why: (id, action)
    for moment in range(MOMENTS):
        before = len(acknowledged)
        command = [sys.executable, "-P", "-c", SERVE, str(project.folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            origin, token = read_address(server).split("/?token=")
            people = [
                threading.Thread(target=keep_deciding, args=(origin, token, person, acknowledged))
                for person in range(2)
            ]
            for person in people:
                person.start()
            while len(acknowledged) < before + 5 and server.poll() is None:
                time.sleep(0.001)
            time.sleep(generator.uniform(0, 0.05))
            os.kill(server.pid, signal.SIGKILL)
            server.wait(30)
            for person in people:
                person.join(30)
        log = Decisions(project.folder / "decisions.sqlite")  # checks itself
        rows = {event.why: event for event in log.since(0)}
        log.close()
        assert len(acknowledged) >= before + 5, moment
        for why, (id, action) in acknowledged.items():
            assert rows[why].changes == {id: (action, None)}
        # Each person can have had one request on its way that was saved and not acknowledged.
        assert len(rows) - len(acknowledged) <= len(people) * (moment + 1)


def test_a_decision_is_synced_before_it_is_acknowledged(tmp_path):
    """A power cut cannot be tried here; SQLite promises it for EXTRA (3), the folder included."""
    log = Decisions(tmp_path / "decisions.sqlite")
    assert log._connection.execute("PRAGMA synchronous").fetchone() == (3,)
    assert log._connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    log.close()


def keep_deciding(origin, token, person, acknowledged):
    """Decide on one instance after the other until the server is gone."""
    generator = random.Random(person)
    headers = {"X-Dross-Token": token}
    known = 0
    with httpx.Client(base_url=origin, headers=headers, trust_env=False) as client:
        while True:
            id, action = generator.randrange(INSTANCES), generator.choice(["keep", "remove"])
            why = secrets.token_hex(8)  # by which the decision is found again
            body = {"changes": [[action, None, [id]]], "revision": known, "why": why}
            try:
                answer = client.post("/api/decide", json=body, timeout=30).raise_for_status()
            except httpx.TransportError:
                return
            known = answer.json()["revision"]
            acknowledged[why] = (id, action)
