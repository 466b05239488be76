"""What the server refuses, and what it never gives away."""

import contextlib
import socket

import httpx
import pytest

from tests.review.review_client import client_of, decide, serve_in_thread, wait_for
from tests.review.review_project import HOSTILE, make_project

READ = ["/", "/api/project", "/api/list", "/api/why?id=1", "/api/since?revision=0"]
READ += ["/image/train/1", "/nowhere"]
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


def test_the_cookie_is_for_the_page_and_its_images_only(fresh):
    with serve_in_thread(fresh) as server:
        cookie = httpx.get(server.address, trust_env=False).headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie and "domain" not in cookie


def test_the_key_that_opens_once_opens_once(fresh):
    with serve_in_thread(fresh) as server:
        address = f"{server.origin}/?token={server.keys.once}"
        with httpx.Client(base_url=server.origin, trust_env=False) as browser:
            assert browser.get(address).status_code == 200  # sets the cookie
            assert browser.get("/").status_code == 200
        assert httpx.get(address, trust_env=False).status_code == 401  # a stranger who saw it
        assert httpx.get(server.address, trust_env=False).status_code == 200


def test_another_host_is_turned_away(fresh):
    with client_of(fresh) as client:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""):
            assert client.get("/api/project", headers={"Host": host}).status_code == 400
        assert client.get("/api/project", headers={"Host": "LOCALHOST:1"}).status_code == 200
    with client_of(fresh, host="127.0.0.2") as client:
        assert client.get("/api/project").status_code == 200
        assert client.get("/api/project", headers={"Host": "127.0.0.3"}).status_code == 400


def test_a_page_for_others_opens_under_any_name_and_only_with_the_token(fresh):
    with client_of(fresh, host="0.0.0.0") as client:
        for host in ("localhost", "203.0.113.9:80", "[2001:db8::1]", "somebody.example"):
            assert client.get("/api/project", headers={"Host": host}).status_code == 200
            stranger = {"Host": host, "X-Dross-Token": "", "Cookie": "dross=1"}
            for path in READ:
                assert client.get(path, headers=stranger).status_code == 401


def test_every_answer_is_locked_down(page):
    for path in ("/", "/api/project", "/api/nowhere", "/static/main.js", "/image/train/99999999"):
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
        "/image/train/..%2f..%2fproject.json",
        "/image/..%2f/1",
        "/image/train/1.png",
        "/image/verdicts/1",
        "/project.json",
        "/decisions.sqlite",
        "/static/",
    ],
)
def test_no_path_leads_out(page, path):
    answer = send_exactly(page, f"GET {path} HTTP/1.1")
    assert answer.split()[1] in (b"400", b"404", b"405")
    assert b"import" not in answer and b"root:" not in answer


def test_a_flood_of_connections_is_survived(fresh):
    half = b"POST /api/decide HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with client_of(fresh) as client:
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                address = (client.base_url.host, client.base_url.port)
                connection = stack.enter_context(socket.create_connection(address, timeout=30))
                connection.sendall(half)
            with httpx.Client(headers=client.headers, trust_env=False) as other:
                busy = other.get(client.base_url.join("/api/project"))
            assert busy.status_code == 503
        wait_for(lambda: client.get("/api/project").status_code == 200)
        assert decide(client, ["keep", None, [1]]).status_code == 200


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
    def endless():
        for _ in range(20):
            yield b"[" * 2**20

    assert page.post("/api/decide", content=endless()).status_code == 413
    with pytest.raises(httpx.HTTPError):  # refused before all of it is sent
        page.post("/api/decide", content=b"[" * 2**26).raise_for_status()
    answer = page.get("/api/items", params={"ids": ",".join(["1"] * 2000)})
    assert len(answer.json()["items"]) == 500
