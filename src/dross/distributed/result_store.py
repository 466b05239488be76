"""Results as files: whole or absent, computed again where damaged, never mixed with others."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..data.tensor_digests import digest_tensors
from ..errors import DrossError, InputChanged
from ..support.atomic_files import write_bytes

_ROUNDING = 1e-5  # relative: other threads, another machine


def load(path: Path, settings: Any) -> dict | None:
    """A result kept as JSON, or None where there is none or it is damaged.

    Raises:
        InputChanged: the result was computed with other settings.
    """
    if not path.exists():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        path.unlink()
        return None
    if result.get("settings") != json.loads(json.dumps(settings)):
        raise _other_settings(path)
    return result


@dataclass(frozen=True)
class ResultStore:
    """The results of a sweep in a folder, one file per piece, each a dict of tensors.

    Arguments:
        folder: where the files lie.
        settings: everything that decides a result, as JSON holds it.
        numbers: the same for what was computed and may differ by rounding.
    """

    folder: Path
    settings: dict[str, Any]
    numbers: tuple[float, ...] = ()

    def begin(self) -> None:
        """Make the folder, and check that what lies in it belongs to this sweep.

        Raises:
            DrossError: the folder cannot be made.
            InputChanged: a result was computed with other settings.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DrossError(f"{self.folder} cannot be made: {error.strerror}.") from error
        for path in sorted(self.folder.glob("piece-*.safetensors")):
            self._read(path, tensors=False)

    def has(self, number: int) -> bool:
        """Whether there is a file for this piece, intact or not."""
        return self._path(number).exists()

    def get(self, number: int) -> dict[str, Tensor] | None:
        """The result of a piece, or None where it is missing or damaged."""
        return self._read(self._path(number)) if self.has(number) else None

    def put(self, number: int, result: dict[str, Tensor]) -> None:
        """Write the result of a piece; raises DrossError."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in result.items()}
        about = {
            "settings": json.dumps(self.settings),
            "numbers": json.dumps(self.numbers),
            "digest": digest_tensors(tensors),
        }
        write_bytes(self._path(number), save(tensors, about))

    def _path(self, number: int) -> Path:
        return self.folder / f"piece-{number:06d}.safetensors"

    def _read(self, path: Path, tensors: bool = True) -> dict[str, Tensor] | None:
        """None: damaged, to be computed again and replaced."""
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                found = {name: file.get_tensor(name) for name in file.keys()} if tensors else None  # noqa: SIM118
            settings, numbers = (json.loads(about[name]) for name in ("settings", "numbers"))
        except (SafetensorError, OSError, KeyError, ValueError):
            return None
        if settings != json.loads(json.dumps(self.settings)) or not self._are_equal(numbers):
            raise _other_settings(path)
        if found is not None and about.get("digest", "") not in ("", digest_tensors(found)):
            return None
        return found

    def _are_equal(self, numbers: Any) -> bool:
        return (
            isinstance(numbers, list)
            and len(numbers) == len(self.numbers)
            and np.allclose(numbers, self.numbers, rtol=_ROUNDING, atol=0, equal_nan=True)
        )


def _other_settings(path: Path) -> InputChanged:
    return InputChanged(
        f"{path} holds results of other settings, which must not be mixed with these. Choose "
        "another folder, or delete the old results."
    )
