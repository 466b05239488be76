"""Take a tape back to a place where it was saved, because a trainer goes on from there."""

import os
from pathlib import Path

from ..errors import TapeMismatch
from .reader import Tape, read_manifest
from .retention import EveryStep
from .writer import TapeWriter


def rewind(folder: str | os.PathLike, steps: int) -> None:
    """Forget the steps that were taken after the first `steps`.

    The manifest lets go of them first, and then their files go.

    Arguments:
        folder: of the tape.
        steps: how many steps the trainer's checkpoint has behind it. `Recorder.save` was called
            there.

    Raises:
        TapeMismatch: where the tape does not know the state after so many steps.
        TapeError: where there is no tape, or it is damaged.
    """
    manifest = read_manifest(Path(folder))
    if manifest["steps"] == steps:
        return
    later = [entry for entry in manifest["segments"] if entry["first"] >= steps]
    if not later or later[0]["first"] != steps:
        saved = sorted({entry["first"] for entry in manifest["segments"]} | {manifest["steps"]})
        raise TapeMismatch(
            f"The checkpoint was made after {steps} steps, and the tape at {folder} can go on "
            f"after {', '.join(map(str, saved))}. Resume from a checkpoint of one of these, or "
            "record the run again in another folder."
        )
    tape = Tape(folder)
    state = tape.read(len(manifest["segments"]) - len(later)).states[0]
    kept = [entry for entry in manifest["segments"] if entry["first"] < steps]
    shorter = {**manifest, "segments": kept, "steps": steps, "complete": False}
    TapeWriter(folder, shorter, EveryStep(), 0, None).finish(state, complete=False)
    for entry in later:
        (Path(folder) / entry["file"]).unlink(missing_ok=True)
