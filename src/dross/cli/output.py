"""What the commands print: verdicts, findings, tables of results, and recorded runs."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._text import printable

if TYPE_CHECKING:
    from ..cleaning.project import Project
    from ..cleaning.verdict import Verdict
    from ..tape.reader import Tape


class PlainConsole(Console):
    """A console that prints texts as they are: names and cells may look like rich's markup."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a text printable on the way; rich calls this for every text that it prints."""
        return super().render_str(printable(text), **options)


console = PlainConsole()
Say = Callable[[str], None]


def say(line: str) -> None:
    """Print a line as it is, without highlighting."""
    console.print(line, highlight=False)


def say_to_stderr(line: str) -> None:
    """The same on stderr, where stdout is for a machine to read."""
    PlainConsole(stderr=True).print(line, highlight=False)


def choose_say(quiet: bool, as_json: bool) -> Say:
    """Where a command says what it does: nowhere, on stderr, or on stdout."""
    if quiet:
        return lambda line: None
    return say_to_stderr if as_json else say


def print_json(values: dict[str, Any]) -> None:
    """Print one JSON object on stdout, with null for numbers that are not finite."""
    sys.stdout.write(json.dumps(_finite(values), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_findings(project: "Project") -> None:
    """Print what `dross clean` found, and the commands that come next."""
    from ..cleaning.findings import list_findings

    console.print()
    for sentence in list_findings(project.about, project.instances):
        say(sentence)
    folder = project.folder
    asks = project.about.get("checked_labels", {}).get("to_check", 0)
    steps = [
        ("Read the report:", folder / "report.html"),
        ("Check the labels:" if asks else "Look and decide:", f"dross review {folder}"),
    ]
    if project.recommended is not None or project.current_decisions():
        steps.append(("Does it help?", f"dross judge {folder}"))
    lines = [f"{what:<20}{how}" for what, how in steps]
    console.print("\n" + "\n".join(lines), soft_wrap=True)


def print_verdict(verdict: "Verdict") -> None:
    """Print a verdict: its sentence, its numbers, and what would settle it."""
    colour = {"improved": "green", "worse": "red"}.get(verdict.verdict, "yellow")
    word = (f"{verdict.verdict.capitalize()}. ", f"bold {colour}")
    console.print(Text.assemble(word, printable(verdict.sentence)))
    table = Table("on all rows, held out in turn" if verdict.nested else "on the test rows")
    columns = []
    for name, measure in verdict.metrics.items():
        is_error = name == "error"
        table.add_column("error, %" if is_error else name, justify="right")
        columns.append(_verdict_cells(measure, *((100, 2) if is_error else (1, 4))))
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    console.print(table)
    if verdict.settle:
        say(verdict.settle)


def _verdict_cells(measure: Any, scale: int, digits: int) -> dict[str, str]:
    number = lambda value, sign="": f"{scale * value:{sign}.{digits}f}"
    low, high = measure.interval
    return {
        "before": number(_mean(measure.before)),
        "after": number(_mean(measure.after)),
        "change": number(measure.difference, "+"),
        "95 % interval": f"{number(low, '+')} to {number(high, '+')}",
        "change, as many random edits": number(measure.random_difference, "+"),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def print_table1(rows: list[dict], repetitions: int) -> None:
    """Print our means beside the paper's."""
    from ..reproduce import table1

    lines = []
    for row in rows:
        if row["truth"] == "change":
            line = [row["cell"], table1.METHODS[row["method"]]]
            for metric in ("tau", "jaccard"):
                paper = table1.paper_value(row["cell"], row["method"], metric)
                line.append(f"{row[metric]:.2f} ({row[metric + '_std']:.2f})")
                line.append("" if paper is None else f"{paper:.2f}")
            lines.append(line)
    title = f"{repetitions} repetitions: mean (std), and the paper's mean"
    _print_table(title, ["cell", "estimate"], ["tau", "paper", "Jaccard", "paper"], lines)


def print_test_errors(
    rows: list[dict], summary: list[dict], ways: list[str], methods: list[str]
) -> None:
    """Print the test error for each way to retrain, each method and each number removed.

    Arguments:
        rows: One for each draw, way, method and number.
        summary: Their means over the draws.
        ways: The ways to retrain to show, in order.
        methods: The methods to show, in order.
    """
    errors = {
        (row["retrain"], row["method"], row["m"]): f"{row['error']:.2%}"
        for row in summary
        if row["method"] in methods and row["retrain"] in ways
    }
    sizes = sorted({size for _, _, size in errors})
    lines = [
        [way, method, *(errors.get((way, method, size), "") for size in sizes)]
        for way in ways
        for method in methods
    ]
    kept = _mean([row["error_kept"] for row in rows])
    title = f"Test error after removing m, mean over draws; nothing removed: {kept:.2%}"
    _print_table(title, ["retrain", "method"], [str(size) for size in sizes], lines)


def _print_table(
    title: str, names: list[str], numbers: list[str], lines: Iterable[Sequence[str]]
) -> None:
    """`names` are the headers of the columns on the left, `numbers` of those on the right."""
    table = Table(title=title, title_justify="left")
    for header in names:
        table.add_column(header, justify="left")
    for header in numbers:
        table.add_column(header, justify="right")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def print_tape(tape: "Tape") -> None:
    """Describe a recorded run that was found intact."""
    from ..tape.reader import describe_tape

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in {**describe_tape(tape), "files": "all intact"}.items():
        table.add_row(Text(name, style="bold"), value)
    console.print(table)
