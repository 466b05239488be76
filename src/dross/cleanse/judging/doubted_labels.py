"""Test labels that the models of a judgement doubt.

Both kinds of models are asked, as many that learnt everything as learnt the edited data. What the
edited ones alone doubt would be what they get wrong, and leaving it out would favour the edits.
"""

import numpy as np
from torch import Tensor

from ..doubts.labels import find_doubted
from ..learning.recipe import Recipe


def doubt_test_labels(recipe: Recipe, said: dict[str, Tensor], y: Tensor) -> np.ndarray:
    """Which labels of the test part are doubted, bool [test].

    Arguments:
        recipe: Of the project.
        said: What the models say of the test part. `outputs` is [seeds, 3, test, outputs]; without
            probabilities there is none, and nothing is doubted.
        y: The labels as a model learns them.
    """
    if "outputs" not in said:
        return np.zeros(len(y), dtype=bool)
    before_and_after = said["outputs"][:, :2].flatten(0, 1)
    return find_doubted(recipe, before_and_after.numpy(), y)
