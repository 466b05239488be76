"""Go on with a tape that was begun earlier."""

import os
from pathlib import Path

from ..data.dataset import Instances
from ..data.instance_hashes import HashNotes
from ..errors import BadInput
from ..support.arguments import check_folder
from .reader import Tape
from .retention import Keep


def begin_notes(
    folder: str | os.PathLike, instances: Instances | None, keep: Keep, earlier: dict | None
) -> HashNotes | None:
    """Where the looks of instances are noted, with what a tape to be continued has noted.

    None where the data set is held in memory: then the manifest has a digest of all of it.
    """
    if instances is not None and instances.stored:
        return None
    noted = None if earlier is None else Tape(folder).hashes()
    return HashNotes(noted, renew=keep.last_epochs is not None)


def check_resume(resume: bool | str | os.PathLike, folder: str | os.PathLike) -> bool:
    """Whether to go on with the tape in `folder`.

    Arguments:
        resume: True, or that folder itself, which means the same.
        folder: where the run is recorded.

    Raises:
        BadInput: for another folder, which would be another run.
    """
    if isinstance(resume, bool):
        return resume
    check_folder(resume, "resume")
    if Path(resume).resolve() != Path(folder).resolve():
        raise BadInput(
            f"resume={str(resume)!r} is not the folder of the tape, {str(folder)!r}. A run goes on "
            "where it was recorded: resume=True."
        )
    return True
