"""Standard streams that cannot be written: a full disk, a closed pipe, a stream that is not open.

What a command does is worth more than what it prints, so it continues without printing.
"""

import errno
import io
import os
import select
import sys
from contextlib import suppress
from typing import Any, TextIO


class ForgivingFile(io.FileIO):
    """A descriptor that is written to until it fails once; what comes later is dropped."""

    def __init__(self, descriptor: int):
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None

    def write(self, raw: Any, /) -> int:
        """Write bytes, or drop them; returns how many."""
        written = None
        try:
            while self.failure is None and written is None:
                written = super().write(raw)
                if written is None:  # it does not block, and its reader is slow
                    select.select([], [self], [])
        except OSError as error:
            self.failure = error
        return len(raw) if written is None else written


def open_streams() -> None:
    """Put streams that never raise in place of the standard ones.

    Descriptors that are not open lead nowhere from now on. Otherwise the next file that is opened
    would take their number, and receive what is printed.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest number
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    # a program that has put other streams there keeps them
    if sys.stdout is sys.__stdout__:
        sys.stdout = _open_text(1, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _open_text(2, sys.stderr)


def _open_text(descriptor: int, before: TextIO | None) -> io.TextIOWrapper:
    file = ForgivingFile(descriptor)
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace",  # a terminal may lack letters that data has
        line_buffering=descriptor == 2 or file.isatty(),
    )


def find_failure() -> OSError | None:
    """Why stdout did not take everything that was printed; None if it did.

    Nor is it a failure where the reader of a pipe has read enough and closed it.
    """
    with suppress(ValueError):  # it is closed
        sys.stdout.flush()
    file = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    failure = file.failure if isinstance(file, ForgivingFile) else None
    return None if failure is None or failure.errno == errno.EPIPE else failure
