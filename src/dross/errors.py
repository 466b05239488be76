"""The errors that dross raises on purpose. Each message states what happened, where, and what to
do.

DrossError          catch this one to catch them all; raised itself for what is outside of dross:
|                   a full disk, another process that died
|-- InvalidInput    an argument or an input that cannot be used as given (also a ValueError)
|-- NotSupported    a model, an optimizer or a training loop that dross cannot retrace
|-- Diverged        a loss, a gradient or an adjoint became inf or nan
|-- CorruptFile     a file that dross wrote is missing, truncated or altered
`-- InputChanged    data, code or a model that are not those of the recorded run or project
"""


class DrossError(Exception):
    """Base class of the errors of dross."""


class InvalidInput(DrossError, ValueError):
    """An argument or an input that cannot be used as given."""


class NotSupported(DrossError):
    """A model, an optimizer or a training loop that dross cannot retrace."""


class Diverged(DrossError):
    """A loss, a gradient or an adjoint became inf or nan; `step` is the step, if known."""

    def __init__(self, message: str, step: int | None = None):
        super().__init__(message)
        self.step = step


class CorruptFile(DrossError):
    """A file that dross wrote is missing, truncated or altered."""


class InputChanged(DrossError):
    """Data, code or a model that are not those of the recorded run or project."""


class DrossWarning(UserWarning):
    """A warning that does not stop the work."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error, to quote it in a message."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
