"""What the server refuses, and what it never gives away."""

import contextlib
import socket
import time

import httpx
import pytest

from dross.review.addresses import KnownHosts
from dross.review.limits import Limits
from dross.review.server import serve_in_thread
from tests.review.review_client import client_of
from tests.review.review_project import HOSTILE, make_project

READ = ["/", "/api/project", "/api/list", "/api/why?id=1", "/api/since?revision=0"]
READ += ["/picture/train/1", "/nowhere"]
CHANGE = ["/api/decide", "/api/undo", "/api/redo", "/api/judge", "/api/judge/cancel"]


def test_nothing_without_the_token(fresh):
    with (
        serve_in_thread(fresh) as server,
        httpx.Client(base_url=server.origin, trust_env=False) as stranger,
    ):
        for path in READ:
            assert stranger.get(path).status_code == 401
        for path in CHANGE:
            assert stranger.post(path, json={"changes": [["remove", None, [1]]]}).status_code == 401
        assert stranger.get("/api/project", headers={"X-Dross-Token": "wrong"}).status_code == 401
        assert stranger.get("/?token=wrong").status_code == 401
        assert stranger.get(server.address).status_code == 200  # sets the cookie
        assert stranger.get("/").status_code == 200
        # For data and changes the cookie is not enough.
        assert stranger.get("/api/project").status_code == 401
        assert stranger.post("/api/undo", json={}).status_code == 401
    assert fresh.decisions.revision == 0


def test_the_cookie_is_for_the_page_and_its_pictures_only(fresh):
    with serve_in_thread(fresh) as server:
        cookie = httpx.get(server.address, trust_env=False).headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and "domain" not in cookie


def test_another_host_or_origin_is_turned_away(fresh):
    with client_of(fresh) as client:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            assert client.get("/api/project", headers={"Host": host}).status_code == 421
        assert client.get("/api/project", headers={"Host": "LOCALHOST:1"}).status_code == 200
        origin = {"Origin": "http://evil.example"}
        answer = client.post("/api/undo", json={"revision": 0}, headers=origin)
        assert answer.status_code == 403


