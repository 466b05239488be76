"""How far a captured step is from what the GPU could do: its operations and bytes, counted, over the ceilings, measured.

    PYTHONPATH=src python benchmarks/passes.py [--only mnist] [--models 40]        DROSS_COMPILE=1 for the compiled passes

The floor is the larger of operations / the quickest strict float32 product and bytes / the quickest copy, where the bytes are those that must move even
with an unlimited cache: what goes in and what comes out. A third bound holds for a chain of small kernels: their number times the time of the smallest one.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from dross.replay.several_steps import AT_ONCE
from gpu import SHAPES, pair, recorded
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import dross
from dross.execution.cuda_graph import Graphs
from dross.influence.retrace import reverse_steps
from dross.replay.recording import Recording
from dross.replay.take_steps import take_steps
from dross.step.step import Derivative

REPLAYS = 100


@dataclass(frozen=True)
class Ceilings:
    operations: float  # per second
    bytes: float
    kernel: float  # seconds of the smallest kernel in a chain

    @staticmethod
    def measured() -> "Ceilings":
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
            2 * 8192**3 / timed(lambda: a @ b, 10),
            2 * source.nbytes / timed(lambda: target.copy_(source), 20),
            timed(graph.replay, 20) / 1000,
        )


def timed(function: Callable[[], object], times: int) -> float:
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times


def kernels(replay: Callable[[], object]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        replay()
        torch.cuda.synchronize()
    return sum(
        event.count for event in seen.key_averages() if str(event.device_type).endswith("CUDA")
    )


def show(
    name: str, graphs: Graphs, one_call: Callable[[], object], steps: int, ceilings: Ceilings
) -> None:
    """`one_call` makes one pass of so many steps (or models); the figures are per step."""
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
    moved = (
        sum(t.nbytes for t in tree_leaves([graph.inputs, graph.outputs]) if isinstance(t, Tensor))
        / steps
    )
    floor = max(operations / ceilings.operations, moved / ceilings.bytes)
    chain = kernels(replay) / steps
    took, used = timed(replay, REPLAYS) / steps, timed(one_call, REPLAYS) / steps
    print(
        f"| {name} | {operations / 1e9:.2f} | {moved / 1e6:.2f} | {floor * 1e6:.0f} | {chain:.0f} | {chain * ceilings.kernel * 1e6:.0f} "
        f"| {took * 1e6:.0f} | {took / floor:.1f} | {used * 1e6:.0f} |",
        flush=True,
    )


def passes(name: str, recording: Recording, models: int, ceilings: Ceilings) -> None:
    objective, optimizer = recording.objective, recording.optimizer
    segment = recording.segment(1)
    steps, state = segment.steps, segment.states[0]
    batches = recording.batches(segment.first, steps)
    states = [state] * len(steps)
    seed = torch.randn(1, len(state.theta), device="cuda")
    with objective.training():
        fed = batches[0][0]
        thetas = state.theta.expand(models, -1).clone()
        buffers = {key: b.expand(models, *b.shape).clone() for key, b in state.buffers.items()}
        w = torch.ones(models, len(fed.ids), device="cuda")
        several = lambda: take_steps(objective, optimizer, state, steps, batches)
        moving = {
            key: b for key, b in state.buffers.items() if b.is_floating_point()
        }  # BatchNorm's statistics, which a query depends on
        a_buffers = {key: torch.randn(1, *b.shape, device="cuda") for key, b in moving.items()}
        adjoint = Derivative(seed, {}, a_buffers)
        back = lambda: reverse_steps(
            recording, steps, batches, states, [None] * len(steps), adjoint, True, lambda _: None
        )
        graphs = objective.graphs
        show(
            f"{name}: training step",
            graphs,
            lambda: objective.gradient(state.theta, state.buffers, fed),
            1,
            ceilings,
        )
        show(
            f"{name}: {len(steps)} training steps, per step", graphs, several, len(steps), ceilings
        )
        show(
            f"{name}: reverse step",
            graphs,
            lambda: objective.pull(state.theta, state.buffers, fed, seed, a_buffers),
            1,
            ceilings,
        )
        show(f"{name}: {len(steps)} reverse steps, per step", graphs, back, len(steps), ceilings)
        many = lambda: objective.gradients(thetas, buffers, fed, w)
        show(f"{name}: step of {models} models, per model", graphs, many, models, ceilings)
        queries = torch.randn(64, len(state.theta), device="cuda")
        a_buffers = {key: torch.randn(64, *b.shape, device="cuda") for key, b in moving.items()}
        asked = lambda: objective.pull(state.theta, state.buffers, fed, queries, a_buffers)
        show(f"{name}: reverse step of 64 queries, per query", graphs, asked, 64, ceilings)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(SHAPES))
    parser.add_argument("--models", type=int, default=40)
    given = parser.parse_args()
    ceilings = Ceilings.measured()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: strict float32 products {ceilings.operations / 1e12:.1f} TFLOP/s, "
        f"copies {ceilings.bytes / 1e12:.2f} TB/s, the smallest kernel {ceilings.kernel * 1e6:.2f} us\n\n"
        "| pass | GFLOP | MB in and out | floor, us | kernels | their floor, us | takes, us | times the floor | with Python around it, us |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        flush=True,
    )
    for name in [given.only] if given.only else SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            run = recorded(
                name,
                pair(SHAPES[name], 64 * 64),
                1,
                Path(folder) / "tape",
                dross.Checkpoints(AT_ONCE),
            )
            passes(name, run.recording, given.models, ceilings)


if __name__ == "__main__":
    main()
