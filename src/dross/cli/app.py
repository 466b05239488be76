"""The `dross` command itself: its options, how a function becomes a command, how errors end."""

import inspect
import io
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.text import Text
from typer import Option

from .._environment import prepare_environment
from .._version import __version__
from ..errors import DrossError
from .output import PlainConsole, as_typed, console

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Find the training instances that make a model worse, and test it by retraining.\n\n"
    "Start with [bold]dross demo[/bold]: it needs no data and takes less than a minute.",
    epilog="Exit codes: 0, done (whatever the verdict); 1, an error, explained on stderr; 2, a "
    "wrong command line; 130, stopped with Ctrl-C: run the same command again to continue.",
)
Command = Callable[..., None]


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"dross {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options that every command has; the help of `dross` itself is in `app`."""


def command(group: typer.Typer, *, examples: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Make a function a command. Its docstring is the help, wrapped to fit the terminal."""

    def register(function: Command) -> Command:
        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        paragraphs = [paragraph.replace("\n", " ") for paragraph in paragraphs]
        if examples:
            paragraphs += ["[bold]Examples[/bold]", *examples]
        return group.command(help="\n\n".join(paragraphs))(function)

    return register


def main() -> None:
    """Run the `dross` command; an error that the user can fix is a message, not a traceback."""
    prepare_environment()  # torch is imported later, by the command that needs it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack letters that data have
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except DrossError as error:
        if "--debug" in sys.argv:
            raise
        PlainConsole(stderr=True).print(
            Text.assemble(("Error: ", "bold red"), as_typed(str(error)))
        )
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as ended:  # typer turns Ctrl-C into an exit with 130
        if isinstance(ended, SystemExit) and ended.code != 130:
            raise
        PlainConsole(stderr=True).print(
            "Stopped. What was done is kept: run the same command again to continue."
        )
        sys.exit(130)
