"""Passes over a model put through torch's compiler, where that was asked for by `DROSS_COMPILE=1`.

The pass is traced with its derivatives down to elementary operations, so the compiler sees one straight program without autograd and
joins what eager kernels do one after the other. It takes tens of seconds the first time (the compiler keeps its results on disk), which pays
for runs of minutes; therefore it is asked for. The arithmetic stays strict float32, in a fixed order.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx


def is_requested() -> bool:
    """Whether DROSS_COMPILE=1 asks for the compiler."""
    return os.environ.get("DROSS_COMPILE") == "1"


def compile_function(function: Callable, inputs: list[Tensor]) -> Callable[..., Any]:
    """function(*tensors) -> tensors in tuples and dicts, compiled for inputs of these shapes."""
    traced = make_fx(function)(*inputs)
    traced.graph.eliminate_dead_code()  # checks of shapes, which are known
    traced.recompile()
    # the compiler would turn convolutions to channels last, which is quicker in bfloat16 and slower in strict float32
    quick = torch.compile(
        traced, fullgraph=True, dynamic=False, options={"layout_optimization": False}
    )

    def run(*tensors: Tensor) -> Any:
        with torch.no_grad():
            return quick(*tensors)

    run(*inputs)  # compile now: not while a graph is being captured
    return run
