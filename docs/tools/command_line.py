"""The page of the command line, from the help that the commands have themselves."""

import re
from collections.abc import Iterator
from typing import Any

HEAD = """# Command line

This page is made from the help of the commands: `dross --help`, `dross clean --help` and so on
say the same.
"""


def write_page() -> str:
    """Return the page as Markdown: one section for each command."""
    from typer.main import get_command

    from dross.cli import app

    root = get_command(app)
    sections = [HEAD, _plain(root.help or ""), _options_table(root)]
    for name, command in _walk(root, "dross"):
        sections += [f"## {name}", *_describe(name, command)]
    return "\n\n".join(part for part in sections if part) + "\n"


def _walk(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if getattr(command, "hidden", False):
            continue
        if hasattr(command, "commands"):
            yield from _walk(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _describe(name: str, command: Any) -> Iterator[str]:
    """Yield the usage, what the help says, its examples, arguments and options."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    shown = " ".join([name, *(each.name.upper() for each in arguments), "[OPTIONS]"])
    yield f"`{shown}`"
    said, _, examples = (command.help or "").partition("[bold]Examples[/bold]")
    yield _plain(said)
    if lines := [line.strip() for line in examples.splitlines() if line.strip()]:
        yield "\n".join(["```sh", *lines, "```"])
    yield _arguments_table(arguments)
    yield _options_table(command)


def _arguments_table(arguments: list[Any]) -> str:
    if not arguments:
        return ""
    rows = [f"| `{each.name.upper()}` | {_cell(each.help)} |" for each in arguments]
    return "\n".join(["| argument | what it is |", "| --- | --- |", *rows])


def _options_table(command: Any) -> str:
    options = [each for each in command.params if each.param_type_name == "option"]
    shown = [each for each in options if not getattr(each, "hidden", False)]
    rows = [
        f"| {_names(each)} | {_cell(each.help)} | {_default(each)} |"
        for each in shown
        if "--help" not in each.opts
    ]
    if not rows:
        return ""
    return "\n".join(["| option | what it does | default |", "| --- | --- | --- |", *rows])


def _names(option: Any) -> str:
    names = [*option.opts, *option.secondary_opts]
    return ", ".join(f"`{name}`" for name in names)


def _default(option: Any) -> str:
    value = option.default
    if callable(value) or value is None or value == [] or value is False:
        return ""
    if option.name == "jobs":  # as many as there are cores
        return "" if value != 1 else "`1`"
    return "on" if value is True else f"`{value}`"


def _cell(text: str | None) -> str:
    return _plain(text or "").replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    """Turn rich's markup into Markdown."""
    text = re.sub(r"\[bold\](.*?)\[/bold\]", r"**\1**", text.strip())
    text = re.sub(r"(?<![\w`/])(--[a-z][a-z-]+)", r"`\1`", text)
    return re.sub(r"(?<![`\w])(module:function)(?![`\w])", r"`\1`", text)
