"""What the tests of the server share: a client that has the token, and a wait with an end."""

import time
from contextlib import contextmanager

import httpx

from dross.review.server import serve_in_thread


def connect(server, **headers):
    headers = {"X-Dross-Token": server.token} | headers
    return httpx.Client(base_url=server.origin, headers=headers, trust_env=False)


@contextmanager
def client_of(project, **options):
    """A client of a server that serves the project as long as the block lasts."""
    with serve_in_thread(project, **options) as server, connect(server) as client:
        yield client


def decide(client, *changes, **more):
    return client.post("/api/decide", json={"changes": list(changes), "revision": 0} | more)


def wait_for(condition, seconds=15.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
    return found
