"""Functions of the user that are passed tensors, and use those of the model instead."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..errors import InvalidInput


class RefuseLive(TorchFunctionMode):
    """Inside, an operation on one of these parameters raises InvalidInput.

    dross passes a function the parameters of a recorded step. If the function calls the model
    itself, its result does not depend on them: every derivative of it is 0.
    """

    def __init__(self, parameters: Iterable[Tensor], message: str):
        super().__init__()
        self.live = {id(p) for p in parameters}
        self.message = message

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Call it, and refuse a tensor that was computed from a live parameter."""
        result = func(*args, **(kwargs or {}))
        uses_one = any(id(leaf) in self.live for leaf in tree_leaves((args, kwargs)))
        if uses_one and any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            raise InvalidInput(self.message)
        return result


def depends_on(value: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Whether autograd has a path from a value to one of these leaves."""
    wanted = {id(leaf) for leaf in inputs}
    waiting = [value.grad_fn]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in wanted:
            return True
        waiting += [parent for parent, _ in node.next_functions]
    return any(value is leaf for leaf in inputs)
