"""Every error that dross raises on purpose, as one tree.

    DrossError
    ├── BadInput            an argument that cannot be used as given          (also a ValueError)
    ├── NotSupported        something dross does not know how to retrace
    ├── NotFinite           a loss, gradient or adjoint became inf or nan     (knows its step)
    ├── NotReplayable       a recorded step that dross cannot reproduce       (while recording)
    ├── RankLost            another process of a distributed job has died or is stuck
    ├── DataUnavailable     a data set that is not here and cannot be fetched, or is damaged
    ├── WorkerLost          the workers of a sweep die and nothing more gets done
    └── TapeError           the folder that holds a run
        ├── TapeExists      there is one already
        ├── TapeDamaged     a missing, truncated, altered or foreign file
        ├── TapeMismatch    a replay, model or data set that is not the recorded one
        └── StorageFailed   the disk is full, read-only or gone               (also an OSError)

A message says what happened, where, and what to do about it.
"""


class DrossError(Exception):
    """The root of all of them: catch this one to catch any."""


class BadInput(DrossError, ValueError):
    """An argument that cannot be used as given."""


class NotSupported(DrossError):
    """A model, optimizer or operation that dross cannot retrace."""


class NotFinite(DrossError):
    """A loss, gradient or adjoint became inf or nan; `step` is where, if known."""

    def __init__(self, message: str, step: int | None = None):
        super().__init__(message)
        self.step = step


class NotReplayable(DrossError):
    """A recorded step that dross cannot reproduce; raised while recording."""


class RankLost(DrossError):
    """Another process of a distributed job has died or is stuck."""


class DataUnavailable(DrossError):
    """A data set that is not here and cannot be fetched, or is damaged."""


class WorkerLost(DrossError):
    """The workers of a sweep die again and again, and no more work gets done."""


class TapeError(DrossError):
    """Something is wrong with the folder that holds a run."""


class TapeExists(TapeError):
    """The folder holds a run already."""


class TapeDamaged(TapeError):
    """A file is missing, truncated, altered or foreign."""


class TapeMismatch(TapeError):
    """A replay, model or data set is not the recorded one."""


class StorageFailed(TapeError, OSError):
    """The disk is full, read-only or gone."""


class DrossWarning(UserWarning):
    """Something the user should know that does not stop the work."""


def first_line(error: BaseException) -> str:
    """Return the first line of what another library's error says, to quote it in a message."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
