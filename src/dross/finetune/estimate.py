"""How long everything takes and what it needs, from a few steps that are timed on this machine."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidInput
from .plans import count_trials
from .tuner import Tuner

_TIMED = 4  # steps, after a first one that is not
_RETRACE = 6.0  # times a training: a retrace by token for two numbers, and its replay
_STATE = 12  # bytes of a parameter in a state: itself and two of Adam
_KEPT_WHOLE = 128e6  # bytes of states that a tape keeps without checkpoints
LONG = 3600.0  # seconds: what takes longer is not started without --force


@dataclass(frozen=True)
class Cost:
    """What a job is expected to take."""

    training: float  # seconds of one fine-tuning
    seconds: float  # of dross clean
    verdict: float  # seconds of dross judge
    memory: float  # bytes
    disk: float  # bytes


def estimate(tuner: Tuner, train: Sequence[int], asked: int, seeds: int) -> Cost:
    """Time a few steps.

    Arguments:
        tuner: The model.
        train: The training examples.
        asked: How many examples are measured after each fine-tuning.
        seeds: Of a verdict.
    """
    ended: list[float] = []
    tuner.train(train, 0, lambda _: ended.append(time.monotonic()), steps=1 + _TIMED)
    step = (ended[-1] - ended[0]) / _TIMED
    started = time.monotonic()
    tuner.measure(train[: tuner.options.batch_size])
    measuring = (time.monotonic() - started) * asked / tuner.options.batch_size
    training, runs = step * tuner.steps + measuring, tuner.options.repeats
    states = tuner.steps * _STATE * tuner.parameters
    if states > _KEPT_WHOLE:
        states = 2 * math.sqrt(tuner.steps) * _STATE * tuner.parameters
    whole = sum(p.numel() for p in tuner.model.parameters())
    return Cost(
        training,
        training * (runs * (1 + _RETRACE) + count_trials(len(train))),
        training * 3 * seeds,
        4.0 * whole + 12 * _STATE * tuner.parameters,
        float(runs * states),
    )


def describe(cost: Cost) -> str:
    """The cost in words."""
    return (
        f"One fine-tuning takes about {_duration(cost.training)} here, everything about "
        f"{_duration(cost.seconds)}, {_bytes(cost.memory)} of memory beside the texts, and "
        f"{_bytes(cost.disk)} of disk. The verdict (dross judge) takes about "
        f"{_duration(cost.verdict)} more."
    )


def check_affordable(cost: Cost, tuner: Tuner, count: int, *, force: bool) -> None:
    """Refuse what takes longer than an hour, unless the user forces it, and say what fits.

    Raises:
        InvalidInput: it takes too long.
    """
    if force or cost.seconds <= LONG:
        return
    share = LONG / cost.seconds
    ways = [f"about {max(1, round(share * count)):,} of the {count:,} examples"]
    options = tuner.options
    longest = max(len(example["input_ids"]) for example in tuner.examples)
    if share * longest >= 16:
        ways.append(f"`max_tokens` of {int(share * longest)}")
    if options.lora is None or options.last_layers is None:
        adapters = "`lora` of 8 and `last_layers` of 2"
        ways.append(f"{adapters}, which train adapters of the last layers only")
    where = "without a GPU" if tuner.device.type == "cpu" else "on this GPU"
    raise InvalidInput(
        f"This takes about {_duration(cost.seconds)} {where}. Nothing that takes more "
        f"than an hour starts unless you pass `force`. What fits into an hour: "
        f"{'; or '.join(ways)}."
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, count / 1e6):.0f} MB"
