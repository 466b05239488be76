"""The tape of a run: what is kept of it, its format, and how it is written and read."""

from .retention import Budget as Budget
from .retention import Checkpoints as Checkpoints
from .retention import EveryStep as EveryStep
from .retention import LastEpochs as LastEpochs
