"""A bookmark in the tape: what a retrace has done so far, so that one that was killed goes on from there.

    folder/retrace-3f2a90c41b77d05e.safetensors     the adjoint, the totals, and the step they belong to

The name is a digest of everything that the scores depend on: the tape's segments, the part of them that is retraced, and the query. A
query is known by its derivative at the model, which is all that a retrace uses of it. So a folder holds the bookmarks of many questions, and
one of another question is never taken for this one. It is written whole or not at all, and removed when the scores are there.
"""

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from ..data.dataset import checksum_bytes
from ..errors import StorageFailed, TapeDamaged
from ..replay.recording import Recording
from ..step.step import Derivative
from ..support.atomic_files import write_bytes
from ..tape.reader import parse

_SECONDS = 30.0  # between two bookmarks: what a kill may cost
_SHARE = 20  # and no more than 1/20 of the time goes into writing them, however large they are


@dataclass(frozen=True)
class Reached:
    """Where a retrace is."""

    position: int  # every step from this one on has been retraced
    adjoint: Derivative  # d query / d the state before that step
    totals: Tensor  # [E, Q, N]: the scores so far


class ProgressFile:
    """The place of one retrace, kept in a folder."""

    def __init__(self, folder: str | os.PathLike, question: dict):
        digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        self.path = Path(folder) / f"retrace-{digest[:16]}.safetensors"
        self._next = time.monotonic() + _SECONDS

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def write(self, place: Reached, plans: dict[int, tuple[bool, int]]) -> None:
        """plans: how the objective computes; another way rounds otherwise."""
        began = time.monotonic()
        tensors = {name: t.detach().cpu().contiguous() for name, t in _tensors(place).items()}
        about = {
            "position": place.position,
            "names": list(tensors),
            "digest": _digest(tensors),
            "plans": list(plans.items()),
        }
        write_bytes(self.path, save(tensors, {"dross": json.dumps(about)}))
        now = time.monotonic()
        self._next = now + max(_SECONDS, _SHARE * (now - began))

    def read(self) -> tuple[Reached, dict[int, tuple[bool, int]]] | None:
        """What an earlier retrace of the same question left, if one was interrupted."""
        try:
            tensors, about = parse(self.path.read_bytes(), self.path)
            # in the order they were written in, because sums round by their order, and copied to memory of torch's own alignment
            tensors = {name: tensors[name].clone() for name in about["names"]}
            if _digest(tensors) != about["digest"]:
                raise TapeDamaged("its digest differs")
            return _place(about["position"], tensors), {
                size: (forward, at_once) for size, (forward, at_once) in about["plans"]
            }
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"{self.path} cannot be read: {error.strerror}.") from error
        except (TapeDamaged, KeyError, TypeError, ValueError) as error:
            raise TapeDamaged(
                f"{self.path} is damaged ({error}). Remove it to retrace from the beginning."
            ) from None

    def remove(self) -> None:
        for path in [
            self.path,
            *self.path.parent.glob(f".{self.path.name}.*"),
        ]:  # a kill may have struck while one was written
            path.unlink(missing_ok=True)


def question(
    recording: Recording, window: tuple[int, int], hessian: bool, name: str, seed: Derivative
) -> dict:
    """All that the bits of the scores depend on. Not how many ranks share the work: a job may go on with those that are left."""
    first, stop = window
    tape = recording.tape
    return {
        "tape": [
            tape.manifest["id"],
            *(entry["sha256"] for entry in tape.entries if entry["first"] < stop),
        ],
        "steps": [first, stop],
        "hessian": hessian,
        "query": [name, _digest(_named(seed))],
        "torch": torch.__version__,
        "device": recording.device.type,
    }


def _named(adjoint: Derivative) -> dict[str, Tensor]:
    named = {"theta": adjoint.theta}
    named |= {f"slot.{name}": t for name, t in adjoint.slots.items()}
    return named | {f"buffer.{name}": t for name, t in adjoint.buffers.items()}


def _tensors(place: Reached) -> dict[str, Tensor]:
    return {"totals": place.totals, **_named(place.adjoint)}


def _place(position: int, tensors: dict[str, Tensor]) -> Reached:
    parts = [
        {name.removeprefix(kind): t for name, t in tensors.items() if name.startswith(kind)}
        for kind in ("slot.", "buffer.")
    ]
    return Reached(position, Derivative(tensors["theta"], *parts), tensors["totals"])


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(
        tensors.items()
    ):  # the slots of a state that was read from a file come in any order
        digest.update(
            f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode() + checksum_bytes(tensor)
        )
    return digest.hexdigest()
