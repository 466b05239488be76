"""The review page's server: by default for this machine only, and only with the token."""

import contextlib
import mimetypes
import os
import secrets
import signal
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from .._text import render
from ..cleaning.chats import CHATS
from ..cleaning.findings import is_share
from ..cleaning.project import Project
from ..cleaning.reopen import check_code_unchanged
from ..errors import DrossError, InvalidInput
from .addresses import KnownHosts, is_loopback, known_hosts, open_listener, page_addresses
from .answers import JSONAnswer
from .api import Api
from .guard import ANSWER_HEADERS, Guard, cookie_name
from .judge_process import JudgeProcess
from .limits import MAX_HEAD_BYTES, BoundedConnection, Limits
from .opening import open_in_browser

_TOKEN_BYTES = 24
_SENTENCES = {
    404: "There is nothing at this address.",
    405: "This address does not take requests of this kind.",
}
# Some systems say text/plain, which browsers refuse for modules.
mimetypes.add_type("text/javascript", ".js")


def create_app(
    project: Project,
    token: str,
    *,
    hosts: KnownHosts,
    judge_command: Sequence[str] | None = None,
    trust_code: Sequence[str] = (),
    limits: Limits | None = None,
) -> Starlette:
    """Return the page and its API as an ASGI application.

    Arguments:
        project: What is reviewed.
        token: What a browser must know to get anything.
        hosts: The hosts under which the page may be opened.
        judge_command: What to run instead of `dross judge FOLDER --decisions`.
        trust_code: The `module:function`s that a judgement may import.
        limits: How long a request is waited for.
    """
    judge_process = JudgeProcess(project.folder, judge_command, trust_code)
    api = Api(project, judge_process, body_seconds=(limits or Limits()).body_seconds)
    storage_key = _storage_key(project)

    def page(request: Request) -> Response:
        values = {"token": token, "name": project.about["name"], "key": storage_key}
        lists: dict[str, Any] = {"copies": len(project.copies) > 0, "checks": api.checks.is_shown}
        lists["first_tab"] = _choose_first_tab(project, api)
        kinds = {"share": is_share(project.about), "regression": api.regression}
        kinds["chats"] = api.listing.layout == CHATS
        html = render("review.html", **values, **kinds, **lists)
        answer = HTMLResponse(html.encode(errors="replace"))
        answer.set_cookie(cookie_name(token), token, httponly=True, samesite="strict")
        return answer

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        judge_process.cancel()

    static = Mount("/static", StaticFiles(directory=Path(__file__).with_name("static")))
    return Starlette(
        routes=[Route("/", page), *api.routes, static],
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
        exception_handlers={
            DrossError: _answer_dross_error,
            HTTPException: _answer_http_error,
            Exception: _answer_unexpected_error,
        },
        lifespan=lifespan,
    )


def _choose_first_tab(project: Project, api: Api) -> str:
    """The list that the page opens with: what there is to do."""
    if len(project.recommended or ()):
        return "plan"
    return "validation" if api.checks.wanted else "harmful"


def _storage_key(project: Project) -> str:
    """The name under which the browser keeps what is not saved yet.

    It depends on the data, too: other data in the same folder have other instances.
    """
    place = os.fsencode(project.folder.resolve()) + project.about["digest"].encode()
    return f"{zlib.crc32(place):08x}"


def serve(
    folder: str | os.PathLike,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    open_browser: bool = True,
    trust_code: Sequence[str] = (),
) -> None:
    """Serve the review page of a project folder until Ctrl-C.

    Arguments:
        folder: What `dross clean` made.
        port: Where to listen; by default a free port.
        host: The address to listen on; by default only this machine can reach it.
        open_browser: Whether to open the page when it is ready.
        trust_code: The `module:function`s that the project was made with and that a judgement from
            the page may run.

    Raises:
        InvalidInput: The port is taken.
        CorruptFile: The folder is not a project.
        InputChanged: Code of `trust_code` has changed since `dross clean` used it.
    """
    with open_listener(host, port, folder) as listener, contextlib.ExitStack() as stack:
        project, token = Project.open(folder), secrets.token_urlsafe(_TOKEN_BYTES)
        if trust_code:
            check_code_unchanged(project, trust_code)
        hosts, limits = known_hosts(host), Limits()
        app = create_app(project, token, hosts=hosts, trust_code=trust_code, limits=limits)
        server = _make_server(app, limits)
        addresses = page_addresses(host, listener, token)
        listed = "\n    ".join(addresses)
        print(
            f"Reviewing {project.about['name']} at\n\n    {listed}\n\n"
            "Every decision is saved at once. Stop with Ctrl-C.",
            flush=True,
        )
        if not is_loopback(host):
            print(
                "Whoever can reach this machine and knows this address can decide too. "
                "The connection is not encrypted.",
                file=sys.stderr,
            )
        if open_browser:
            stack.enter_context(open_in_browser(addresses[0], lambda: server.started))
        with contextlib.suppress(KeyboardInterrupt), _end_like_ctrl_c():
            server.run(sockets=[listener])
    print(f"Stopped. The decisions are in {project.decisions.path}.")


@dataclass(frozen=True)
class RunningServer:
    """Where a server that runs in a thread can be reached."""

    address: str  # with the token
    origin: str
    token: str


@contextlib.contextmanager
def serve_in_thread(
    project: Project,
    *,
    judge_command: Sequence[str] | None = None,
    trust_code: Sequence[str] = (),
    host: str = "127.0.0.1",
    limits: Limits | None = None,
) -> Iterator[RunningServer]:
    """Serve the page on a free port of this machine for as long as the block lasts."""
    token, limits = secrets.token_urlsafe(_TOKEN_BYTES), limits or Limits()
    with open_listener(host, 0, project.folder) as listener:
        app = create_app(
            project,
            token,
            hosts=known_hosts(host),
            judge_command=judge_command,
            trust_code=trust_code,
            limits=limits,
        )
        server = _make_server(app, limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        address = page_addresses(host, listener, token)[0]
        try:
            yield RunningServer(address, address.partition("/?")[0], token)
        finally:
            server.should_exit = True
            thread.join(10)


@contextlib.contextmanager
def _end_like_ctrl_c() -> Iterator[None]:
    """Have SIGTERM end the server as Ctrl-C does: uvicorn would leave temporary files behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _make_server(app: Starlette, limits: Limits) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=BoundedConnection.with_limits(limits),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        proxy_headers=False,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
    )
    return uvicorn.Server(config)


def _answer_dross_error(request: Request, error: Exception) -> Response:
    if isinstance(error, InvalidInput):
        status = 400
    else:
        status = 507 if isinstance(error, DrossError) else 500
    return JSONAnswer({"error": str(error)}, status)


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = _SENTENCES.get(error.status_code, error.detail)
    return JSONAnswer({"error": sentence}, error.status_code, error.headers)


def _answer_unexpected_error(request: Request, error: Exception) -> Response:
    sentence = (
        f"Something in dross broke ({type(error).__name__}). "
        "The terminal shows what; your decisions are safe."
    )
    # This answer does not pass the guard, which adds the headers to all others.
    return JSONAnswer({"error": sentence}, 500, headers=ANSWER_HEADERS)
