"""What the commands print, for people and with `--json`: findings, verdicts, recorded runs."""

import ast
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._text import printable, to_json
from .._version import __version__

if TYPE_CHECKING:
    from ..cleaning.plans import PlanResult
    from ..cleaning.project import Project
    from ..cleaning.verdict import Verdict
    from ..tape.reader import Tape


# options whose names differ from those of the arguments in Python
_NAMES = {"columns": "column", "n_jobs": "jobs", "make": "model", "open_browser": "browser"}
_ARGUMENT = re.compile(r"`(?P<name>[a-z_]+)(=(?P<value>[^`]+))?`")


@cache
def _list_options() -> dict[str, str]:
    """{argument in Python: option} of all commands."""
    from typer.main import get_command

    from .app import app

    commands: Any = get_command(app)
    options = {
        str(option.name): str(option.opts[0])
        for command in commands.commands.values()
        for option in command.params
        if option.param_type_name == "option"
    }
    return options | {argument: options[option] for argument, option in _NAMES.items()}


def name_options(text: str) -> str:
    """The text with options in place of the arguments that messages name in backticks.

    "`lr`" becomes "--lr", "`labels='observed'`" becomes "--labels observed", "`overwrite=True`"
    becomes "--overwrite", and "`columns={'zip': 'category'}`" becomes "--column zip=category".
    Backticks around anything else stay.
    """
    return _ARGUMENT.sub(_name_option, text)


def _name_option(match: re.Match[str]) -> str:
    option = _list_options().get(match["name"])
    if option is None:
        return match.group()
    if match["value"] is None:
        return option
    try:
        value = ast.literal_eval(match["value"])
    except (ValueError, SyntaxError):
        return match.group()
    if value is True:
        return option
    if isinstance(value, dict):
        value = [f"{key}={one}" for key, one in value.items()]
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{option} {shlex.quote(str(one))}" for one in values)


def as_typed(text: str) -> str:
    """A message as a terminal shows it: printable, options for arguments, and paths from here on."""
    return printable(_shorten_paths(name_options(text)))


def _shorten_paths(text: str) -> str:
    """The text with paths in the current folder relative to it."""
    here = str(Path.cwd())
    if here == os.sep or here not in text:
        return text
    return re.sub(rf"(?<![\w./-]){re.escape(here + os.sep)}", "", text)


class PlainConsole(Console):
    """A console that prints texts as they are: names and cells may look like rich's markup."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a text printable on the way; rich calls this for every text that it prints."""
        return super().render_str(as_typed(text), **options)


console = PlainConsole()
Say = Callable[[str], None]


def say(line: str) -> None:
    """Print a line as it is, without highlighting."""
    console.print(line, highlight=False)


def say_path(line: str) -> None:
    """Print a line that holds a path or a command: not wrapped, so that it can be copied."""
    console.print(line, soft_wrap=True)


def choose_say(quiet: bool, as_json: bool) -> Say:
    """Where a command says what it does: nowhere, on stderr, or on stdout."""
    if quiet:
        return lambda line: None
    if as_json:  # stdout is for a machine to read
        return lambda line: PlainConsole(stderr=True).print(line, highlight=False)
    return say


def print_json(values: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(to_json(values, indent=2))


def print_findings(project: "Project") -> None:
    """Print what `dross clean` found, and the commands that come next."""
    from ..cleaning.findings import list_findings

    console.print()
    for sentence in list_findings(project.info, project.table):
        say(sentence)
    folder = project.folder
    quoted = shlex.quote(str(folder))  # to be copied
    labels = project.info.checked_labels
    asks = labels is not None and labels.to_check
    console.print()
    say_path(f"{'Read the report:':<20}{folder / 'report.html'}")
    say_path(f"{'Check the labels:' if asks else 'Review it:':<20}dross review {quoted}")
    if project.recommended is not None or project.current_decisions():
        say_path(f"{'Does it help?':<20}dross judge {quoted}")


def print_verdict(verdict: "Verdict") -> None:
    """Print a verdict: its sentence, its numbers, and its advice."""
    from ..cleaning.measures import tabulate_verdict

    colour = {"improved": "green", "worse": "red"}.get(verdict.verdict, "yellow")
    word = (f"{verdict.verdict.capitalize()}. ", f"bold {colour}")
    console.print(Text.assemble(word, as_typed(verdict.sentence)))
    rows = tabulate_verdict({"metrics": verdict.to_json()["metrics"]})
    table = Table("on all rows, held out in turn" if verdict.nested else "on the test rows")
    for row in rows:
        table.add_column(row.pop("measure"), justify="right")
    for title in rows[0]:
        table.add_row(title, *(row[title] for row in rows))
    console.print(table)
    if verdict.advice:
        say(verdict.advice)


def print_tape(tape: "Tape") -> None:
    """Describe a recorded run that was found intact."""
    from ..tape.reader import describe_tape

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in {**describe_tape(tape), "files": "all intact"}.items():
        table.add_row(Text(name, style="bold"), value)
    console.print(table)


def project_as_json(project: "Project") -> dict[str, Any]:
    """What `dross clean` found, and where the tables are that have a row per instance."""
    from ..cleaning.findings import list_findings

    info = project.info
    folder = project.folder
    recommended = project.recommended
    return {
        "dross": __version__,
        "folder": str(folder),
        "report": str(folder / "report.html"),
        "scores": str(folder / "scores.csv"),
        "kind": info.kind,
        "classes": info.classes,
        "counts": info.counts,
        "runs": info.runs,
        "recommended": None if recommended is None else _plan_as_json(recommended),
        "plans": [_plan_as_json(plan) for plan in project.plans],
        "state": info.recommendation.state,
        "reason": info.recommendation.reason,
        "probably_mislabeled": int((project.table["mislabel_rank"] >= 0).sum()),
        "labels_to_check": [int(id) for id in project.labels_to_check.index],
        "findings": list_findings(info, project.table),
    }


def _plan_as_json(plan: "PlanResult") -> dict[str, Any]:
    return {
        "name": plan.name,
        "what": plan.what,
        "removed": [int(id) for id in plan.removed],
        "relabeled": {str(id): label for id, label in plan.relabeled.items()},
        "figures": {name: asdict(figure) for name, figure in plan.figures.items()},
    }


def verdict_as_json(verdict: "Verdict", folder: Path) -> dict[str, Any]:
    """A verdict as it is in the folder `verdicts`, and where the report is."""
    places = {"folder": str(folder), "report": str(folder / "report.html")}
    return {"dross": __version__, **places, **verdict.to_json()}
