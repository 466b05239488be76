"""Random transforms of batches: a replay applies them again, with the same random numbers."""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from .._checks import check_function, check_signature
from ..errors import InvalidInput, first_line
from .batch import Augment
from .seeds import global_generators, use_seed

_CALL = "augment(x, generator)"
_DRAW = "torch.rand(len(x), generator=generator, device=generator.device)"
_SEED = (
    "with torch.random.fork_rng(): torch.manual_seed(int(torch.randint(2**31, (), "
    "generator=generator, device=generator.device))); x = transform(x)"
)
#: for messages about random transforms that are elsewhere
MOVE_TO_AUGMENT = (
    "Remove random transforms from the dataset, and pass them as augment to dross.train or "
    f"dross.Recorder: a function {_CALL} that returns the transformed batch of inputs and draws "
    f"all random numbers from the generator, as in {_DRAW}. A replay then draws the same numbers."
)


def check_augment(augment: Augment | None) -> None:
    """Refuse an augmentation that cannot be called as dross calls it."""
    check_function(augment, "augment")
    if augment is not None:
        check_signature(augment, _CALL, "a batch of inputs and a torch.Generator")


def check_repeatable(augment: Augment, x: Any, device: torch.device) -> None:
    """Refuse an augmentation that a replay could not repeat.

    It is called twice: the generator starts from the same seed, the global ones from others. An
    augmentation that seeds global generators from its own is repeatable.

    Arguments:
        augment: of the run.
        x: the inputs of its first batch, which stay as they are.
        device: where random numbers are drawn.

    Raises:
        InvalidInput: if it fails, returns nothing, or draws other random numbers.
    """
    (one, one_drawn), (other, other_drawn) = (_try(augment, x, device, seed) for seed in (1, 2))
    drawn = [name for name in one_drawn if one_drawn[name] != other_drawn.get(name)]
    if not drawn and _is_same(one, other):
        return
    fault = f"draws random numbers from {' and '.join(drawn)}, not from the generator it receives"
    if not drawn:
        fault = "returns different inputs when it is called again with the same batch and generator"
    raise InvalidInput(
        f"augment {fault}, so a replay would use different inputs. Write augment(x, generator) so "
        f"that it draws all random numbers from the generator: {_DRAW}. To use a transform that accepts "
        f"no generator, seed it: {_SEED}."
    )


def _try(augment: Augment, x: Any, device: torch.device, seed: int) -> tuple[Any, dict[str, bytes]]:
    """What it returns, and the states of the global generators that it has moved."""
    generator = torch.Generator(device).manual_seed(0)
    copy = tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, x)
    with _global_seed(device, seed):
        before = _global_states(device)
        try:
            result = augment(copy, generator)
        except Exception as error:  # it is the user's code
            raise InvalidInput(
                f"{_CALL} failed on the first batch ({type(error).__name__}: {first_line(error)}). "
                "It must take the inputs of a batch and a torch.Generator, and return the inputs."
            ) from error
        after = _global_states(device)
    if result is None:
        raise InvalidInput(f"{_CALL} returned None: it must return the inputs of the batch.")
    return result, {name: after[name] for name in before if after[name] != before[name]}


@contextmanager
def _global_seed(device: torch.device, seed: int) -> Iterator[None]:
    """Inside: all global generators start from `seed`. Afterwards they are where they were."""
    of_python = random.getstate()
    of_numpy = np.random.get_state()
    try:
        random.seed(seed)
        np.random.seed(seed)
        with use_seed(device, seed):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _global_states(device: torch.device) -> dict[str, bytes]:
    states = [generator.get_state().numpy().tobytes() for generator in global_generators(device)]
    return {
        "torch's global generator": b"".join(states),
        "numpy.random": pickle.dumps(np.random.get_state()),
        "random": pickle.dumps(random.getstate()),
    }


def _is_same(one: Any, other: Any) -> bool:
    leaves, structure = tree_flatten(one)
    others, other_structure = tree_flatten(other)
    return structure == other_structure and all(map(_is_same_leaf, leaves, others))


def _is_same_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same_shape = one.shape == other.shape
        return same_shape and torch.equal(one.nan_to_num(), other.nan_to_num())
    return bool(np.all(one == other))
