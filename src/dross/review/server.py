"""The review page's server: for this machine only by default, and only for who has the token."""

import contextlib
import ipaddress
import mimetypes
import os
import secrets
import socket
import sys
import threading
import time
import webbrowser
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ..cleanse.project import Project
from ..errors import BadInput, DrossError, StorageFailed
from ..support.html import render
from .api import Api
from .guard import ANSWER_HEADERS, Guard, cookie_name
from .judge_process import JudgeProcess

_LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}
_TOKEN_BYTES = 24
# Some systems say text/plain, which browsers refuse for modules.
mimetypes.add_type("text/javascript", ".js")


def create_app(
    project: Project, token: str, *, hosts: set[str], judge_command: Sequence[str] | None = None
) -> Starlette:
    """Return the page and its API as an ASGI application.

    Arguments:
        project: What is reviewed.
        token: What a browser must know to get anything.
        hosts: The names under which the page may be opened.
        judge_command: What to run instead of `dross judge FOLDER --decisions`.
    """
    judge_process = JudgeProcess(project.folder, judge_command)
    api = Api(project, judge_process)
    storage_key = _storage_key(project)

    def page(request: Request) -> Response:
        values = {"token": token, "name": project.about["name"], "key": storage_key}
        answer = HTMLResponse(render("review.html", **values, regression=api.regression))
        answer.set_cookie(cookie_name(token), token, httponly=True, samesite="strict")
        return answer

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        judge_process.cancel()

    static = Mount("/static", StaticFiles(directory=Path(__file__).with_name("static")))
    return Starlette(
        routes=[Route("/", page), *api.routes, static],
        middleware=[Middleware(Guard, token=token, hosts={host.lower() for host in hosts})],
        exception_handlers={
            DrossError: _answer_dross_error,
            HTTPException: _answer_http_error,
            Exception: _answer_unexpected_error,
        },
        lifespan=lifespan,
    )


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
) -> None:
    """Serve the review page of a project folder until Ctrl-C.

    Arguments:
        folder: What `dross clean` made.
        port: Where to listen; by default a free port.
        host: The address to listen on; by default only this machine can reach it.
        open_browser: Whether to open the page when it is ready.

    Raises:
        BadInput: The port is taken.
        TapeDamaged: The folder is not a project.
    """
    with _open_listener(host, port, folder) as listener:
        project, token = Project.open(folder), secrets.token_urlsafe(_TOKEN_BYTES)
        server = _make_server(create_app(project, token, hosts=_allowed_hosts(host)))
        address = _page_address(host, listener, token)
        print(
            f"Reviewing {project.about['name']} at\n\n    {address}\n\n"
            "Every decision is saved at once. Stop with Ctrl-C.",
            flush=True,
        )
        if not _is_loopback(host):
            print(
                "Whoever can reach this machine and knows this address can decide too. "
                "The connection is not encrypted.",
                file=sys.stderr,
            )
        if open_browser:
            threading.Thread(target=_open_when_started, args=(server, address), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
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
    project: Project, *, judge_command: Sequence[str] | None = None
) -> Iterator[RunningServer]:
    """Serve the page on a free port of this machine for as long as the block lasts."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with _open_listener("127.0.0.1", 0, project.folder) as listener:
        app = create_app(project, token, hosts=_LOOPBACK, judge_command=judge_command)
        server = _make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        address = _page_address("127.0.0.1", listener, token)
        try:
            yield RunningServer(address, address.partition("/?")[0], token)
        finally:
            server.should_exit = True
            thread.join(10)


def _make_server(app: Starlette) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        ws="none",
    )
    return uvicorn.Server(config)


@contextlib.contextmanager
def _open_listener(
    host: str, port: int | None, folder: str | os.PathLike
) -> Iterator[socket.socket]:
    """Listen on the port, or else on one that belongs to the folder, or else on any free one.

    The browser keeps its settings by port, so a folder has the same port every time.
    """
    usual = 20_000 + zlib.crc32(os.fsencode(Path(folder).resolve())) % 10_000
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for choice in (usual, 0) if port is None else (port,):
        # asyncio sends at once only if the socket names its protocol; else answers wait 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, choice))
            listener.listen(128)
        except (OSError, OverflowError) as error:
            listener.close()
            if choice == usual and port is None:
                continue
            why = getattr(error, "strerror", None) or str(error)
            raise BadInput(
                f"Port {choice} of {host} cannot be used: {why}. "
                "Leave out --port to have a free one chosen."
            ) from None
        with listener:
            yield listener
        return


def _page_address(host: str, listener: socket.socket, token: str) -> str:
    is_any = host in ("0.0.0.0", "::", "")
    name = socket.gethostname() if is_any else _in_address(host)
    return f"http://{name}:{listener.getsockname()[1]}/?token={token}"


def _allowed_hosts(host: str) -> set[str]:
    """The names under which a server bound to this address may be opened."""
    if _is_loopback(host):
        return _LOOPBACK
    names = {_in_address(host), socket.gethostname(), socket.getfqdn()}
    with contextlib.suppress(OSError):
        for *_, place in socket.getaddrinfo(socket.gethostname(), None):
            names.add(_in_address(str(place[0])))
    return names | _LOOPBACK


def _in_address(host: str) -> str:
    """An IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _open_when_started(server: uvicorn.Server, address: str) -> None:
    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.05)
    webbrowser.open(address)


def _answer_dross_error(request: Request, error: Exception) -> Response:
    if isinstance(error, BadInput):
        status = 400
    else:
        status = 507 if isinstance(error, StorageFailed) else 500
    return JSONResponse({"error": str(error)}, status)


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    missing = error.status_code == 404
    sentence = "There is nothing at this address." if missing else error.detail
    return JSONResponse({"error": sentence}, error.status_code)


def _answer_unexpected_error(request: Request, error: Exception) -> Response:
    sentence = (
        f"Something in dross broke ({type(error).__name__}). "
        "The terminal shows what; your decisions are safe."
    )
    # This answer does not pass the guard, which adds the headers to all others.
    return JSONResponse({"error": sentence}, 500, headers=ANSWER_HEADERS)
