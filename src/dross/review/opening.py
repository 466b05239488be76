"""Opening the browser without telling everybody the token.

What a program is started with can be read by every user of a machine (`ps`), so the browser is not
given the page's address. It is given the address of a small file that leads there: in a new folder
that only this user may enter, as a file that only this user may read, gone when the server ends.
Jupyter does the same. A short-lived code in the command line would need no file, but whoever
watches `ps` can be faster with it than the browser; and it would make the printed address, which
may be opened by hand, in several browsers and by colleagues, good for one visit only.

A browser that may not read temporary files (some are confined by their packaging) shows that the
file is not found: then the printed address must be opened by hand.
"""

import contextlib
import os
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path

from .._text import render


@contextlib.contextmanager
def private_doorway(address: str) -> Iterator[str]:
    """Yield the address of a file that leads to `address`, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="dross-", ignore_cleanup_errors=True) as folder:
        path = Path(folder).resolve() / "review.html"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(render("doorway.html", address=address).encode())
        yield path.as_uri()


@contextlib.contextmanager
def open_in_browser(address: str, ready: Callable[[], bool]) -> Iterator[None]:
    """Open an address in the user's browser once `ready()` says so, while the block runs."""
    with contextlib.ExitStack() as stack:
        try:
            doorway = stack.enter_context(private_doorway(address))
        except OSError as error:
            print(
                f"The browser is not opened: no temporary file can be written ({error.strerror}). "
                "Open the address above by hand.",
                file=sys.stderr,
            )
            yield
            return
        ended = threading.Event()
        stack.callback(ended.set)
        threading.Thread(target=_open_when, args=(ready, ended, doorway), daemon=True).start()
        yield


def _open_when(ready: Callable[[], bool], ended: threading.Event, doorway: str) -> None:
    while not ready():
        if ended.is_set():
            return
        time.sleep(0.05)
    webbrowser.open(doorway)
