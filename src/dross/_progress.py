"""What is shown while something runs: a bar, and numbers to a tracker if there is one.

The bar has rate and time left. It is shown on a terminal and in a notebook, and nowhere else.
"""

import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from html import escape
from typing import Any, Protocol

from ._text import printable
from .errors import DrossWarning, InvalidInput, first_line

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


Advance = Callable[[int], None]
"""Called with how much more is done since the last call."""

_HIDDEN: ContextVar[bool] = ContextVar("hidden", default=False)
_OVERALL: ContextVar["Overall | None"] = ContextVar("overall", default=None)


class Tracker(Protocol):
    """Anything that keeps numbers of an experiment: this one method."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Keep these values, by name, as those of a step."""
        ...


@dataclass
class _Tracking:
    tracker: Tracker
    counts: Counter[str] = field(default_factory=Counter)  # of each kind of work, what is done
    failed: bool = False


_TRACKING: ContextVar[_Tracking | None] = ContextVar("tracking", default=None)


@contextmanager
def track(tracker: Tracker) -> Iterator[None]:
    """Report what dross does inside the block to a tracker.

    - `progress/WORK`: the share that is done, once for each percent; its step is how much of that
      kind of work was done so far;
    - `scores/lowest`, `mean`, `highest`, and `harmful`, the share below 0, of `Run.influence`;
      their step is the number of steps that the run had taken;
    - `clean/removed`, `relabelled`, and the change of each measure, such as `error`, of
      `dross.clean`;
    - `verdict/improved` (1, -1 if worse, 0 if inconclusive) and for each metric `before`,
      `after`, `random`, `difference` and its interval from `lowest` to `highest`, of `dross.judge`;
      their step is the number of verdicts in the project.

    If the tracker fails, a warning says so, and it is not called again. Work in other processes
    is counted by its pieces.

    Arguments:
        tracker: has a method `log(values, step)`, such as `TensorBoard` and `MLflow` of
            `dross.integrations.trackers`.

    Raises:
        InvalidInput: it has no such method.

    Example:
        with SummaryWriter() as writer, dross.track(TensorBoard(writer)):
            scores = run.influence(query)
    """
    if not callable(getattr(tracker, "log", None)):
        raise InvalidInput(
            f"A {type(tracker).__name__} cannot track: it needs a method log(values, step), like "
            "dross.integrations.trackers.TensorBoard and MLflow."
        )
    before = _TRACKING.set(_Tracking(tracker))
    try:
        yield
    finally:
        _TRACKING.reset(before)


def report(values: Mapping[str, float], step: int) -> None:
    """Tell the tracker, if there is one. Names keep letters, digits, `_`, `-`, `.` and `/`."""
    tracking = _TRACKING.get()
    if tracking is None or tracking.failed:
        return
    named = {re.sub(r"[^\w./-]+", "_", name): float(value) for name, value in values.items()}
    try:
        tracking.tracker.log(named, step)
    except Exception as error:  # whatever it is, the work is worth more
        tracking.failed = True
        warnings.warn(
            f"{type(tracking.tracker).__name__} failed to log ("
            f"{type(error).__name__}: {first_line(error)}). dross goes on without it.",
            DrossWarning,
            stacklevel=2,
        )


def _ignore(amount: int) -> None:
    return None


def _report_progress(title: str, total: int) -> Advance:
    tracking = _TRACKING.get()
    if tracking is None or _HIDDEN.get():
        return _ignore
    name, done, told = f"progress/{title}", 0, 0

    def advance(amount: int) -> None:
        nonlocal done, told
        done += amount
        tracking.counts[name] += amount
        percent = min(100, 100 * done // max(total, 1))
        if percent > told:
            told = percent
            report({name: percent / 100}, tracking.counts[name])

    return advance


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

    A tracker is told as well, whether the bar is shown or not.

    Arguments:
        title: What is being done, such as "training".
        total: How much there is to do, in units.
        show: Whether to show it; it needs a notebook, or a terminal and rich, in any case.
        unit: What is counted, for the rate.
    """
    report_progress = _report_progress(title, total)
    overall = _OVERALL.get()
    with _bar(title, total, show and overall is None, unit) as move:

        def advance(amount: int) -> None:
            move(amount)
            report_progress(amount)
            if overall is not None:
                overall.advance(amount / max(1, total))

        yield advance


@dataclass
class Overall:
    """One bar for a job of several stages: what runs inside of a stage moves it."""

    shares: Mapping[str, float]  # of the whole, by stage, in their order
    move: Advance
    steps: int  # of the bar
    bars: int = 1  # that are expected in the current stage
    share: float = 0.0  # of the current stage
    end: float = 0.0  # of the current stage
    done: float = 0.0
    shown: int = 0

    def begin(self, stage: str, bars: int = 1) -> None:
        """Begin a stage; `bars` is how many progress bars run in it."""
        self._reach(self.end)
        self.share, self.bars = self.shares[stage], max(1, bars)
        self.end += self.share

    def advance(self, part: float) -> None:
        """Move by a part of what one of the stage's bars stands for."""
        self._reach(min(self.end, self.done + part * self.share / self.bars))

    def finish(self) -> None:
        """Everything is done."""
        self._reach(1.0)

    def _reach(self, done: float) -> None:
        self.done = max(self.done, done)
        steps = int(self.done * self.steps)
        if steps > self.shown:
            self.move(steps - self.shown)
            self.shown = steps


_OVERALL_STEPS = 1000


@contextmanager
def overall_progress(title: str, weights: Mapping[str, float], *, show: bool) -> Iterator[Overall]:
    """Show one bar for several stages, in place of the bars inside of them.

    Arguments:
        title: What is being done.
        weights: How long each stage takes compared with the others, in their order.
        show: Whether to show it.
    """
    total = sum(weights.values())
    shares = {stage: weight / total for stage, weight in weights.items()}
    with _bar(title, _OVERALL_STEPS, show, "") as move:
        overall = Overall(shares, move, _OVERALL_STEPS)
        before = _OVERALL.set(overall)
        try:
            yield overall
            overall.finish()
        finally:
            _OVERALL.reset(before)


def show_progress(
    title: str, items: Sequence[int], *, show: bool = True, unit: str = "steps"
) -> Iterator[int]:
    """The items one after the other, with a bar that moves after each."""
    with progress_bar(title, len(items), show=show, unit=unit) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def no_bar() -> Iterator[Advance]:
    """The same, but nothing is shown or reported to a tracker."""
    yield _ignore


@contextmanager
def _bar(title: str, total: int, show: bool, unit: str) -> Iterator[Advance]:
    if not show or _HIDDEN.get():
        yield _ignore
        return
    if in_notebook():
        with notebook_bar(title, total, unit) as advance:
            yield advance
        return
    if not sys.stderr.isatty():
        yield _ignore
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TaskProgressColumn,
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

    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), BarColumn()]
    columns += [MofNCompleteColumn(), Rate()] if unit else [TaskProgressColumn()]
    columns.append(TimeRemainingColumn())
    with Progress(
        *columns, console=Console(stderr=True, markup=False, emoji=False), transient=True
    ) as progress:
        task = progress.add_task(printable(title), total=total)
        yield lambda amount: progress.advance(task, amount)
