"""How far a captured step is from what the GPU could do.

    PYTHONPATH=src python benchmarks/passes.py [--only mnist] [--models 40]

DROSS_COMPILE=1 shows the compiled passes. A step's operations and bytes are counted, the GPU's
ceilings are measured. The floor is the larger of operations / the quickest strict float32 product
and bytes / the quickest copy, where the bytes are those that must move even with an unlimited
cache: what goes in and what comes out. A third bound holds for a chain of small kernels: their
number times the time of the smallest one.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu import SHAPES, make_data, record
from tables import make_parser, print_head, print_row
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import dross
from dross.engine.cuda_graph import Graphs
from dross.engine.state import Derivative
from dross.engine.step import STEPS_AT_ONCE, take_steps
from dross.influence.retrace import reverse_steps
from dross.replay.recording import Recording
from dross.replay.segments import Block

REPLAYS = 100


@dataclass(frozen=True)
class Ceilings:
    """What the GPU can do at most."""

    operations: float  # per second
    bytes: float
    kernel: float  # seconds of the smallest kernel in a chain

    @staticmethod
    def measure() -> "Ceilings":
        """Time a large product, a large copy and a chain of small kernels."""
        a, b = torch.randn(2, 8192, 8192, device="cuda")
        source = torch.zeros(1 << 28, device="cuda")
        target, one = torch.empty_like(source), torch.zeros(1, device="cuda")

        def chain() -> None:
            for _ in range(1000):
                one.add_(1)

        chain()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        return Ceilings(
            2 * 8192**3 / seconds_of(lambda: a @ b, 10),
            2 * source.nbytes / seconds_of(lambda: target.copy_(source), 20),
            seconds_of(graph.replay, 20) / 1000,
        )


def seconds_of(function: Callable[[], object], times: int) -> float:
    """The mean time of a call."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def count_kernels(replay: Callable[[], object]) -> int:
    """How many kernels a replay starts."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        replay()
        torch.cuda.synchronize()
    return sum(
        event.count for event in seen.key_averages() if str(event.device_type).endswith("CUDA")
    )


def show(
    name: str, graphs: Graphs, one_call: Callable[[], object], steps: int, ceilings: Ceilings
) -> None:
    """Print the figures of a pass, per step: `one_call` takes `steps` steps (or models)."""
    one_call()  # what is decided once is not counted
    graphs.forget()
    with FlopCounterMode(display=False) as counted:
        one_call()
    for _ in range(5):
        one_call()
    captured = [graph for graph in graphs._graphs.values() if graph.trusted]
    if not captured:
        print(f"| {name} | not captured |", flush=True)
        return
    graph = captured[-1]
    replay = graph.graph.replay
    operations = counted.get_total_flops() / steps
    leaves = tree_leaves([graph.inputs, graph.outputs])
    moved = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor)) / steps
    floor = max(operations / ceilings.operations, moved / ceilings.bytes)
    kernels = count_kernels(replay) / steps
    took, used = seconds_of(replay, REPLAYS) / steps, seconds_of(one_call, REPLAYS) / steps
    microseconds = lambda seconds: f"{seconds * 1e6:.0f}"
    print_row(
        name,
        f"{operations / 1e9:.2f}",
        f"{moved / 1e6:.2f}",
        microseconds(floor),
        f"{kernels:.0f}",
        microseconds(kernels * ceilings.kernel),
        microseconds(took),
        f"{took / floor:.1f}",
        microseconds(used),
    )


def show_passes(name: str, recording: Recording, models: int, ceilings: Ceilings) -> None:
    """Print the figures of every kind of pass."""
    executor, optimizer = recording.executor, recording.optimizer
    segment = recording.segment(1)
    steps, state = segment.steps, segment.states[0]
    batches = recording.batches(segment.first, steps)
    seed = torch.randn(1, len(state.theta), device="cuda")
    with executor.training():
        batch = batches[0][0]
        thetas = state.theta.expand(models, -1).clone()
        buffers = {key: b.expand(models, *b.shape).clone() for key, b in state.buffers.items()}
        w = torch.ones(models, len(batch.ids), device="cuda")
        several = lambda: take_steps(executor, optimizer, state, steps, batches)
        # BatchNorm's statistics, which a query depends on
        moving = {key: b for key, b in state.buffers.items() if b.is_floating_point()}
        a_buffers = {key: torch.randn(1, *b.shape, device="cuda") for key, b in moving.items()}
        adjoint = Derivative(seed, {}, a_buffers)
        block = Block(segment.first, steps, batches, [state] * len(steps), [None] * len(steps))
        back = lambda: reverse_steps(recording, block, adjoint, True, lambda _: None)
        graphs, count = executor.graphs, len(steps)
        gradient = lambda: executor.gradient(state.theta, state.buffers, batch)
        show(f"{name}: training step", graphs, gradient, 1, ceilings)
        show(f"{name}: {count} training steps, per step", graphs, several, count, ceilings)
        pull = lambda: executor.pull(state.theta, state.buffers, batch, seed, a_buffers)
        show(f"{name}: reverse step", graphs, pull, 1, ceilings)
        show(f"{name}: {count} reverse steps, per step", graphs, back, count, ceilings)
        many = lambda: executor.gradients(thetas, buffers, batch, w)
        show(f"{name}: step of {models} models, per model", graphs, many, models, ceilings)
        queries = torch.randn(64, len(state.theta), device="cuda")
        wide = {key: torch.randn(64, *b.shape, device="cuda") for key, b in moving.items()}
        pull_many = lambda: executor.pull(state.theta, state.buffers, batch, queries, wide)
        show(f"{name}: reverse step of 64 queries, per query", graphs, pull_many, 64, ceilings)


def main() -> None:
    """Print the ceilings, and one line per pass."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", choices=list(SHAPES))
    parser.add_argument("--models", type=int, default=40)
    options = parser.parse_args()
    ceilings = Ceilings.measure()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: "
        f"strict float32 products {ceilings.operations / 1e12:.1f} TFLOP/s, "
        f"copies {ceilings.bytes / 1e12:.2f} TB/s, "
        f"the smallest kernel {ceilings.kernel * 1e6:.2f} us\n"
    )
    print_head(
        "pass",
        "GFLOP",
        "MB in and out",
        "floor, us",
        "kernels",
        "their floor, us",
        "takes, us",
        "times the floor",
        "with Python around it, us",
    )
    for name in [options.only] if options.only else SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            data, keep = make_data(SHAPES[name], 64 * 64), dross.tape.Checkpoints(STEPS_AT_ONCE)
            run = record(name, data, 1, Path(folder) / "tape", keep)
            show_passes(name, run.recording, options.models, ceilings)


if __name__ == "__main__":
    main()
