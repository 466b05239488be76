"""The hash of an instance says what it looked like, whatever batch, device or file it came by."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dross.data.instance_hashes import MAX_ID, HashCheck, HashNotes, hash_instances
from dross.errors import InputChanged

TYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
]
SHAPES = [(), (1,), (3,), (7, 5), (1, 28, 28), (0,)]


def values(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-99, 99, shape, generator=generator).double() + 0.3
    return numbers.to(dtype)


def bits(pair):
    found = hash_instances(pair)
    assert found is not None and found.dtype == np.int64
    return found


def slow_hash(row: bytes, name: str, dtype: torch.dtype) -> int:
    """The formula of the module's first lines, in Python's own whole numbers."""
    import hashlib

    total, padded = 0, row + bytes(-len(row) % 4)
    for k in range(0, len(padded), 4):
        z = (k // 4 + 1) * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        weight = (z ^ z >> 31) | 1
        total += weight * int.from_bytes(padded[k : k + 4], "little", signed=True)
    digest = hashlib.sha256(f"{name} {dtype} {len(row)}".encode()).digest()
    start, factor = (int.from_bytes(digest[k : k + 8], "little") for k in (0, 8))
    return (total + start) * (factor | 1)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_hash_is_that_of_the_formula_in_any_batch(dtype, shape):
    x, y = values((12, *shape), dtype), torch.arange(12)
    whole = bits((x, y))
    assert len(set(whole)) == 12
    for rows in ([5], [7, 3, 3, 0], list(range(1, 12)), slice(3, None), slice(None, None, 2)):
        np.testing.assert_array_equal(bits((x[rows], y[rows])), whole[rows])
    raw = x[4].contiguous().reshape(-1).view(torch.uint8) if x[4].numel() else x[4]
    expected = slow_hash(bytes(raw.tolist()), "[0]", dtype)
    expected += slow_hash((4).to_bytes(8, "little"), "[1]", torch.int64)
    assert int(whole[4]) % 2**64 == expected % 2**64


def test_memory_that_is_not_in_order_makes_no_difference():
    x, y = values((9, 6, 5), torch.uint8), torch.arange(9)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    odd = torch.zeros(9 * 30 + 3, dtype=torch.uint8)
    odd[3:] = x.reshape(-1)
    for same in (turned, odd[3:].reshape(9, 6, 5)):
        np.testing.assert_array_equal(bits((same, y)), bits((x, y)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", TYPES)
def test_a_gpu_gives_the_same_hash(dtype):
    x, y = values((50, 7, 5), dtype), torch.arange(50)
    np.testing.assert_array_equal(bits((x.cuda(), y.cuda())), bits((x, y)))


@settings(max_examples=300, deadline=None)
@given(
    dtype=st.sampled_from([t for t in TYPES if t is not torch.bool]),
    places=st.sets(st.integers(0, 19), min_size=1),
    bit=st.integers(0, 7),
    data=st.data(),
)
def test_other_bits_give_another_hash(dtype, places, bit, data):
    x, y = values((1, 20), dtype), torch.zeros(1)
    other = x.clone()
    raw = other.view(torch.uint8).reshape(20, -1)
    byte = data.draw(st.integers(0, raw.shape[1] - 1))
    for place in places:  # the same bit of several numbers: signs must not cancel
        raw[place, byte] ^= 1 << bit
    assert bits((other, y)) != bits((x, y))


def test_what_the_parts_are_called_and_how_long_they_are_counts():
    a, b, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), torch.zeros(1)
    pairs = [
        ({"a": a, "b": b}, y),
        ({"a": b, "b": a}, y),
        ({"a": a, "c": b}, y),
        ([a, b], y),
        ([b, a], y),
        (a, b),
        (b, a),
        (a, y),
        (a, y.double()),
        (a, y.int()),
        (torch.cat([a, torch.zeros(1, 1)], 1), y),
    ]
    assert len({int(bits(pair)[0]) for pair in pairs}) == len(pairs)
    assert bits(({"b": b, "a": a}, y)) == bits(({"a": a, "b": b}, y))
    assert bits(((a, b), y)) == bits(([a, b], y))  # a DataLoader makes lists of tuples
    assert bits((a.reshape(1, 2, 1), y)) == bits((a, y))


def test_what_has_no_row_per_instance_has_no_hash():
    assert hash_instances((torch.zeros(3, 2), torch.zeros(2))) is None
    assert hash_instances((torch.zeros(3, 2), torch.tensor(1.0))) is None
    assert hash_instances((["a"], ["b"])) is None


def pair_of(numbers):
    return torch.tensor(numbers, dtype=torch.float32)[:, None], torch.zeros(len(numbers))


def ids_of(*ids):
    return np.array(ids, dtype=np.int64)


def test_what_no_recorded_step_used_may_still_be_mended():
    notes = HashNotes()
    notes.see(ids_of(3, 9), pair_of([1, 2]))
    notes.see(ids_of(3, 9), pair_of([1, 7]))  # the first attempt failed
    notes.record(ids_of(9, 3, 9))
    notes.see(ids_of(3, 9), pair_of([5, 5]))  # the step is recorded: this is another run's
    notes.record(ids_of(3, 9, 4))
    ids, hashes = notes.since(0)
    assert dict(zip(ids, hashes)) == dict(zip([3, 9], bits(pair_of([1, 7]))))
    assert len(notes) == 2


def test_where_old_epochs_are_forgotten_the_last_look_counts():
    notes = HashNotes(renew=True)
    for numbers in ([1, 2], [1, 2], [1, 3]):
        notes.see(ids_of(0, 1), pair_of(numbers))
        notes.record(ids_of(0, 1))
    assert len(notes) == 3
    notes.sort()
    ids, hashes = notes.since(0)
    assert list(ids) == [0, 1] and list(hashes) == list(bits(pair_of([1, 3])))
    HashCheck(ids, hashes).see(ids_of(1, 0), pair_of([3, 1]))


def test_a_huge_id_takes_no_memory():
    notes = HashNotes()
    notes.see(ids_of(2**31 - 2), pair_of([1]))
    notes.record(ids_of(2**31 - 2))
    assert len(notes) == 0 and len(notes.known) == 0 and MAX_ID < 2**31


def test_a_difference_names_the_instances_and_what_is_not_noted_passes():
    check = HashCheck(np.arange(8), bits(pair_of(range(8))))
    check.see(ids_of(0, 7, 3, 3, 11), pair_of([0, 7, 3, 3, -1]))
    with pytest.raises(InputChanged, match=r"^Instance 3 has other inputs or labels"):
        check.see(ids_of(0, 3, 3), pair_of([0, 4, 4]))
    with pytest.raises(InputChanged, match=r"^Instances 0, 1, 2, 3, 4 and 3 more have other"):
        check.see(np.arange(8), pair_of(range(1, 9)))
