"""The review page's server: by default for this machine only, and only with the token.

a token           in the header X-Dross-Token for all data and every change; a page of another site
                  cannot set it
a cookie          for what a browser asks for without headers of ours: the page itself and its
                  images. SameSite=Strict, HttpOnly, set when the page is opened with the token in
                  its address
the Host header   must be a name of this machine: a name of another site that is made to point here
                  (DNS rebinding) gets nothing. A page that listens beyond this machine cannot know
                  the names that lead to it; there a stranger's name has neither token nor cookie
the answers       may load nothing from elsewhere, be framed nowhere and be kept nowhere
"""

import contextlib
import ipaddress
import mimetypes
import os
import secrets
import socket
import sys
import threading
import webbrowser
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .._text import render
from ..cleaning.findings import describe_doubted
from ..cleaning.project import Project
from ..errors import DrossError, InvalidInput
from .api import Api, JSONAnswer
from .judge_process import JudgeProcess

TOKEN_HEADER = "X-Dross-Token"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # and how this machine calls itself
_MAX_HEAD_BYTES = 16 * 2**10
_MAX_CONNECTIONS = 200
_ANSWER_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_TOKEN_NEEDED = (
    "This page needs the token that dross printed when it started. "
    "Open the address that the terminal shows."
)
# Some systems say text/plain, which browsers refuse for modules.
mimetypes.add_type("text/javascript", ".js")


def _new_token() -> str:
    return secrets.token_urlsafe(24)


@dataclass
class Keys:
    """What opens a page: the token, and a key that opens it once.

    The browser is started with the second: every user of a machine can read its command line.
    """

    token: str = field(default_factory=_new_token)
    once: str | None = field(default_factory=_new_token)

    @property
    def cookie(self) -> str:
        """The name of the cookie: each page has its own, as all ports of a machine share cookies."""
        return f"dross-{self.token[:8]}"

    def open(self, sent: str | None, *, may_be_once: bool = False) -> bool:
        """Whether this is the token, or the key that opens once, which is then used up."""
        if _same(sent, self.token):
            return True
        if may_be_once and _same(sent, self.once):
            self.once = None
            return True
        return False


def _same(sent: str | None, key: str | None) -> bool:
    if not sent or not key:
        return False
    return secrets.compare_digest(sent.encode(), key.encode())


class Guard:
    """ASGI middleware: nothing without a key, and headers that lock every answer down."""

    def __init__(self, app: ASGIApp, *, keys: Keys):
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with a refusal, or pass it on."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_locked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_ANSWER_HEADERS)
            await send(message)

        # The path that the routes see. request.url is built from the Host header, which may lie.
        path = scope["path"]
        if path.startswith("/static/") or self._has_key(Request(scope), path):
            answer = self.app
        elif path == "/":
            answer = PlainTextResponse(_TOKEN_NEEDED, 401)
        else:
            answer = JSONAnswer({"error": _TOKEN_NEEDED}, 401)
        await answer(scope, receive, send_locked)

    def _has_key(self, request: Request, path: str) -> bool:
        keys = self.keys
        if keys.open(request.headers.get(TOKEN_HEADER)):
            return True
        is_page = path == "/"
        if (is_page or path.startswith("/image/")) and keys.open(request.cookies.get(keys.cookie)):
            return True
        return is_page and keys.open(request.query_params.get("token"), may_be_once=True)


def create_app(
    project: Project,
    keys: Keys,
    *,
    host: str = "127.0.0.1",
    judge_command: Sequence[str] | None = None,
    trust_code: Sequence[str] = (),
) -> Starlette:
    """Return the page and its API as an ASGI application.

    Arguments:
        project: What is reviewed.
        keys: What a browser must know to get anything.
        host: The address that the server listens on.
        judge_command: What to run instead of `dross judge FOLDER --decisions`.
        trust_code: The `module:function`s that a judgment may import.
    """
    judge_process = JudgeProcess(project.folder, judge_command, trust_code)
    api = Api(project, judge_process)
    storage_key = _storage_key(project)
    stands_out = (project.table["mislabel_rank"] >= 0).any()

    def page(request: Request) -> Response:
        html = render(
            "review.html",
            token=keys.token,
            name=project.info.name,
            key=storage_key,
            copies=len(project.copies) > 0,
            checks=api.checks.is_shown,
            doubted=describe_doubted(project.info) if stands_out else None,
            first_tab=_choose_first_tab(project, api),
            share=project.info.is_share,
            regression=api.regression,
            chats=project.modality.has_tokens,
        )
        answer = HTMLResponse(html.encode(errors="replace"))
        answer.set_cookie(keys.cookie, keys.token, httponly=True, samesite="strict")
        return answer

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        judge_process.cancel()

    static = Mount("/static", StaticFiles(directory=Path(__file__).with_name("static")))
    hosts = ["127.0.0.1", "localhost", "[::1]", host] if _is_loopback(host) else ["*"]
    return Starlette(
        routes=[Route("/", page), *api.routes, static],
        middleware=[
            Middleware(Guard, keys=keys),
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
        ],
        exception_handlers={
            DrossError: _answer_dross_error,
            HTTPException: _answer_http_error,
            Exception: _answer_unexpected_error,
        },
        lifespan=lifespan,
    )


