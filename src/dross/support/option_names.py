"""What an option is called: `--out` on the command line, `out=...` from Python.

A message that tells the user to pass an option names it as that user writes it. The command line
sets `in_shell`; everybody else calls from Python.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_IN_SHELL: ContextVar[bool] = ContextVar("in shell", default=False)
_FLAGS = {"make": "--model", "with_model": "--with", "columns": "--column", "n_jobs": "--jobs"}


@contextmanager
def in_shell() -> Iterator[None]:
    """Name options as on the command line inside the block."""
    token = _IN_SHELL.set(True)
    try:
        yield
    finally:
        _IN_SHELL.reset(token)


def name_option(name: str, value: object = None) -> str:
    """An option as the user writes it, perhaps with a value; True stands for a flag.

    name_option("rate", 0.1)           `--rate 0.1`       `rate=0.1`
    name_option("overwrite", True)     `--overwrite`      `overwrite=True`
    name_option("out")                 `--out`            `out=...`
    """
    if not _IN_SHELL.get():
        return f"{name}=..." if value is None else f"{name}={value!r}"
    flag = _FLAGS.get(name) or "--" + name.replace("_", "-")
    return flag if value is None or value is True else f"{flag} {value}"


def name_options(name: str, values: Sequence[str]) -> str:
    """An option that may be repeated, with all its values; from Python it takes a list."""
    if not _IN_SHELL.get():
        return name_option(name, list(values))
    return " ".join(name_option(name, value) for value in values)