def own_address():
    """An address of this machine beside the loopback; none is sent anything."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]
    pytest.skip("this machine has no network")


def test_a_page_for_others_opens_under_the_addresses_it_listens_on(fresh):
    with client_of(fresh, host="0.0.0.0") as client:
        port = client.base_url.port
        with httpx.Client(headers=client.headers, trust_env=False) as other:
            answer = other.get(f"http://{own_address()}:{port}/api/project")
            assert answer.status_code == 200
        # In numbers: what a router or a container's host forwards from. By name: only our own.
        for host in ("localhost", socket.gethostname(), "203.0.113.9", "[2001:db8::1]"):
            assert client.get("/api/project", headers={"Host": f"{host}:{port}"}).status_code == 200
        for host in ("evil.example", "10.0.0.1.evil.example", "2130706433", "0x7f.1", "[::1"):
            assert client.get("/api/project", headers={"Host": f"{host}:{port}"}).status_code == 421


def test_a_page_for_this_machine_opens_under_no_other_address(fresh):
    with client_of(fresh, host="127.0.0.2") as client:
        assert client.get("/api/project").status_code == 200
        for host in ("203.0.113.9", "127.0.0.3", "[2001:db8::1]"):
            assert client.get("/api/project", headers={"Host": host}).status_code == 421


def test_both_ways_to_write_an_address_are_the_same():
    hosts = KnownHosts(frozenset())
    assert hosts.accept("10.0.0.1:80", "::ffff:10.0.0.1")
    assert hosts.accept("[0:0:0:0:0:0:0:1]", "::1")
    assert not hosts.accept("10.0.0.2", "10.0.0.1") and not hosts.accept("a", None)


def test_every_answer_is_locked_down(page):
    for path in ("/", "/api/project", "/api/nowhere", "/static/main.js", "/picture/train/99999999"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
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
    answer = send_exactly(page, f"GET {path} HTTP/1.1")
    assert answer.split()[1] in (b"404", b"405")
    assert b"import" not in answer and b"root:" not in answer


QUICK = Limits(head_seconds=0.3, body_seconds=0.3, answer_seconds=0.3, connections=5)
HALF = [
    b"",
    b"POST /api/decide HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    b"POST /api/decide HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{",  # no token
    b"GET /static/main.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nG",  # and half of another
]


def open_socket(client):
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=30)


def receive_all(connection):
    """Everything until the other side ends it; fails if it does not."""
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        pieces.extend(iter(lambda: connection.recv(65536), b""))
    return b"".join(pieces)


@pytest.mark.parametrize("half", HALF)
def test_a_request_that_does_not_go_on_is_dropped(fresh, half):
    with client_of(fresh, limits=QUICK) as client, open_socket(client) as connection:
        connection.sendall(half)
        receive_all(connection)
        assert client.get("/api/project").status_code == 200


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", HALF[2], HALF[3]])
def test_one_byte_at_a_time_is_not_going_on(fresh, start):
    with client_of(fresh, limits=QUICK) as client, open_socket(client) as connection:
        connection.sendall(start)
        end = time.monotonic() + 30
        with pytest.raises(ConnectionError):
            while time.monotonic() < end:
                connection.sendall(b"x" if start != HALF[2] else b" ")
                time.sleep(0.02)


def test_a_body_that_does_not_come_is_answered_with_a_sentence(fresh):
    limits = Limits(body_seconds=0.3)
    with client_of(fresh, limits=limits) as client, open_socket(client) as connection:
        token = client.headers["X-Dross-Token"]
        head = f"POST /api/decide HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Dross-Token: {token}\r\n"
        connection.sendall(f"{head}Content-Length: 900\r\n\r\n{{".encode())
        answer = receive_all(connection)
    assert answer.startswith(b"HTTP/1.1 408") and b"did not come within 0.3 s." in answer


def test_an_answer_that_is_not_taken_is_dropped(tmp_path):
    project = make_project(tmp_path / "long", "table", 5000)
    with client_of(project, limits=QUICK) as client, open_socket(client) as connection:
        token = client.headers["X-Dross-Token"]
        ask = "GET /api/list?tab=all HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        request = f"{ask}X-Dross-Token: {token}\r\n\r\n".encode()
        end = time.monotonic() + 30
        with pytest.raises(ConnectionError):  # it is dropped, or else we go on for ever
            connection.settimeout(1)
            while time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    connection.sendall(request)


def test_silent_connections_lock_nobody_out(fresh):
    limits = Limits(head_seconds=600, body_seconds=600, connections=5)
    with client_of(fresh, limits=limits) as client, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(open_socket(client)) for _ in range(30)]
        for connection in silent:
            with contextlib.suppress(ConnectionError):
                connection.sendall(HALF[1])
        for _ in range(3):
            with httpx.Client(headers=client.headers, trust_env=False) as other:
                assert other.get(client.base_url.join("/api/project")).status_code == 200
        kept = [connection for connection in silent if not is_closed(connection)]
        assert len(kept) <= limits.connections


def is_closed(connection):
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def send_exactly(page, *head):
    """Send a request as it is written: clients tidy paths up and count lengths."""
    token = f"X-Dross-Token: {page.headers['X-Dross-Token']}"
    lines = [*head, "Host: 127.0.0.1", token, "Connection: close", "", ""]
    with socket.create_connection((page.base_url.host, page.base_url.port)) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_hostile_data_are_data(tmp_path):
    with client_of(make_project(tmp_path / "h", "table", 30, hostile=True)) as client:
        html = client.get("/").text
        assert "<svg onload" not in html and "&lt;svg onload" in html
        item = client.get("/api/items", params={"ids": "0"})
        assert item.headers["content-type"] == "application/json"
        assert item.json()["items"][0]["source"] == HOSTILE[0]


def test_requests_are_bounded(page):
    for header in ("Content-Length: 1000000000", "Transfer-Encoding: chunked"):
        assert send_exactly(page, "POST /api/decide HTTP/1.1", header).split()[1] == b"413"
    answer = page.get("/api/items", params={"ids": ",".join(["1"] * 2000)})
    assert len(answer.json()["items"]) == 500
