"""Everything dross refuses, as one tree.

    DrossError
    ├── BadInput            an argument that cannot be used as given          (also a ValueError)
    ├── NotSupported        something dross does not know how to retrace
    ├── NotFinite           a loss, gradient or adjoint became inf or nan     (knows its step)
    ├── NotReplayable       a recorded step that dross cannot reproduce       (raised while recording)
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
    """The root of every error that dross raises on purpose."""


class BadInput(DrossError, ValueError):
    pass


class NotSupported(DrossError):
    pass


class NotFinite(DrossError):
    def __init__(self, message: str, step: int | None = None):
        super().__init__(message)
        self.step = step


class NotReplayable(DrossError):
    pass


class RankLost(DrossError):
    pass


class DataUnavailable(DrossError):
    pass


class WorkerLost(DrossError):
    pass


class TapeError(DrossError):
    pass


class TapeExists(TapeError):
    pass


class TapeDamaged(TapeError):
    pass


class TapeMismatch(TapeError):
    pass


class StorageFailed(TapeError, OSError):
    pass


class DrossWarning(UserWarning):
    """Something the user should know that does not stop the work."""


def first_line(error: BaseException) -> str:
    """What an error of somebody else says, short enough for a message of ours."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
