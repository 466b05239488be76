"""How far a retrace has come: one that was killed continues from there.

    folder/retrace-3f2a90c41b77d05e.safetensors     the adjoint, the totals, and their step

The name is a digest of everything that the scores depend on: the tape's segments, the part of them
that is retraced, and the query. A query is known by its derivative at the model, which is all that
a retrace uses of it. So one folder holds the progress of many questions without mixing them up. A
file is written whole or not at all, and removed when the scores are finished.
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

from ..data.tensor_digests import digest_tensors
from ..engine.state import Derivative
from ..errors import CorruptFile, DrossError, InvalidInput
from ..replay.recording import Recording
from ..support.arguments import check_folder
from ..support.atomic_files import delete_stale, write_bytes
from ..tape.reader import parse
from ..tape.storage import is_url

_SECONDS_BETWEEN_WRITES = 30.0  # the work that a kill may cost
_MIN_TIMES_OF_WRITING = 20  # at most 1/20 of the time goes into writing, however large the file


@dataclass(frozen=True)
class Place:
    """Where a retrace is."""

    position: int  # every step from this one on has been retraced
    adjoint: Derivative  # d query / d the state before that step
    totals: Tensor  # [E, Q, N]: the scores so far
    choices: dict  # how it is computed (Executor.choices); another way rounds differently


class ProgressFile:
    """The place of one retrace, kept in a folder."""

    def __init__(self, folder: Path, question: dict):
        digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"retrace-{digest[:16]}.safetensors"
        self._next = time.monotonic() + _SECONDS_BETWEEN_WRITES

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() >= self._next

    def write(self, place: Place) -> None:
        """Replace what was kept before."""
        began = time.monotonic()
        tensors = {"totals": place.totals, **place.adjoint.tensors()}
        tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        about = {
            "position": place.position,
            "names": list(tensors),
            "digest": digest_tensors(tensors),
            "choices": place.choices,
        }
        write_bytes(self.path, save(tensors, {"dross": json.dumps(about)}))
        now = time.monotonic()
        self._next = now + max(_SECONDS_BETWEEN_WRITES, _MIN_TIMES_OF_WRITING * (now - began))

    def read(self) -> Place | None:
        """What an earlier retrace of the same question left, if one was interrupted."""
        delete_stale(self.path.parent, lambda name: name.startswith("retrace-"))
        try:
            tensors, about = parse(self.path.read_bytes(), self.path)
            # in the order they were written in, because sums round by their order, and copied to
            # memory of torch's own alignment
            tensors = {name: tensors[name].clone() for name in about["names"]}
            if digest_tensors(tensors) != about["digest"]:
                raise CorruptFile("its digest differs")
            adjoint = Derivative.from_tensors(tensors)
            choices = about["choices"] if "choices" in about else {"pulls": about["plans"]}
            pulls = [[size, [forward, count]] for size, (forward, count) in choices["pulls"]]
            cuts = [[name, size, rows] for name, size, rows in choices.get("cuts", [])]
            choices = {"pulls": pulls, "cuts": cuts}
            return Place(about["position"], adjoint, tensors["totals"], choices)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DrossError(f"{self.path} cannot be read: {error.strerror}.") from error
        except (CorruptFile, KeyError, TypeError, ValueError) as error:
            raise CorruptFile(
                f"{self.path} is damaged ({error}). Remove it to retrace from the beginning."
            ) from None

    def remove(self) -> None:
        """Remove the file once the scores are finished, and temporary ones that a kill left."""
        for path in [self.path, *self.path.parent.glob(f".{self.path.name}.*")]:
            path.unlink(missing_ok=True)


def progress_folder(resume: str | os.PathLike | bool | None, tape: Path | str) -> Path | None:
    """The folder that progress is kept in, from the `resume` argument of `Run.influence`."""
    if resume is None or resume is False:
        return None
    if resume is not True:
        return Path(check_folder(resume, "resume"))
    if is_url(tape):
        raise InvalidInput(
            f"resume=True keeps progress in the tape's folder, but {tape} can only be read. Give "
            "a folder: resume='folder'."
        )
    return Path(tape)


def describe_question(
    recording: Recording, window: tuple[int, int], hessian: bool, name: str, seed: Derivative
) -> dict:
    """All that the bits of the scores depend on.

    The number of ranks is not part of it: a job may continue with fewer.
    """
    first, stop = window
    tape = recording.tape
    digests = [entry["sha256"] for entry in tape.entries if entry["first"] < stop]
    return {
        "tape": [tape.manifest["id"], *digests],
        "steps": [first, stop],
        "hessian": hessian,
        "query": [name, digest_tensors(seed.tensors())],
        "torch": torch.__version__,
        "device": recording.device.type,
    }
