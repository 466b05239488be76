"""What the tests of the server share: a server, a client with the token, and a wait with an end."""

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from dross.cleaning.project import Project
from dross.review.server import Keys, create_app, listen, make_server


@dataclass(frozen=True)
class RunningServer:
    """Where a server that runs in a thread can be reached."""

    origin: str
    keys: Keys

    @property
    def token(self) -> str:
        return self.keys.token

    @property
    def address(self) -> str:
        return f"{self.origin}/?token={self.token}"


@contextmanager
def serve_in_thread(
    project: Project, *, host: str = "127.0.0.1", **options
) -> Iterator[RunningServer]:
    """Serve the page on a free port of this machine for as long as the block lasts."""
    keys = Keys()
    with listen(host, 0, project.folder) as listener:
        server = make_server(create_app(project, keys, host=host, **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        name = "127.0.0.1" if host == "0.0.0.0" else host
        try:
            yield RunningServer(f"http://{name}:{listener.getsockname()[1]}", keys)
        finally:
            server.should_exit = True
            thread.join(10)


def connect(server: RunningServer, **headers: str) -> httpx.Client:
    headers = {"X-Dross-Token": server.token} | headers
    return httpx.Client(base_url=server.origin, headers=headers, trust_env=False)


@contextmanager
def client_of(project: Project, **options) -> Iterator[httpx.Client]:
    """A client of a server that serves the project as long as the block lasts."""
    with serve_in_thread(project, **options) as server, connect(server) as client:
        yield client


def decide(client: httpx.Client, *changes, **more) -> httpx.Response:
    return client.post("/api/decide", json={"changes": list(changes), "revision": 0} | more)


def wait_for(condition, seconds=15.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
    return found


def read_address(server: subprocess.Popen[bytes]) -> str:
    """The address that `dross review` prints when it is ready."""
    for line in server.stdout:
        if found := re.search(r"http://\S+", line.decode()):
            return found[0]
    raise AssertionError("the server ended")
