"""The seeds of a judgement."""

from typing import NamedTuple

from ..learning.edited_data import EncodedEdits


class SeedOfThree(NamedTuple):
    """One seed of a judgement, with which three models are trained."""

    number: int
    seed: int
    control: EncodedEdits
