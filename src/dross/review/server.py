"""The review page's server: on this machine only unless asked, and only for who knows the token."""

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
from .judge_process import Judging

_LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}
mimetypes.add_type(
    "text/javascript", ".js"
)  # some systems say text/plain, which browsers refuse for modules


def create_app(
    project: Project, token: str, *, hosts: set[str], judge_command: Sequence[str] | None = None
) -> Starlette:
    """hosts: the names under which the page may be opened. judge_command: what to run instead of `dross judge FOLDER --decisions`."""
    judging = Judging(project.folder, judge_command)
    api = Api(project, judging)
    place = (
        os.fsencode(project.folder.resolve()) + project.about["digest"].encode()
    )  # other data in the same folder have other instances
    key = f"{zlib.crc32(place):08x}"  # under which the browser keeps what is not saved yet

    def page(request: Request) -> Response:
        about = project.about
        answer = HTMLResponse(
            render(
                "review.html", token=token, name=about["name"], key=key, regression=api.regression
            )
        )
        answer.set_cookie(cookie_name(token), token, httponly=True, samesite="strict")
        return answer

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        judging.cancel()

    return Starlette(
        routes=[
            Route("/", page),
            *api.routes,
            Mount("/static", StaticFiles(directory=Path(__file__).with_name("static"))),
        ],
        middleware=[Middleware(Guard, token=token, hosts={host.lower() for host in hosts})],
        exception_handlers={DrossError: _refused, HTTPException: _not_here, Exception: _broken},
        lifespan=lifespan,
    )


def serve(
    folder: str | os.PathLike,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    open_browser: bool = True,
) -> None:
    """Serve the review page of a project folder until Ctrl-C."""
    with _listening(host, port, folder) as listener:
        project, token = Project.open(folder), secrets.token_urlsafe(24)
        server = _server(create_app(project, token, hosts=_names(host)))
        address = _address(host, listener, token)
        print(
            f"Reviewing {project.about['name']} at\n\n    {address}\n\nEvery decision is saved at once. Stop with Ctrl-C.",
            flush=True,
        )
        if not _is_loopback(host):
            print(
                "Whoever can reach this machine and knows this address can decide too. The connection is not encrypted.",
                file=sys.stderr,
            )
        if open_browser:
            threading.Thread(target=_open_when_started, args=(server, address), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    print(f"Stopped. The decisions are in {project.decisions.path}.")


@dataclass(frozen=True)
class Running:
    address: str  # with the token
    origin: str
    token: str


@contextlib.contextmanager
def running(project: Project, *, judge_command: Sequence[str] | None = None) -> Iterator[Running]:
    """The page on a free port of this machine, served by a thread for as long as the block lasts."""
    token = secrets.token_urlsafe(24)
    with _listening("127.0.0.1", 0, project.folder) as listener:
        server = _server(create_app(project, token, hosts=_LOOPBACK, judge_command=judge_command))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        address = _address("127.0.0.1", listener, token)
        try:
            yield Running(address, address.partition("/?")[0], token)
        finally:
            server.should_exit = True
            thread.join(10)


def _server(app: Starlette) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            ws="none",
        )
    )


@contextlib.contextmanager
def _listening(host: str, port: int | None, folder: str | os.PathLike) -> Iterator[socket.socket]:
    """A port of its own for each folder where it is free, so that the browser finds its settings again; else any."""
    usual = 20_000 + zlib.crc32(os.fsencode(Path(folder).resolve())) % 10_000
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for choice in (usual, 0) if port is None else (port,):
        listener = socket.socket(
            family, socket.SOCK_STREAM, socket.IPPROTO_TCP
        )  # named, or asyncio leaves answers waiting 40 ms
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
                f"Port {choice} of {host} cannot be used: {why}. Leave out --port to have a free one chosen."
            ) from None
        with listener:
            yield listener
        return


def _address(host: str, listener: socket.socket, token: str) -> str:
    shown = (
        socket.gethostname()
        if host in ("0.0.0.0", "::", "")
        else f"[{host}]"
        if ":" in host
        else host
    )
    return f"http://{shown}:{listener.getsockname()[1]}/?token={token}"


def _names(host: str) -> set[str]:
    """Under which names a server bound to this address may be opened."""
    if _is_loopback(host):
        return _LOOPBACK
    names = {f"[{host}]" if ":" in host else host, socket.gethostname(), socket.getfqdn()}
    with contextlib.suppress(OSError):
        for *_, place in socket.getaddrinfo(socket.gethostname(), None):
            names.add(f"[{place[0]}]" if ":" in str(place[0]) else str(place[0]))
    return names | _LOOPBACK


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


def _refused(request: Request, error: Exception) -> Response:
    status = (
        400 if isinstance(error, BadInput) else 507 if isinstance(error, StorageFailed) else 500
    )
    return JSONResponse({"error": str(error)}, status)


def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        {
            "error": "There is nothing at this address."
            if error.status_code == 404
            else error.detail
        },
        error.status_code,
    )


def _broken(request: Request, error: Exception) -> Response:
    sentence = f"Something in dross broke ({type(error).__name__}). The terminal shows what; your decisions are safe."
    return JSONResponse(
        {"error": sentence}, 500, headers=ANSWER_HEADERS
    )  # this answer does not pass the guard
