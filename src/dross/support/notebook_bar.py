"""A progress bar in a notebook: what is being done, how much of it, and the time left.

It is one line of HTML that is updated in place. No widgets are needed.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from .printable import printable

_SECONDS_BETWEEN_UPDATES = 0.2


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def notebook_bar(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show a bar below the cell while the block runs, and yield the function that moves it.

    Arguments:
        title: What is being done.
        total: How much there is to do, in units.
        unit: What is counted.
    """
    from IPython.display import display  # type: ignore[import-not-found]

    started = updated = time.monotonic()
    done = 0
    handle: Any = display(_bundle(title, 0, total, unit, 0.0), raw=True, display_id=True)

    def advance(amount: int) -> None:
        nonlocal done, updated
        done += amount
        now = time.monotonic()
        if now - updated >= _SECONDS_BETWEEN_UPDATES:
            updated = now
            handle.update(_bundle(title, done, total, unit, now - started), raw=True)

    try:
        yield advance
    finally:  # as in a terminal, nothing is left
        handle.update({"text/plain": "", "text/html": ""}, raw=True)


def _bundle(title: str, done: int, total: int, unit: str, seconds: float) -> dict[str, str]:
    line = describe_progress(title, done, total, unit, seconds)
    share = min(1.0, done / max(total, 1))
    html = (
        f'<progress value="{share:.3f}" max="1" aria-label="{escape(printable(title))}">'
        f"</progress> {escape(line)}"
    )
    return {"text/plain": line, "text/html": html}


def describe_progress(title: str, done: int, total: int, unit: str, seconds: float) -> str:
    """One line: `training: 120 of 400 steps, 35 steps/s, 0:00:08 left`."""
    line = f"{printable(title)}: {done:,} of {total:,} {unit}"
    if not done or seconds <= 0:
        return line
    rate = done / seconds
    left = max(0, round((total - done) / rate))
    speed = f"{rate:,.0f}" if rate >= 1 else f"{rate:.2g}"
    return f"{line}, {speed} {unit}/s, {_clock(left)} left"


def _clock(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
