"""The `dross` command itself: its options, how a function becomes a command, how errors end."""

import inspect
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
from .streams import find_failure, open_streams

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Find the training instances that make a model worse, and test by retraining whether "
    "relabeling or removing them helps.\n\n"
    "Start with [bold]dross demo[/bold]: it needs no data and takes about a minute.",
    epilog="Exit codes: 0: success, whatever the verdict. 1: an error, explained on stderr. 2: a "
    "wrong option or argument. 3: worse, with dross compare --fail-if-worse. 130: stopped with Ctrl-C; run the same command again to continue.",
)
Command = Callable[..., None]


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"dross {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, Option("--debug", help="Show the full traceback of an error.")] = False,
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
    open_streams()
    code = _run_command()
    failure = find_failure()
    if failure is not None and not code:
        _print_error(
            f"The output cannot be printed: {failure.strerror}. The command itself has completed."
        )
        code = 1
    sys.exit(code)


def _run_command() -> str | int | None:
    """Run the command that was typed; how the process is to end."""
    try:
        app()
    except DrossError as error:
        if "--debug" in sys.argv:
            raise
        _print_error(str(error))
        return 1
    except OSError as error:  # of the machine, not of dross
        if "--debug" in sys.argv:
            raise
        _print_error(f"{error.filename or 'The command failed'}: {error.strerror or error}.")
        return 1
    except (KeyboardInterrupt, SystemExit) as ended:  # typer turns Ctrl-C into an exit with 130
        if isinstance(ended, SystemExit) and ended.code != 130:
            return ended.code
        PlainConsole(stderr=True).print(
            "Stopped. Completed work is kept: run the same command again to continue."
        )
        return 130


def _print_error(message: str) -> None:
    PlainConsole(stderr=True).print(Text.assemble(("Error: ", "bold red"), as_typed(message)))
