"""Continue a tape that was begun earlier, where it ended or where it was saved."""

import os
from pathlib import Path

from .._checks import check_folder
from ..data.dataset import Instances
from ..data.instance_hashes import HashNotes
from ..distributed.shards import explain_other_ranks
from ..errors import InputChanged, InvalidInput
from .reader import Tape, read_manifest
from .retention import EveryStep, Keep
from .writer import TapeWriter


def begin_notes(
    folder: str | os.PathLike, instances: Instances | None, keep: Keep, earlier: dict | None
) -> HashNotes | None:
    """Notes of what instances look like, starting with those of a tape to be continued.

    None where the data set is held in memory: then the manifest has a digest of all of it.
    """
    if instances is not None and instances.stored:
        return None
    noted = None if earlier is None else Tape(folder).hashes()
    return HashNotes(noted, renew=keep.last_epochs is not None)


def check_resume(resume: bool | str | os.PathLike, folder: str | os.PathLike) -> bool:
    """Whether to continue the tape in `folder`.

    Arguments:
        resume: True, or that folder itself, which means the same.
        folder: where the run is recorded.

    Raises:
        InvalidInput: for another folder, which would be another run.
    """
    if isinstance(resume, bool):
        return resume
    check_folder(resume, "resume")
    if Path(resume).resolve() != Path(folder).resolve():
        raise InvalidInput(
            f"resume={str(resume)!r} is not the folder of the tape, {str(folder)!r}. A run can "
            "only be continued where it was recorded: pass resume=True."
        )
    return True


def rewind(folder: str | os.PathLike, steps: int) -> None:
    """Forget the steps after the first `steps`, because a trainer continues from there.

    They are removed from the manifest first, and then their files are deleted. So is an average:
    it may have taken in what comes after, and it is not known what it was before.

    Arguments:
        folder: of the tape.
        steps: how many steps the trainer had taken at its checkpoint, where `Recorder.save` was
            called.

    Raises:
        InputChanged: where the tape does not know the state after that many steps, or several ranks
            wrote it, which one process cannot continue.
        DrossError: where there is no tape, or it is damaged.
    """
    manifest = read_manifest(Path(folder))
    if manifest["steps"] == steps:
        return
    if (shards := manifest.get("shards", 1)) > 1:
        raise explain_other_ranks(folder, shards, 1)
    later = [entry for entry in manifest["segments"] if entry["first"] >= steps]
    if not later or later[0]["first"] != steps:
        saved = sorted({entry["first"] for entry in manifest["segments"]} | {manifest["steps"]})
        raise InputChanged(
            f"The checkpoint was made after {steps} steps, but the tape at {folder} can continue "
            f"after {', '.join(map(str, saved))}. Resume from a checkpoint of one of these, or "
            "record the run again in another folder."
        )
    tape = Tape(folder)
    state = tape.read(len(manifest["segments"]) - len(later)).states[0]
    kept = [entry for entry in manifest["segments"] if entry["first"] < steps]
    average = manifest.pop("average", None)
    gone = later if average is None else [*later, average]
    shorter = {**manifest, "segments": kept, "steps": steps, "complete": False}
    TapeWriter(folder, shorter, EveryStep(), 0, None).finish(state, complete=False)
    for entry in gone:
        (Path(folder) / entry["file"]).unlink(missing_ok=True)
