"""Where the page listens, and under which addresses it may be opened.

Another site can make its own name point at this machine (DNS rebinding) and then counts as the same
site as our page. So a *name* in a request's Host header must be one of ours. An address in numbers
is different: nobody can make it point elsewhere. The one at which a request arrived is
always ours. A page that listens beyond this machine may be opened under any: it cannot know the
addresses that a router, a cloud or a container's host forwards to it.
"""

import contextlib
import ipaddress
import os
import re
import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidInput

_ANY = ("0.0.0.0", "::", "")
_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class KnownHosts:
    """The hosts under which a page may be opened.

    Arguments:
        names: In lower case; an IPv6 address stands in brackets.
        any_address: Whether it may also be opened under any address in numbers.
    """

    names: frozenset[str]
    any_address: bool = False

    def accept(self, header: str, arrived_at: str | None) -> bool:
        """Whether this Host header is right for a request that arrived at this address of ours."""
        name = _host_name(header)
        if name in self.names:
            return True
        address = _read_address(name)
        if address is None:
            return False
        return self.any_address or address == _read_address(arrived_at or "")


LOOPBACK = KnownHosts(frozenset({"127.0.0.1", "localhost", "[::1]"}))


def known_hosts(host: str) -> KnownHosts:
    """Return the hosts under which a page that listens on this one may be opened."""
    if is_loopback(host):
        return LOOPBACK
    names = {_in_address(host), socket.gethostname(), socket.getfqdn()} - {""}
    return KnownHosts(LOOPBACK.names | {name.lower() for name in names}, any_address=True)


def page_addresses(host: str, listener: socket.socket, token: str) -> list[str]:
    """Return the addresses to show, the one for a browser on this machine first."""
    names = [_in_address(host)]
    if host in _ANY:
        ipv6 = listener.family == socket.AF_INET6
        names = ["[::1]" if ipv6 else "127.0.0.1", socket.gethostname(), *_outward_addresses()]
    port = listener.getsockname()[1]
    return [f"http://{name}:{port}/?token={token}" for name in dict.fromkeys(names)]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@contextlib.contextmanager
def open_listener(
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
            raise InvalidInput(
                f"Port {choice} of {host} cannot be used: {why}. "
                "Leave out --port to have a free one chosen."
            ) from None
        with listener:
            yield listener
        return


def _outward_addresses() -> list[str]:
    """The address that other machines see, where this machine knows it. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # of a network that exists in documents only
        return [str(probe.getsockname()[0])]
    return []


def _in_address(host: str) -> str:
    """An IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host else host


def _host_name(header: str) -> str:
    """127.0.0.1:8000 -> 127.0.0.1, [::1]:8000 -> [::1]; "" for anything else."""
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/?#@\s]+)(:[0-9]{1,5})?", header)
    return found[1].lower() if found else ""


def _read_address(name: str) -> _IPAddress | None:
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    # A socket that listens for both kinds writes 10.0.0.1 as ::ffff:10.0.0.1.
    return getattr(address, "ipv4_mapped", None) or address
