"""Any request to the page is answered below 500, and one that is refused has saved nothing.

A quick form runs with the other tests. DROSS_FUZZ_SECONDS=600 goes on for ten minutes with
requests that are new every time; what fails is shrunk and printed by Hypothesis.
"""

import asyncio
import json
import os
import socket
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dross.review.server import Keys, create_app
from tests.review.review_client import serve_in_thread
from tests.review.review_project import make_project

TOKEN = "the-token"
INSTANCES = 40
SECONDS = float(os.environ.get("DROSS_FUZZ_SECONDS", 0)) / 2  # two tests share the time
QUICK_EXAMPLES = 400
CHANGES = ("/api/decide", "/api/undo", "/api/redo")
PATHS = [
    "/",
    *("/api/project", "/api/list", "/api/items", "/api/why", "/api/since", "/api/verdicts"),
    *(*CHANGES, "/api/preview", "/api/judge", "/api/judge/cancel"),
    *("/static/main.js", "/static/", "/image/train/1", "/image/validation/1"),
]
METHODS = ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"]

# Values that a request may hold: right ones, nearly right ones, and anything at all.
numbers = st.one_of(
    st.integers(-2, INSTANCES + 2),
    st.integers(),
    st.floats(),
    st.sampled_from([10**18, 10**4000, True, None, "1", "12", "\ud800", "", [], {}]),
)
texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["<=50K", ">50K", "\ud800", "x" * 300, "../../x", "\0", None, 7, [], {}]),
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
actions = st.sampled_from(["keep", "remove", "relabel", "undecided", "explode", None, 3, "\udfff"])
ids = st.one_of(st.lists(numbers, max_size=4), st.sampled_from(["12", 5, None, [[1]], {"1": 2}]))
changes = st.one_of(
    st.lists(st.tuples(actions, texts, ids).map(list), max_size=3),
    st.lists(anything, max_size=3),
    anything,
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "changes": changes,
        "revision": numbers,
        "who": texts,
        "why": texts,
        "once": texts,
        "seeds": numbers,
        "quick": anything,
        "else": anything,
    },
)
right_bodies = st.fixed_dictionaries(
    {
        "changes": st.lists(
            st.tuples(
                st.sampled_from(["keep", "remove", "undecided"]),
                st.none(),
                st.lists(st.integers(0, INSTANCES - 1), min_size=1, max_size=3),
            ).map(list),
            min_size=1,
            max_size=1,
        ),
        "revision": st.just(0),
    }
)
raw_bodies = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"",
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b'{"revision": 0, "changes": ' + b"[" * 900 + b"]" * 900 + b"}",
            b'{"revision": 0, "revision": 1}',
            b'{"changes": [["remove", null, [1]]], "revision": -0}',
            b'{"changes": [["remove", null, [1]]], "revision": ' + b"9" * 5000 + b"}",
            b'{"changes": [["remove", null, [1e400]]], "revision": 0}',
            b'{"changes": [["remove", null, [1]]], "revision": 0, "who": "\xed\xa0\x80"}',
            '{"revision": 0}'.encode("utf-16"),
            b"\xef\xbb\xbf{}",
        ]
    ),
)
json_bodies = st.one_of(fields, right_bodies, anything).map(lambda body: json.dumps(body).encode())
cut_bodies = st.tuples(json_bodies, st.integers(0, 40)).map(lambda pair: pair[0][: pair[1]])
bodies = st.one_of(json_bodies, raw_bodies, cut_bodies)
paths = st.one_of(
    st.sampled_from(PATHS),
    st.sampled_from(PATHS),
    st.text(max_size=20).map(lambda text: "/" + text),
    st.sampled_from(["/static/", "/image/", "/image/train/", "/api/"]).flatmap(
        lambda start: st.text(max_size=300).map(lambda text: start + text)
    ),
    st.sampled_from(
        [
            *("/image/train/" + "1" * 5000, "/image/train/" + "1" * 300, "/image/../1"),
            *("/static/\0", "/static/" + "x" * 300, "/static/../server.py", "/static/%00"),
        ]
    ),
)
queries = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    st.tuples(
        st.sampled_from(["id", "ids", "revision", "who", "tab", "min", "max", "state", "q"]),
        st.one_of(
            st.binary(max_size=10),
            st.sampled_from(
                [
                    b"1",
                    b"-1",
                    b"1,2",
                    b"nan",
                    b"-inf",
                    b"1e999",
                    b"9" * 5000,
                    b"%ED%A0%80",
                    b"%d9%a1",
                ]
            ),
        ),
    ).map(lambda pair: pair[0].encode() + b"=" + pair[1]),
)
headers = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(
                [b"host", b"origin", b"cookie", b"content-type", b"x-dross-token", b"range"]
            ),
            st.binary(max_size=20),
        ),
        st.sampled_from(
            [
                (b"content-length", b"\xb2"),
                (b"content-length", b"-1"),
                (b"content-length", b"9" * 5000),
                (b"transfer-encoding", b"chunked"),
                (b"if-none-match", b"\xff"),
                (b"if-modified-since", b"never"),
                (b"range", b"bytes=9-1"),
                (b"range", b"bytes=0-0,0-0"),
                (b"origin", b"null"),
                (b"cookie", b'a="\\400"; =;;\xff'),
            ]
        ),
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    """A project that the requests are about, and its page as an ASGI application."""
    project = make_project(tmp_path_factory.mktemp("http") / "p", "table", INSTANCES)
    command = [sys.executable, "-S", "-c", "pass"]  # a judgment that ends at once
    yield project, create_app(project, Keys(TOKEN), judge_command=command)
    project.decisions.close()


