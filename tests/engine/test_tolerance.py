"""Closeness: nan is never close, whole numbers are equal, each tolerance admits what it says."""

import pytest
import torch

from dross.engine import tolerance as closeness
from dross.engine.tolerance import ONE_PERCENT, ROUNDING, Tolerance, is_close, size

TOLERANCES = {
    name: value for name, value in vars(closeness).items() if isinstance(value, Tolerance)
}
# factor * eps ** power in float64, where eps is 2 ** -52
RELATIVE = {
    "SAME_KERNELS": 2.0**-39,
    "LOSSES": 4 * 2.0**-39,
    "ROUNDING": 2.0**-26,
    "ROUNDING_OF_LENGTH": 2.0**-26,
    "OTHER_ORDER": 100 * 2.0**-26,
    "OTHER_KERNELS": 30 * 2.0**-26,
    "ONE_PERCENT": 0.01,
}
EVERY = pytest.mark.parametrize("name", TOLERANCES)


def test_every_tolerance_is_tested():
    assert set(TOLERANCES) == set(RELATIVE)


@EVERY
def test_a_tolerance_admits_what_it_says_and_no_more(name):
    tolerance, expected = TOLERANCES[name], torch.tensor([1.0, -4.0, 2.0], dtype=torch.float64)
    assert tolerance.relative(torch.float64) == RELATIVE[name]
    limit = RELATIVE[name] * (21.0**0.5 if tolerance.order == 2 else 4.0)
    for place in range(3):
        for sign in (1, -1):
            off = torch.zeros(3, dtype=torch.float64)
            off[place] = sign * limit
            assert is_close(expected + 0.99 * off, expected, tolerance)
            assert not is_close(expected + 1.01 * off, expected, tolerance)


@EVERY
def test_float32_admits_more_than_float64(name):
    tolerance, expected = TOLERANCES[name], torch.ones(3)
    relative = tolerance.relative(torch.float32)
    assert relative == tolerance.factor * 2.0 ** (-23 * tolerance.power)
    assert is_close(expected * (1 + 0.9 * relative), expected, tolerance)
    assert not is_close(expected * (1 + 1.2 * relative), expected, tolerance)
    if tolerance.power:
        assert relative > tolerance.relative(torch.float64)


@EVERY
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_never_close(name, bad):
    good, broken = torch.ones(3), torch.tensor([1.0, bad, 1.0])
    for found, expected in ((broken, good), (good, broken), (broken, broken)):
        assert not is_close(found, expected, TOLERANCES[name])
    assert not is_close(broken, good, TOLERANCES[name], scale=1e30)


def test_nan_where_a_finite_number_was_expected_is_not_close_and_neither_is_the_reverse():
    nan = torch.full((3,), float("nan"))
    assert not is_close(torch.ones(3), nan, ONE_PERCENT)
    assert not is_close(nan, torch.ones(3), ONE_PERCENT)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_whole_numbers_must_be_equal(dtype):
    one = torch.tensor([1, 0, 1]).to(dtype)
    other = torch.tensor([1, 1, 1]).to(dtype)
    assert is_close(one, one.clone(), ONE_PERCENT)
    assert not is_close(one, other, ONE_PERCENT)
    large = torch.tensor([10**9])
    assert not is_close(large + 1, large, ONE_PERCENT)


def test_empty_tensors_are_close_where_their_shapes_are_equal():
    empty = torch.zeros(0, 3)
    assert is_close(empty, torch.zeros(0, 3), ROUNDING)
    assert not is_close(empty, torch.zeros(0, 4), ROUNDING)


def test_zero_is_close_to_nothing_but_zero_unless_a_scale_is_given():
    zero, tiny = torch.zeros(3), torch.full((3,), 1e-12)
    assert is_close(zero, zero.clone(), ROUNDING)
    assert not is_close(tiny, zero, ROUNDING)
    assert is_close(tiny, zero, ROUNDING, scale=1.0)
    assert not is_close(tiny, zero, ROUNDING, scale=1e-12)


def test_the_largest_number_or_the_length():
    t = torch.tensor([[3.0, 0.0], [0.0, -4.0]])
    assert size(t, ROUNDING) == 4.0
    assert size(t, closeness.ROUNDING_OF_LENGTH) == 5.0
