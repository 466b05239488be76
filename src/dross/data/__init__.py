"""The training set as instances with ids, their batches, and repeatable random numbers."""

from .dataset import Collated as Collated
from .dataset import ModelKwargs as ModelKwargs
from .dataset import indexed as indexed
