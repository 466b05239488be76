"""Results of experiments as JSON files: a run that was stopped continues from them."""

import json
from pathlib import Path
from typing import Any

from dross._io import write_json


def load_result(path: Path, settings: Any) -> dict | None:
    """A result, or None where there is none yet.

    Raises:
        ValueError: it was computed with other settings.
    """
    if not path.exists():
        return None
    result = json.loads(path.read_text(encoding="utf-8"))
    if result["settings"] != json.loads(json.dumps(settings)):
        raise ValueError(
            f"{path} holds results of other settings, which must not be mixed with these. Choose "
            "another folder, or delete the old results."
        )
    return result


def save_result(path: Path, result: dict) -> None:
    """Write a result: the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
