"""The nearest neighbours of every instance, and how near is nearer than chance."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..support.progress import progress_bar

NEIGHBOURS = 20  # of each instance: the last of them says how near others usually are
_FEW_DIMENSIONS = 128  # of the random projection in which candidates are looked for
_BLOCK_BYTES = 256 << 20  # of distances, and of gathered rows
_FALSE_ALARMS = 0.01  # near pairs that chance may make in the whole data set, on average
_AT_MOST = 0.4  # of the usual distance: in many dimensions chance allows for more, a copy does not
_USUALLY = 1.5  # times the median distance: a larger one is unusual


@dataclass(frozen=True)
class Neighbours:
    """Of N instances the K nearest others, the nearest first."""

    places: Tensor  # int64 [N, K]
    distances: Tensor  # float32 [N, K]

    @property
    def usual(self) -> Tensor:
        """How far the last of the neighbours is: the scale of near and far around each, [N]."""
        return self.distances[:, -1]

    @property
    def dimension(self) -> float:
        """The number of dimensions m in which the neighbours lie.

        A ball of half the volume has 2^(-1/m) of the radius: the middle one of K neighbours is that
        much nearer than the last. And the nearest is nearer than the share t of the last one's
        distance with probability 1 - (1 - t^m)^(K-1). Either gives m by a median over all
        instances. Copies can only make it smaller, so the larger one is taken.
        """
        count = self.distances.shape[1]
        middle = self._fit_dimension(max(count // 2, 1), 0.5)
        return max(middle, self._fit_dimension(1, 1 - 0.5 ** (1 / max(count - 1, 1))))

    def _fit_dimension(self, rank: int, content: float) -> float:
        """m where the neighbour of this rank encloses, in the median, this share of the volume."""
        nearer = self.distances[:, rank - 1]
        known = (nearer > 0) & (nearer < self.usual)
        if 2 * int(known.sum()) < len(known):
            return 0.0 if float(nearer.median()) == 0 else math.inf  # or ties, as on a grid
        return math.log(content) / float((nearer[known] / self.usual[known]).log().median())

    @property
    def threshold(self) -> float:
        """The share of the usual distance below which two instances are nearly the same.

        Of an instance's K neighbours, spread evenly in m dimensions, one is nearer than the share t
        of the last one's distance with probability (K - 1) t^m at most. Over all N instances chance
        makes fewer than N (K - 1) t^m such pairs: t keeps that below `_FALSE_ALARMS`.
        """
        count, neighbours = self.distances.shape
        dimension = self.dimension
        if dimension == 0:
            return 0.0
        share = _FALSE_ALARMS / (count * max(neighbours - 1, 1))
        return min(share ** (1 / dimension), _AT_MOST)

    def near_pairs(self) -> list[tuple[int, int, float]]:
        """[(place, other place, distance as a share of the usual one), ...], each pair once.

        Two outliers are not copies of each other: a distance that is much larger than the median
        does not count as usual.
        """
        usual = self.usual.clamp_max(_USUALLY * float(self.usual.median()))
        usual = torch.minimum(usual[:, None], usual[self.places])
        shares = torch.where(usual > 0, self.distances / usual, torch.ones(()))
        rows, columns = torch.nonzero(shares < self.threshold, as_tuple=True)
        found: dict[tuple[int, int], float] = {}
        others = self.places[rows, columns]
        for one, other, share in zip(
            rows.tolist(), others.tolist(), shares[rows, columns].tolist()
        ):
            found[min(one, other), max(one, other)] = share
        return [(*pair, share) for pair, share in sorted(found.items())]


def find_neighbours(
    rows: Tensor, *, device: torch.device, progress: bool, count: int = NEIGHBOURS
) -> Neighbours:
    """Find the nearest neighbours of every row by Euclidean distance.

    Candidates come from a projection to a few dimensions, where there are many; their distances
    are those of the rows themselves.

    Arguments:
        rows: float32 [N, d].
        device: Where to compute.
        progress: Whether to show a progress bar.
        count: How many neighbours of each; fewer where there are not so many.
    """
    count, rows = min(count, len(rows) - 1), rows.to(device)
    small = _project(rows)
    squares = small.square().sum(1)
    places, distances = [], []
    at_once = max(1, _BLOCK_BYTES // (4 * len(rows)))
    with progress_bar("looking for copies", len(rows), show=progress, unit="instances") as bar:
        for start in range(0, len(rows), at_once):
            block = small[start : start + at_once]
            apart = squares[None] - 2 * block @ small.T  # [block, N], without a term per row
            own = torch.arange(len(block), device=device)
            apart[own, own + start] = math.inf
            found = torch.topk(apart, count, dim=1, largest=False).indices
            exact = _measure(rows, start, found)
            order = exact.argsort(dim=1)
            places.append(found.gather(1, order))
            distances.append(exact.gather(1, order))
            bar(len(block))
    return Neighbours(torch.cat(places).cpu(), torch.cat(distances).cpu())


def _project(rows: Tensor) -> Tensor:
    """The rows around their mean, in few dimensions, where distances are about the same."""
    mean = rows.mean(0)
    if rows.shape[1] <= 2 * _FEW_DIMENSIONS:
        return rows - mean
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(rows.shape[1], _FEW_DIMENSIONS, generator=generator)
    projection = (drawn / math.sqrt(_FEW_DIMENSIONS)).to(rows.device)
    blocks = rows.split(max(1, _BLOCK_BYTES // (4 * rows.shape[1])))
    return torch.cat([(block - mean) @ projection for block in blocks])


def _measure(rows: Tensor, start: int, found: Tensor) -> Tensor:
    """The distances [block, K] of rows from those that were found near them."""
    at_once = max(1, _BLOCK_BYTES // (8 * rows.shape[1] * found.shape[1]))
    return torch.cat(
        [
            (rows[start + k : start + k + len(part), None] - rows[part]).square().sum(2).sqrt()
            for k, part in zip(range(0, len(found), at_once), found.split(at_once))
        ]
    )
