"""Your own optimizers: `dross.optim.register` adds the update rule of a class."""

from .engine.optim_custom import register

__all__ = ["register"]
