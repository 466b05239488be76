"""Progress: a bar on a terminal or in a notebook, and numbers to a callback if there is one."""

import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from ._text import printable, say_duration
from .errors import DrossWarning, InvalidInput, first_line

Advance = Callable[[int], None]
"""Called with the amount of work done since the last call."""

_FIRST_LINE = 5.0  # seconds before the first line where there is no terminal
_LONGEST_SILENCE = 120.0  # seconds between two lines

Callback = Callable[[dict[str, float], int], None]


@dataclass
class _Listener:
    callback: Callback
    counts: Counter[str] = field(default_factory=Counter)  # work done so far, by its name
    failed: bool = False


_LISTENER: ContextVar[_Listener | None] = ContextVar("listener", default=None)
_HIDDEN: ContextVar[bool] = ContextVar("hidden", default=False)
_OVERALL: ContextVar["Overall | None"] = ContextVar("overall", default=None)
_INSIDE: ContextVar[bool] = ContextVar("inside", default=False)  # of a bar: it counts alone


@contextmanager
def on_progress(callback: Callback) -> Iterator[None]:
    """Call a function with the progress and the results of whatever dross does inside the block.

    - `progress/WORK`: the share that is done, once for each percent; its step is how much of that
      kind of work was done so far;
    - `scores/lowest`, `mean`, `highest`, and `harmful`, the share below 0, of `Run.influence`;
      their step is the number of steps that the run had taken;
    - `clean/removed`, `relabeled`, and the change in each measure, such as `error`, of
      `dross.clean`;
    - `verdict/improved` (1, -1 if worse, 0 if inconclusive) and for each metric `before`,
      `after`, `random`, `difference` and its interval from `lowest` to `highest`, of `dross.judge`;
      their step is the number of verdicts in the project.

    If the callback raises an exception, a warning shows it, and it is not called again. Work in
    other processes is counted by its pieces.

    Arguments:
        callback: called as `callback(values, step)`, with a dict of names and numbers.

    Raises:
        InvalidInput: it cannot be called.

    Example:
        with dross.on_progress(lambda values, step: mlflow.log_metrics(values, step=step)):
            scores = run.influence(query)
    """
    if not callable(callback):
        raise InvalidInput(
            "on_progress must be a function with the signature callback(values, step), not "
            f"{callback!r:.60}."
        )
    token = _LISTENER.set(_Listener(callback))
    try:
        yield
    finally:
        _LISTENER.reset(token)


def report(values: Mapping[str, float], step: int) -> None:
    """Pass numbers to the callback. Names keep letters, digits, `_`, `-`, `.` and `/`."""
    listener = _LISTENER.get()
    if listener is None or listener.failed:
        return
    plain = {re.sub(r"[^\w./-]+", "_", name): float(value) for name, value in values.items()}
    try:
        listener.callback(plain, step)
    except Exception as error:  # whatever it is, the work is worth more
        listener.failed = True
        warnings.warn(
            f"The on_progress callback failed ({type(error).__name__}: {first_line(error)}). dross "
            "continues without it.",
            DrossWarning,
            stacklevel=2,
        )


@contextmanager
def hide_progress() -> Iterator[None]:
    """Show and report nothing inside the block: several workers cannot share one terminal."""
    token = _HIDDEN.set(True)
    try:
        yield
    finally:
        _HIDDEN.reset(token)


