"""Answers as JSON that every browser can read, whatever the data hold."""

import json
import math
from typing import Any

from starlette.responses import JSONResponse


class JSONAnswer(JSONResponse):
    """JSON with every character outside ASCII escaped, and null for nan and infinities.

    A project is somebody's data: half a character in a name, or a nan in a verdict, must not keep
    the page from opening.
    """

    def render(self, content: Any) -> bytes:
        """Return the content as bytes."""
        try:
            text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        except ValueError:
            text = json.dumps(_without_nan(content), allow_nan=False, separators=(",", ":"))
        return text.encode("ascii")


def _without_nan(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _without_nan(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
