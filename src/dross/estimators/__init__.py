"""Other estimates of the same quantity, one file each, for comparison. All have the sign of `dross.Scores`."""

from .without_hessian import without_hessian

__all__ = ["without_hessian"]
