"""Elementwise updates of long vectors, piece by piece.

A formula of twenty operations on all of theta writes twenty vectors of its size, and on a CPU the
system hands out fresh memory for each of them. A piece stays in the cache, and so do its results.
On a GPU a piece is larger; it bounds the memory that the intermediate results take.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

_ON_CPU, _ON_GPU = 1 << 15, 1 << 24  # numbers at once; for each thread of a CPU
_FEWEST = 1 << 10  # of a row, however many rows there are

Named = Mapping[str, Tensor]


def compute_in_pieces(
    function: Callable[..., Named], sizes: Sequence[int], *given: Named
) -> dict[str, Tensor]:
    """function(group, *given), where it treats every number of a group alike.

    Arguments:
        function: is called with the number of a group and with a part of each tensor, all of the
            same length. It returns tensors of that length by name.
        sizes: how many numbers each group has, one group after the other.
        given: tensors [..., p] by name; p is the sum of the sizes.

    Returns:
        The function's tensors, each [..., p].
    """
    pieces = list(_cut(sizes, _length(t for named in given for t in named.values())))
    if len(pieces) == 1:
        return dict(function(0, *given))
    found: dict[str, Tensor] = {}
    for group, piece in pieces:
        parts = ({name: t[..., piece] for name, t in named.items()} for named in given)
        computed = function(group, *parts)
        if not found:
            empty = lambda t: t.new_empty((*t.shape[:-1], sum(sizes)))
            found = {name: empty(t) for name, t in computed.items()}
        for name, t in computed.items():
            found[name][..., piece] = t
    return found


def _length(tensors: Iterable[Tensor]) -> int:
    """How many numbers of a row are computed at once."""
    largest = max(tensors, key=torch.numel)
    rows = largest.numel() // max(1, largest.shape[-1])
    most = _ON_GPU if largest.is_cuda else _ON_CPU * torch.get_num_threads()
    return max(_FEWEST, most // max(1, rows))


def _cut(sizes: Sequence[int], length: int) -> Iterator[tuple[int, slice]]:
    """The pieces of each group. None crosses from one group to the next."""
    start = 0
    for group, size in enumerate(sizes):
        for at in range(start, start + max(1, size), length):
            yield group, slice(at, min(at + length, start + size))
        start += size
