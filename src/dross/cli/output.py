"""What the commands print: verdicts, findings and recorded runs."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._text import printable, to_json

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
    """Print one JSON object on stdout."""
    print(to_json(values, indent=2))


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


def print_tape(tape: "Tape") -> None:
    """Describe a recorded run that was found intact."""
    from ..tape.reader import describe_tape

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in {**describe_tape(tape), "files": "all intact"}.items():
        table.add_row(Text(name, style="bold"), value)
    console.print(table)
