"""Gradient clipping as a differentiable map.

Both Jacobians are symmetric, so one function serves forwards and backwards.
"""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InvalidInput

_TORCH_EPSILON = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds to the norm


@dataclass(frozen=True)
class ClipNorm:
    """Scale the whole gradient down to a norm, as torch.nn.utils.clip_grad_norm_ does.

        c = min(1, max_norm / (|g| + 1e-6)),        g -> c g

    Arguments:
        max_norm: the largest norm that a gradient keeps.

    Raises:
        InvalidInput: max_norm is not positive.

    Example:
        dross.train(model, data, "cross_entropy", optimizer, clip=dross.ClipNorm(1.0), ...)
    """

    max_norm: float

    def __post_init__(self):
        _check_positive(self.max_norm)

    def __call__(self, g: Tensor, slices: Sequence[slice] = ()) -> Tensor:
        """The clipped gradient, [..., p].

        Arguments:
            g: the gradient, [..., p].
            slices: where each parameter lies in it, in the model's order. torch takes their norms
                one by one; with them, the bits are those of torch's own clip.
        """
        return g * self._coefficient(self.norms(g, slices))

    def derivative(self, g: Tensor, v: Tensor) -> Tensor:
        """J(g) v, where J = c I - c / (|g| + 1e-6) g g^T / |g|. Where nothing is clipped, J = I.

        Arguments:
            g: the gradient before clipping, [p].
            v: the vectors to multiply, [..., p].

        Returns:
            The products, [..., p].
        """
        norm, products = self.norm_and_products(g, v)
        c = self._coefficient(norm)
        if norm == 0 or c >= 1:
            return v
        along = products.unsqueeze(-1) * g / norm
        return c * v - c / (norm + _TORCH_EPSILON) * along

    def norms(self, g: Tensor, slices: Sequence[slice] = ()) -> Tensor:
        """|g| of each row: [..., p] -> [..., 1]."""
        if not slices or g.dim() > 1:
            return g.norm(dim=-1, keepdim=True)
        return torch.nn.utils.get_total_norm([g[part] for part in slices]).unsqueeze(0)

    def norm_and_products(self, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """|g| and <v, g>, of g [p] and v [..., p]."""
        return g.norm(), v @ g

    def _coefficient(self, norm: Tensor) -> Tensor:
        return torch.clamp(self.max_norm / (norm + _TORCH_EPSILON), max=1.0)


@dataclass(frozen=True)
class ClipValue:
    """Clamp every number of the gradient, as torch.nn.utils.clip_grad_value_ does.

    Arguments:
        limit: every number is clamped to [-limit, limit].

    Raises:
        InvalidInput: limit is not positive.

    Example:
        dross.train(model, data, "cross_entropy", optimizer, clip=dross.ClipValue(0.5), ...)
    """

    limit: float

    def __post_init__(self):
        _check_positive(self.limit)

    def __call__(self, g: Tensor, slices: Sequence[slice] = ()) -> Tensor:
        """The clipped gradient, [..., p]. Where the parameters lie does not matter here."""
        return g.clamp(-self.limit, self.limit)

    def derivative(self, g: Tensor, v: Tensor) -> Tensor:
        """J(g) v, where J is diagonal: 0 where g is clipped, 1 elsewhere.

        Arguments:
            g: the gradient before clipping, [p].
            v: the vectors to multiply, [..., p].

        Returns:
            The products, [..., p].
        """
        return v * (g.abs() <= self.limit)


def _check_positive(value: float) -> None:
    if not isinstance(value, numbers.Real) or not value > 0:
        raise InvalidInput(f"A clip needs a positive number, not {value!r}.")


Clip = ClipNorm | ClipValue
_KINDS: tuple[type, ...] = (ClipNorm, ClipValue)
_NO_CLIP = -1.0


def to_numbers(clip: Clip | None) -> tuple[float, float]:
    """How a clip is kept on a tape: which kind, and its one number."""
    if clip is None:
        return (_NO_CLIP, 0.0)
    value = clip.max_norm if isinstance(clip, ClipNorm) else clip.limit
    return float(_KINDS.index(type(clip))), value


def from_numbers(kind: float, value: float) -> Clip | None:
    """The clip that `to_numbers` wrote down."""
    return None if kind < 0 else _KINDS[int(kind)](value)
