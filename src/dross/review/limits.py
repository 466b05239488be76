"""How long and how much a connection may be waited for.

uvicorn waits forever for the rest of a request: whoever opens connections and sends nothing, or one
byte at a time, keeps them all. Here every wait for the other side has a limit, however little
arrives meanwhile, and so does the number of connections. When that is reached, the connection that
has kept us waiting longest is dropped, so that silent ones lock nobody out.
"""

import asyncio
from dataclasses import dataclass
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_BODY_BYTES = 8 * 2**20  # decisions about a million instances
MAX_HEAD_BYTES = 16 * 2**10
_SECONDS_TO_SAY_SO = 1.0  # whoever reads the body has noticed first, and answers 408
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Limits:
    """What one page grants those who connect to it.

    Arguments:
        head_seconds: Until a request's line and headers are there; also between two requests.
        body_seconds: Until the rest of a request is there.
        answer_seconds: Until what was answered is taken.
        connections: How many there may be at once.
    """

    head_seconds: float = 10.0
    body_seconds: float = 60.0
    answer_seconds: float = 60.0
    connections: int = 100


class BoundedConnection(H11Protocol):
    """A connection that is dropped when the other side keeps it waiting for too long."""

    limits: ClassVar[Limits] = Limits()
    _awaited: str | None = None  # head, body or answer; None while we are the ones who work
    _since = 0.0
    _deadline: asyncio.TimerHandle | None = None

    @classmethod
    def with_limits(cls, limits: Limits) -> "type[BoundedConnection]":
        """Return this class with other limits."""
        return type(cls.__name__, (cls,), {"limits": limits})

    @property
    def waiting_since(self) -> float | None:
        """Since when the other side has kept us waiting; None if it does not."""
        return None if self._awaited is None else self._since

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection, in the place of another one where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections and not self._displace_another():
            transport.write(_BUSY)
            transport.close()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._await(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take some bytes of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Wait until what was answered is taken."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Go on answering."""
        super().resume_writing()
        self._watch()

    def _displace_another(self) -> bool:
        others = (other for other in self.connections if isinstance(other, BoundedConnection))
        waiting = [(since, other) for other in others if (since := other.waiting_since) is not None]
        if not waiting:
            return False
        _, longest = min(waiting, key=lambda entry: entry[0])
        self.connections.discard(longest)  # it is told only later that it is lost
        longest._await(None)
        longest.transport.abort()
        return True

    def _watch(self) -> None:
        """Set the deadline for what is awaited now; bytes that arrive do not put it off."""
        reading = self.conn.their_state is h11.SEND_BODY
        answering = self.cycle is not None and not self.cycle.response_complete
        if self.flow.write_paused:
            self._await("answer")
        elif reading:
            self._await("body")
        elif answering and not self.transport.is_closing():
            self._await(None)
        else:  # a request has not begun, or only closing is left
            self._await("head")

    def _await(self, what: str | None) -> None:
        if what == self._awaited:
            return
        self._awaited, self._since = what, self.loop.time()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if what is not None:
            seconds = getattr(self.limits, f"{what}_seconds")
            if what == "body":
                seconds += _SECONDS_TO_SAY_SO
            self._deadline = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self._awaited != "answer" and self.transport.get_write_buffer_size():
            self._await("answer")  # the answer before is still on its way
            self.transport.close()  # once that is out; nothing is read any more
        else:
            self.transport.abort()
