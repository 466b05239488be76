"""Results as files: there whole or not at all, computed again where damaged, never mixed with other settings."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..errors import StorageFailed, TapeMismatch
from ..support.atomic_files import write_bytes

_ALIKE = 1e-5  # relative: other threads, another machine


def load(path: Path, settings: Any) -> dict | None:
    """What is kept as JSON, if it is readable and was computed with these settings."""
    if not path.exists():
        return None
    try:
        result = json.loads(path.read_text())
    except ValueError:
        path.unlink()
        return None
    if result.get("settings") != json.loads(json.dumps(settings)):
        raise other_settings(path)
    return result


def other_settings(path: Path) -> TapeMismatch:
    return TapeMismatch(
        f"{path} holds results of other settings, which must not be mixed. Choose another folder, or remove it."
    )


@dataclass(frozen=True)
class Pieces:
    """The results of a sweep in a folder, piece by piece, each a dict of tensors."""

    folder: Path
    settings: dict[str, Any]  # everything that a result hangs on
    numbers: tuple[float, ...] = ()  # the same, where it was computed and may differ by rounding

    def begin(self) -> None:
        """Make the folder, or see that what lies in it belongs to this sweep."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFailed(f"{self.folder} cannot be made: {error.strerror}.") from error
        for path in sorted(self.folder.glob("piece-*.safetensors")):
            self._read(path, tensors=False)

    def has(self, number: int) -> bool:
        return self._path(number).exists()

    def get(self, number: int) -> dict[str, Tensor] | None:
        return self._read(self._path(number)) if self.has(number) else None

    def put(self, number: int, result: dict[str, Tensor]) -> None:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in result.items()}
        about = {"settings": json.dumps(self.settings), "numbers": json.dumps(self.numbers)}
        write_bytes(self._path(number), save(tensors, about))

    def _path(self, number: int) -> Path:
        return self.folder / f"piece-{number:06d}.safetensors"

    def _read(self, path: Path, tensors: bool = True) -> dict[str, Tensor] | None:
        """None: damaged, to be computed again and replaced."""
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                found = {name: file.get_tensor(name) for name in file.keys()} if tensors else None  # noqa: SIM118
        except (SafetensorError, OSError):
            return None
        settings, numbers = (
            json.loads(about.get(name, "null")) for name in ("settings", "numbers")
        )
        same = settings == json.loads(json.dumps(self.settings)) and len(numbers) == len(
            self.numbers
        )
        if not same or not np.allclose(numbers, self.numbers, rtol=_ALIKE, atol=0, equal_nan=True):
            raise other_settings(path)
        return found
