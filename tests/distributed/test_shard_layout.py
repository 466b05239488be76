"""Shards are a partition of theta, whatever the shapes and the number of ranks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dross.distributed.shards import ShardLayout
from dross.engine.state import Layout

SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=3).map(torch.Size), min_size=1, max_size=5)


def layout_of(shapes, groups=1):
    names = tuple(f"p{k}" for k in range(len(shapes)))
    sizes = [shape.numel() for shape in shapes]
    first = sum(sizes[: len(sizes) // 2])
    cut = (first, sum(sizes) - first) if groups == 2 and first else (sum(sizes),)
    return Layout(names, tuple(shapes), cut, ())


def cut(shards, whole, rank):
    """A rank's rows of every parameter, one after the other."""
    parts = [whole[..., :0]]
    sizes = shards.layout.sizes
    for shape, parameter in zip(shards.layout.shapes, whole.split(sizes, -1), strict=True):
        rows = shape[0] if shape else 1
        each = -(-rows // shards.ranks)
        own = parameter.unflatten(-1, (rows, -1))[..., each * rank : each * (rank + 1), :]
        parts.append(own.flatten(-2))
    return torch.cat(parts, -1)


@settings(deadline=None, max_examples=50)
@given(SHAPES, st.integers(1, 6))
def test_shards_join_to_what_was_cut(shapes, ranks):
    shards = ShardLayout(layout_of(shapes), ranks)
    theta = torch.arange(2 * sum(s.numel() for s in shapes), dtype=torch.float64).view(2, -1)
    parts = [cut(shards, theta, rank) for rank in range(ranks)]
    assert [part.shape[-1] for part in parts] == [shards.length(rank) for rank in range(ranks)]
    torch.testing.assert_close(shards.join(parts), theta, rtol=0, atol=0)


@settings(deadline=None, max_examples=50)
@given(SHAPES, st.integers(1, 5), st.integers(1, 5))
def test_a_shard_is_found_in_the_shards_of_another_number_of_ranks(shapes, written, now):
    whole = layout_of(shapes)
    held, wanted = ShardLayout(whole, written), ShardLayout(whole, now)
    theta = torch.arange(sum(whole.sizes))
    files = [cut(held, theta, rank) for rank in range(written)]
    for rank in range(now):
        own = torch.cat(
            [theta[:0], *(files[other][part] for other, part in wanted.parts_of(held, rank))]
        )
        assert torch.equal(own, cut(wanted, theta, rank))


@settings(deadline=None, max_examples=50)
@given(SHAPES, st.integers(1, 4))
def test_groups_are_cut_with_their_parameters(shapes, ranks):
    shards = ShardLayout(layout_of(shapes, groups=2), ranks)
    sizes = [shards.group_sizes(rank) for rank in range(ranks)]
    assert tuple(map(sum, zip(*sizes))) == shards.layout.group_sizes


@pytest.mark.parametrize("rows", [1, 3, 5, 8])
def test_rows_are_cut_as_torch_cuts_them(rows):
    shards = ShardLayout(layout_of([torch.Size((rows, 2))]), 4)
    expected = [len(part) * 2 for part in torch.zeros(rows, 2).chunk(4)]
    found = [shards.length(rank) for rank in range(4)]
    assert found == expected + [0] * (4 - len(expected))
