"""Things that a person asks for by name, with a hint for the one that was meant."""

import difflib
from collections.abc import Iterable

from ..errors import BadInput


def check_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The name itself, if it is one of those known."""
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise BadInput(
            f"There is no {kind} named '{name}'.{hint} The names are: {', '.join(known)}."
        )
    return name
