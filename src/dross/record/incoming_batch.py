"""Take a batch from a loop: its ids are checked, its data moved and compared."""

from typing import Any

import numpy as np
from torch.utils._pytree import tree_map

from ..data.batch import Batch, MicroBatch, make_batch
from ..data.dataset import check_ids, move_to
from ..engine.inspect import count_instances
from ..errors import InvalidInput
from .loop_tape import LoopTape, UserLoop
from .replayable import check_first_batch


def take_batch(
    loop: UserLoop, tape: LoopTape, position: tuple[int, int], ids: Any, x: Any, y: Any
) -> tuple[Batch, np.ndarray]:
    """A batch as the loop gives it, and its ids.

    Arguments:
        loop: what is trained.
        tape: where it is recorded.
        position: the number of the step, and the batch's place in it.
        ids: of the instances [B].
        x: the inputs, as the data set has them.
        y: the labels.

    Raises:
        InvalidInput: for ids that cannot be used.
        NotSupported: where the first batch is not what the data set gives.
    """
    instances = loop.instances
    most = len(instances) if instances else np.iinfo(np.int32).max
    ids = check_ids(ids, most, "Instance ids")
    x, y = (tree_map(lambda t: move_to(t, loop.device, loop.dtype), part) for part in (x, y))
    if len(ids) != count_instances(y):
        raise InvalidInput(
            f"{len(ids)} ids came with {count_instances(y)} labels: pass the id of every instance "
            "of the batch."
        )
    if instances is not None and tape.opened is None:
        check_first_batch(instances, ids, x, y)
    where = (loop.seed, position, loop.augment, loop.device, loop.dtype)
    return make_batch(x, y, MicroBatch(ids), *where), ids
