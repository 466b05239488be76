"""Passes over a model, compiled by torch's compiler. `DROSS_COMPILE=1` switches this on.

A pass is traced with its derivatives down to elementary operations. The compiler then sees one
straight program without autograd, and fuses what eager kernels do one after the other. Compiling
takes tens of seconds the first time (the compiler caches its results on disk) and pays off for runs
of minutes, so it is off by default. The arithmetic stays strict float32, in a fixed order.
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
    """`function`, compiled for inputs of these shapes.

    Arguments:
        function: takes tensors and returns tensors in tuples and dicts.
        inputs: tensors to trace it with.
    """
    traced = make_fx(function)(*inputs)
    traced.graph.eliminate_dead_code()  # checks of shapes, which are known
    traced.recompile()
    # channels last is faster in bfloat16 and slower in strict float32
    options: dict[str, Any] = {"layout_optimization": False}
    quick = torch.compile(traced, fullgraph=True, dynamic=False, options=options)

    def run(*tensors: Tensor) -> Any:
        with torch.no_grad():
            return quick(*tensors)

    run(*inputs)  # compile now, not while a graph is being captured
    return run
