"""A progress bar with rate and time left on a terminal; nothing where stderr is no terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .printable import printable

Advance = Callable[[int], None]
"""Called with how much more is done since the last call."""

_HIDDEN: ContextVar[bool] = ContextVar("hidden", default=False)


def _ignore(amount: int) -> None:
    return None


@contextmanager
def hide_progress() -> Iterator[None]:
    """Show no bar inside the block: several workers cannot share one terminal."""
    before = _HIDDEN.set(True)
    try:
        yield
    finally:
        _HIDDEN.reset(before)


@contextmanager
def progress_bar(
    title: str, total: int, *, show: bool = True, unit: str = "steps"
) -> Iterator[Advance]:
    """Show a bar while the block runs, and yield the function that moves it forward.

    Arguments:
        title: What is being done, such as "training".
        total: How much there is to do, in units.
        show: Whether to show it; it needs a terminal and rich in any case.
        unit: What is counted, for the rate.
    """
    if not show or _HIDDEN.get() or not sys.stderr.isatty():
        yield _ignore
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text
    except ImportError:  # the core runs on machines that have torch and little else
        yield _ignore
        return

    class Rate(ProgressColumn):
        def render(self, task):
            return Text("" if task.speed is None else f"{task.speed:,.0f} {unit}/s")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=Console(stderr=True, markup=False, emoji=False), transient=True
    ) as progress:
        task = progress.add_task(printable(title), total=total)
        yield lambda amount: progress.advance(task, amount)
