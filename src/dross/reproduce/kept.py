"""Results of an experiment as files: there whole or not at all, computed again where damaged, never mixed with other settings."""

import json
from pathlib import Path
from typing import Any

from ..errors import TapeMismatch


def load(path: Path, settings: Any) -> dict | None:
    """What is kept, if it is readable and was computed with these settings."""
    if not path.exists():
        return None
    try:
        result = json.loads(path.read_text())
    except ValueError:
        path.unlink()
        return None
    if result.get("settings") != json.loads(json.dumps(settings)):
        raise TapeMismatch(f"{path} holds results of other settings, which must not be mixed. Choose another folder, or remove it.")
    return result