def test_no_request_breaks_the_page_and_none_that_is_refused_is_carried_out(fuzzed):
    project, app = fuzzed

    def check(method, path, query, more, body, with_token):
        known = [(b"host", b"127.0.0.1"), (b"content-length", str(len(body)).encode())]
        known += [(b"x-dross-token", TOKEN.encode())] * with_token
        names = {name for name, _ in more}
        sent = [*more, *(entry for entry in known if entry[0] not in names)]
        before = project.decisions.revision
        status, said = asyncio.run(ask(app, method, path, query, sent, body))
        assert status < 500, (status, said)
        if status >= 400 or (not with_token and b"x-dross-token" not in names):
            assert project.decisions.revision == before, (status, said)
        if status >= 400 and method != "HEAD" and not path.startswith("/static/"):
            assert said.rstrip().endswith((b".", b'."}', b"Invalid host header")), (status, said)
        if project.decisions.revision != before:
            assert method == "POST" and path in CHANGES
            for id, (action, label) in project.decisions.current().items():
                assert type(id) is int and 0 <= id < INSTANCES
                assert (label in project.classes) if action == "relabel" else label is None

    methods = st.sampled_from(["POST", "POST", "GET", *METHODS])
    tokens = st.sampled_from([True, True, True, False])
    go_through(check, methods, paths, queries, headers, bodies, tokens)


def test_no_bytes_stop_the_server(fuzzed):
    project, _ = fuzzed
    with serve_in_thread(project) as server:
        port = int(server.origin.rpartition(":")[2])
        right = (
            f"POST /api/decide HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Dross-Token: {server.token}\r\n"
            "Content-Length: 54\r\nConnection: close\r\n\r\n"
            '{"changes": [["keep", null, [1]]], "revision": 0     }'
        ).encode()

        def check(start, length, replacement):
            sent = right[:start] + replacement + right[start + length :]
            before = project.decisions.revision
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(sent)
                answer = receive_all(connection)
            assert answer[9:10] in (b"", b"2", b"4"), (sent, answer)
            if answer and not answer.startswith(b"HTTP/1.1 200"):
                assert project.decisions.revision == before, (sent, answer)

        places = st.integers(0, len(right))
        pieces = st.one_of(
            st.binary(max_size=12),
            st.sampled_from(
                [b"\r\n", b"\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"\0", right]
            ),
        )
        go_through(check, places, st.integers(0, 40), pieces, examples=QUICK_EXAMPLES // 4)


async def ask(app, method, path, query, sent, body):
    """Send one request straight to an ASGI application; (status, body) of its answer."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(errors="replace"),
        "root_path": "",
        "query_string": query,
        "headers": sent,
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    waiting = [{"type": "http.request", "body": body, "more_body": False}]
    answers = []

    async def receive():
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message):
        answers.append(message)

    await app(scope, receive, send)
    return answers[0]["status"], b"".join(message.get("body", b"") for message in answers)


def receive_all(connection):
    """Everything until the other side closes, or waits for the rest of a request."""
    connection.settimeout(0.3)
    pieces = []
    try:
        while piece := connection.recv(65536):
            pieces.append(piece)
    except (ConnectionResetError, TimeoutError):
        pass
    return b"".join(pieces)


def go_through(check, *strategies, examples=QUICK_EXAMPLES):
    """The same few hundred examples every time, or new ones until the time is over."""
    calm = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    common = {"deadline": None, "database": None, "suppress_health_check": calm}
    if not SECONDS:
        options = settings(max_examples=examples, derandomize=True, **common)
        return options(given(*strategies)(check))()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        settings(max_examples=5 * examples, **common)(given(*strategies)(check))()
