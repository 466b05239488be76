"""Optimizers of your own: `dross.optim.register` teaches dross the update rule of a class."""

from .engine.optim_custom import register

__all__ = ["register"]