def _choose_first_tab(project: Project, api: Api) -> str:
    """The list that the page opens with: the one with work to do."""
    if len(project.recommended or ()):
        return "plan"
    return "validation" if api.checks.wanted else "harmful"


def _storage_key(project: Project) -> str:
    """The name under which the browser keeps what is not saved yet.

    It depends on the data, too: other data in the same folder have other instances.
    """
    place = os.fsencode(project.folder.resolve()) + project.info.digest.encode()
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
        folder: A project, or the folder that `dross clean` created.
        port: Where to listen; by default a free port.
        host: The address to listen on; by default only this machine can reach it.
        open_browser: Whether to open the page when it is ready.
        trust_code: The `module:function`s that the project was made with and that a judgment from
            the page may run.

    Raises:
        InvalidInput: The port is taken, or the folder is not a project.
        CorruptFile: A file of the project is damaged.
    """
    project = Project.open(folder)
    keys = Keys()
    with listen(host, port, project.folder) as listener:
        server = make_server(create_app(project, keys, host=host, trust_code=trust_code))
        addresses = _addresses(host, listener)
        listed = "\n    ".join(f"{address}?token={keys.token}" for address in addresses)
        print(
            f"Reviewing {project.info.name} at\n\n    {listed}\n\n"
            "Every decision is saved immediately. Stop with Ctrl-C.",
            flush=True,
        )
        if not _is_loopback(host):
            print(
                "Anyone who can reach this machine and knows this address can make decisions, "
                "too. The connection is not encrypted.",
                file=sys.stderr,
            )
        if open_browser:  # in a thread: a browser in the terminal would keep the server waiting
            opening = (f"{addresses[0]}?token={keys.once}",)
            threading.Thread(target=webbrowser.open, args=opening, daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    print(f"Stopped. The decisions are in {project.decisions.path}.")


def listen(host: str, port: int | None, folder: Path) -> socket.socket:
    """Listen on the port, or else on one that belongs to the folder, or else on any free one.

    The browser keeps its settings by port, so a folder has the same port every time.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port is None:
        port = 0
        usual = 20_000 + zlib.crc32(os.fsencode(folder.resolve())) % 10_000
        with contextlib.suppress(OSError):
            return _open_listener(family, host, usual)
    try:
        return _open_listener(family, host, port)
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"Port {port} of {host} cannot be used: {getattr(error, 'strerror', None) or error}. "
            "Leave out --port to use any free port."
        ) from None


def _open_listener(family: int, host: str, port: int) -> socket.socket:
    listener = socket.create_server((host, port), family=family, backlog=128)
    # asyncio sets it only for sockets that name their protocol; without it answers wait 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _addresses(host: str, listener: socket.socket) -> list[str]:
    """The addresses to show, the one for a browser on this machine first."""
    names = [f"[{host}]" if ":" in host else host]
    if host in _EVERYWHERE:
        names = [_EVERYWHERE[host], socket.gethostname()]
    port = listener.getsockname()[1]
    return [f"http://{name}:{port}/" for name in names]


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def make_server(app: Starlette) -> uvicorn.Server:
    """Return a server with limits on what one client can take up."""
    config = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        limit_concurrency=_MAX_CONNECTIONS,
        proxy_headers=False,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
    )
    return uvicorn.Server(config)


def _answer_dross_error(request: Request, error: Exception) -> Response:
    status = 500
    if isinstance(error, InvalidInput):
        status = 400
    elif type(error) is DrossError:
        status = 507  # outside of dross: the disk is full
    return JSONAnswer({"error": str(error)}, status)


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = f"{error.detail.removesuffix('.')}."  # Starlette's own have no full stop
    return JSONAnswer({"error": sentence}, error.status_code, error.headers)


def _answer_unexpected_error(request: Request, error: Exception) -> Response:
    sentence = (
        f"An internal error occurred in dross ({type(error).__name__}). The terminal shows the "
        "details; your decisions are safe."
    )
    # This answer does not pass the guard, which adds the headers to all others.
    return JSONAnswer({"error": sentence}, 500, headers=_ANSWER_HEADERS)
