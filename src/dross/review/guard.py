"""Who may ask for what. Every request passes here first.

the Host header   must be one of ours (addresses.py): another site's name that points at this
                  machine (DNS rebinding) gets nothing
a token           in the header X-Dross-Token for all data and every change; another site's page
                  cannot set it
a cookie          for what cannot send headers: the page itself and its pictures.
                  SameSite=Strict, HttpOnly, set when the page is opened with the token in its
                  address
the answers       may load nothing from elsewhere, be framed nowhere and be kept nowhere
"""

import hashlib
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .addresses import KnownHosts
from .answers import JSONAnswer
from .limits import MAX_BODY_BYTES

TOKEN_HEADER = "X-Dross-Token"
_MAX_LENGTH_DIGITS = 12
ANSWER_HEADERS = {
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


class Guard:
    """ASGI middleware that refuses requests from strangers and adds headers to every answer."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: KnownHosts):
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with a refusal, or pass it on."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(ANSWER_HEADERS)
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self.app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        arrived_at, _ = request.scope.get("server") or (None, None)
        if not self.hosts.accept(host, arrived_at):
            problem = f"This is not the host {host[:100]!r}."
            return _error(f"{problem} Open the address that the terminal shows.", 421)
        if request.headers.get("origin", f"http://{host}") != f"http://{host}":
            return _error("A page of another site may not send requests here.", 403)
        if not _is_short_enough(request.headers):
            return _error(f"A request may be at most {MAX_BODY_BYTES // 2**20} MB long.", 413)
        # The path that the routes see. request.url is built from the Host header, which may lie.
        path = request.scope["path"]
        if path.startswith("/static/") or self._has_token(request, path):
            return None
        if path == "/":
            return Response(_TOKEN_NEEDED, 401, media_type="text/plain")
        return _error(_TOKEN_NEEDED, 401)

    def _has_token(self, request: Request, path: str) -> bool:
        given = [request.headers.get(TOKEN_HEADER)]
        if path == "/" or path.startswith("/picture/"):
            given.append(request.cookies.get(cookie_name(self.token)))
        if path == "/":
            given.append(request.query_params.get("token"))
        return any(
            secrets.compare_digest(value.encode(), self.token.encode()) for value in given if value
        )


def cookie_name(token: str) -> str:
    """Return a name of its own for each page: cookies are shared by all ports of a machine."""
    return "dross-" + hashlib.sha256(token.encode()).hexdigest()[:12]


def _error(message: str, status: int) -> Response:
    return JSONAnswer({"error": message}, status)


def _is_short_enough(headers: Headers) -> bool:
    length = headers.get("content-length", "0")
    is_number = length.isascii() and length.isdecimal() and len(length) <= _MAX_LENGTH_DIGITS
    has_length = "transfer-encoding" not in headers and is_number
    return has_length and int(length) <= MAX_BODY_BYTES
