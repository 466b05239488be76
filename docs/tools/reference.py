"""The lists at the top of the reference pages: each name with its signature and one sentence.

    PYTHONPATH=src python docs/tools/reference.py

The site shows the whole docstring of each `::: name`. In a checkout these lines show nothing, so
each page begins with a list, made of the first sentences of the same docstrings.
"""

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
BEGIN = "<!-- written by docs/tools/reference.py -->"
END = "<!-- end of what is written -->"
NOTE = "The docstrings have the full descriptions; the website that `make docs` builds shows them."
ENTRY = re.compile(r"^::: (?P<name>\S+)\n(?P<options>(?: +.*\n?)*)", re.M)
FIELD = re.compile(r"^    (?P<names>[a-z]\w*): [^#\n]*?  # (?P<text>.+)$", re.M)
ATTRIBUTE = re.compile(r"^    (?P<names>[a-z][\w, ]*): (?P<text>.+(?:\n {5,}.+)*)$", re.M)
RESULTS = ("dross.influence.", "dross.cleaning.")  # modules whose classes nobody imports
WIDTH = 110  # longer signatures end with an ellipsis


def list_pages() -> list[Path]:
    """The pages that name something to document."""
    return [path for path in sorted(FOLDER.glob("*.md")) if ENTRY.search(path.read_text("utf-8"))]


def write_list(page: str) -> str:
    """The list of a page, of the names that its text shows."""
    lines = [line for name in _list_names(page) for line in _describe(name)]
    return "\n".join([BEGIN, "", NOTE, "", *lines, "", END])


def with_list(page: str) -> str:
    """The text of a page with its list as it is now: after the introduction."""
    if BEGIN in page:
        before, rest = page.split(BEGIN, 1)
        after = rest.split(END, 1)[1].lstrip("\n")
    else:
        at = re.search(r"^(:::|## )", page, re.M)
        assert at is not None
        before, after = page[: at.start()], page[at.start() :]
    return f"{before.rstrip()}\n\n{write_list(page)}\n\n{after}"


def _list_names(page: str) -> Iterator[str]:
    """What a page documents: of a module, its public members."""
    for entry in ENTRY.finditer(page):
        name, options = entry["name"], entry["options"]
        chosen = re.search(r"members: \[(.*)\]", options)
        if "members: false" in options:
            continue
        if chosen is not None:
            yield from (f"{name}.{member}" for member in chosen[1].split(", "))
        elif inspect.ismodule(value := _find(name)):
            yield from (f"{name}.{member}" for member in value.__all__)
        else:
            yield name


def _find(name: str) -> Any:
    """The module, class or function of this name."""
    module = name
    while True:
        try:
            value = importlib.import_module(module)
            break
        except ModuleNotFoundError as error:
            if error.name != module:  # a library that is not installed
                raise
            module = module.rpartition(".")[0]
    for part in filter(None, name.removeprefix(module).split(".")):
        value = getattr(value, part)
    return value


def _describe(name: str) -> Iterator[str]:
    """An item for a name, and below it one for each field and method of a class."""
    value = _find(name)
    is_result = name.startswith(RESULTS)
    is_made = is_result or "Made by" in (inspect.getdoc(value) or "")  # nobody calls the class
    short = name.rpartition(".")[2] if is_result else name
    call = "" if is_made or _is_plain(value) else _signature(value)
    yield f"- `{short}{call}`: {_first_sentence(value)}"
    if not inspect.isclass(value) or issubclass(value, BaseException):
        return
    if dataclasses.is_dataclass(value) and is_made:
        yield from _describe_fields(value)
    for member, kind in vars(value).items():
        of = kind.fget if isinstance(kind, property) else getattr(kind, "__func__", kind)
        if member.startswith("_") or not inspect.isfunction(of) or not of.__doc__:
            continue
        call = "" if isinstance(kind, property) else _signature(of)
        yield f"    - `.{member}{call}`: {_first_sentence(of)}"


def _describe_fields(value: type) -> Iterator[str]:
    """An item for each field that a comment or the docstring explains."""
    _, _, attributes = (inspect.getdoc(value) or "").partition("Attributes:\n")
    attributes = attributes.split("\n\n", 1)[0]
    found = [*FIELD.finditer(inspect.getsource(value)), *ATTRIBUTE.finditer(attributes)]
    for field in found:
        names = ", ".join(f"`{name}`" for name in field["names"].split(", "))
        yield f"    - {names}: {_escape(' '.join(field['text'].split()))}"


def _is_plain(value: Any) -> bool:
    """Whether its call is of no interest: that of an exception, of a protocol or of a dict."""
    if not inspect.isclass(value):
        return False
    return issubclass(value, (BaseException, dict)) or getattr(value, "_is_protocol", False)


def _signature(value: Any) -> str:
    """The names of the parameters, with the defaults."""
    shown = []
    star = False
    for name, parameter in inspect.signature(value).parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            shown.append("*")
        star |= parameter.kind is parameter.VAR_POSITIONAL
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind)
        has_default = parameter.default is not parameter.empty
        text = "..." if "<" in repr(parameter.default) else repr(parameter.default)
        shown.append(f"{prefix or ''}{name}" + (f"={text}" if has_default else ""))
    while len(", ".join(shown)) > WIDTH:
        shown[-2:] = ["..."]
    return f"({', '.join(shown)})"


def _first_sentence(value: Any) -> str:
    first = (inspect.getdoc(value) or "").split("\n\n", 1)[0]
    return _escape(re.split(r"(?<=[.])\s+(?=[A-Z])", " ".join(first.split()))[0])


def _escape(text: str) -> str:
    return text.replace("<", "&lt;")


def main() -> None:
    """Write the lists of all pages."""
    for path in list_pages():
        path.write_text(with_list(path.read_text("utf-8")), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
