"""Names that a user types, checked against the known ones."""

import difflib
from collections.abc import Iterable

from ..errors import InvalidInput


def check_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the name if it is known; otherwise raise InvalidInput with the closest known name."""
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise InvalidInput(
            f"There is no {kind} named '{name}'.{hint} The names are: {', '.join(known)}."
        )
    return name
