"""A progress bar with rate and time left, where somebody is looking; silence elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Advance = Callable[[int], None]
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


def _silent(amount: int) -> None:
    return None


@contextmanager
def silence() -> Iterator[None]:
    """Inside, no bar is shown: one of many workers that share a terminal."""
    before = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(before)


@contextmanager
def bar(what: str, total: int, *, show: bool = True, unit: str = "steps") -> Iterator[Advance]:
    """Yield a function that is told how much more has been done."""
    if not show or _SILENT.get() or not sys.stderr.isatty():
        yield _silent
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
        yield _silent
        return

    class Rate(ProgressColumn):
        def render(self, task):
            return Text("" if task.speed is None else f"{task.speed:,.0f} {unit}/s")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda amount: progress.advance(task, amount)