@contextmanager
def progress_bar(
    title: str, total: int, *, show: bool = True, unit: str = "steps"
) -> Iterator[Advance]:
    """Show a bar while the block runs, and yield the function that moves it forward.

    The callback of `on_progress` is called whether the bar is shown or not.

    Arguments:
        title: What is being done, such as "training".
        total: How much there is to do, in units.
        show: Whether to show it. It needs a terminal or a notebook in any case.
        unit: What is counted, for the rate.
    """
    overall = _OVERALL.get()
    is_outermost = not _INSIDE.get()
    listener = None if _HIDDEN.get() else _LISTENER.get()
    name = f"progress/{title}"
    done = 0
    percent = 0

    def advance(amount: int) -> None:
        nonlocal done, percent
        done += amount
        if bar is not None:
            bar.update(amount)
        if overall is not None and is_outermost:
            overall.advance(amount / max(1, total))
        if listener is not None:
            listener.counts[name] += amount
            now = min(100, 100 * done // max(total, 1))
            if now > percent:
                percent = now
                report({name: percent / 100}, listener.counts[name])

    bar = _make_bar(title, total, unit=f" {unit}") if show and overall is None else None
    token = _INSIDE.set(True)
    try:
        yield advance
    finally:
        _INSIDE.reset(token)
        if bar is not None:
            bar.close()


def show_progress(
    title: str, items: Sequence[int], *, show: bool = True, unit: str = "steps"
) -> Iterator[int]:
    """The items one after the other, with a bar that moves after each."""
    with progress_bar(title, len(items), show=show, unit=unit) as advance:
        for item in items:
            yield item
            advance(1)


class Overall:
    """One line for a job of several stages: the bars inside a stage move it and are not shown.

    It shows how long the rest is going to take. The expected times of the stages are corrected by
    the time that was needed so far.

    Arguments:
        title: What is being done.
        expected: How long each stage takes compared with the others, in their order.
        line: Shows it; None shows nothing.
    """

    def __init__(self, title: str, expected: Mapping[str, float], line: "_Line | None"):
        self.title = title
        self.expected = dict(expected)
        self.line = line
        self._stage = ""
        self._bars = 1  # that are expected in the current stage
        self._share = 0.0  # of the current stage that is done
        self._done = 0.0  # expected time of what was done since `_since`, before this stage
        self._since = time.monotonic()
        self._pace: float | None = None  # seconds per unit of expected time, before `_since`
        self._started = self._since

    def begin(self, stage: str, bars: int = 1) -> None:
        """Begin a stage in which `bars` progress bars run."""
        self._done += self.expected.pop(self._stage, 0.0)
        self._stage = stage
        self._bars = max(1, bars)
        self._share = 0.0
        self._show()

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Replace the expected times of stages that are still to come, by seconds."""
        self._done = 0.0
        self.expected = {self._stage: 0.0} | dict(seconds)
        self._since = time.monotonic()
        self._pace = 1.0

    def advance(self, share: float) -> None:
        """Move by a share of what one of the stage's bars stands for."""
        self._share = min(1.0, self._share + share / self._bars)
        self._show()

    @property
    def remaining(self) -> float | None:
        """The seconds that the rest is expected to take; None before anything was measured."""
        in_stage = self._share * self.expected.get(self._stage, 0.0)
        done = self._done + in_stage
        left = sum(self.expected.values()) - in_stage
        # what was expected before counts as much as a tenth of the job
        known = 0.0 if self._pace is None else (done + left) / 10
        if done + known <= 0:
            return None
        elapsed = time.monotonic() - self._since
        return left * (elapsed + known * (self._pace or 0.0)) / (done + known)

    def _show(self) -> None:
        if self.line is not None:
            self.line.show(time.monotonic() - self._started, self.remaining)


class _Line(Protocol):
    """Where the progress of a job is shown."""

    def show(self, elapsed: float, remaining: float | None) -> None: ...

    def close(self) -> None: ...


class _BarLine:
    """A bar on a terminal or in a notebook; it never moves backwards."""

    def __init__(self, bar: Any):
        self.bar = bar

    def show(self, elapsed: float, remaining: float | None) -> None:
        if remaining is None:
            return
        self.bar.postfix = f", about {say_duration(remaining)} left"
        share = elapsed / max(elapsed + remaining, 1e-9)
        self.bar.update(max(0.0, share - self.bar.n))

    def close(self) -> None:
        self.bar.close()


class _PrintedLine:
    """Lines on stderr where nobody looks at a bar, such as in a log file: fewer and fewer."""

    def __init__(self, title: str):
        self.title = title
        self._next = _FIRST_LINE

    def show(self, elapsed: float, remaining: float | None) -> None:
        if remaining is None or elapsed < self._next or remaining < _FIRST_LINE / 5:
            return
        self._next = elapsed + min(elapsed, _LONGEST_SILENCE)
        share = elapsed / (elapsed + remaining)
        print_on_stderr(f"{self.title}: {share:.0%}, about {say_duration(remaining)} left")

    def close(self) -> None:
        pass


@contextmanager
def overall_progress(title: str, expected: Mapping[str, float], *, show: bool) -> Iterator[Overall]:
    """Show one line for several stages, in place of the bars inside of them.

    Arguments:
        title: What is being done.
        expected: How long each stage takes compared with the others, in their order.
        show: Whether to show it: as a bar, or as printed lines where there is no terminal.
    """
    line: _Line | None = None
    if show and not _HIDDEN.get():
        bar = _make_bar(
            title, 1.0, bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
        )
        line = _PrintedLine(title) if bar is None else _BarLine(bar)
    overall = Overall(title, expected, line)
    token = _OVERALL.set(overall)
    try:
        yield overall
    finally:
        _OVERALL.reset(token)
        if line is not None:
            line.close()


def print_on_stderr(text: str) -> None:
    """Print a line; where stderr is closed or full, the work is worth more."""
    with suppress(OSError, ValueError, AttributeError):
        print(printable(text), file=sys.stderr, flush=True)


def announce(text: str, *, show: bool) -> None:
    """Say something before a long operation, where its bar would be shown."""
    if show and _OVERALL.get() is None and _has_reader():
        print_on_stderr(text)


def _make_bar(title: str, total: float, **options: Any) -> Any:
    """A bar of tqdm; None if there is nobody to look at it."""
    if not _has_reader():
        return None
    from tqdm.auto import tqdm

    return tqdm(total=total, desc=printable(title), leave=False, **options)


def _has_reader() -> bool:
    return not _HIDDEN.get() and (_is_notebook() or _is_terminal(sys.stderr))


def _is_terminal(stream: Any) -> bool:
    """Whether somebody looks at a stream; it may be closed, or None in a program without one."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _is_notebook() -> bool:
    """Whether the code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
