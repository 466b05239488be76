"""The SGD-influence on the parameters: theta_-j - theta, by the same linear map run forwards.

    delta_{t+1} = Z_t delta_t + eta_t/|S_t| g(z_j; theta_t) [j in S_t]            (plain SGD)

for many instances at once. <u, delta_j> is the score that the retrace gives z_j, where u is the
query's gradient.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .._progress import progress_bar
from ..engine.state import Derivative
from ..engine.step import jvp_step, sum_over_batches
from ..replay.recording import Recording, TakenStep


@dataclass(frozen=True)
class ParameterInfluence(Mapping):
    """How each parameter would differ without each of J instances, to first order.

    A mapping from the parameter's name to [J, *shape]. Made by `Run.parameter_influence`.
    """

    instances: np.ndarray  # int64 [J]: their ids
    parameters: dict[str, Tensor]  # each [J, *shape]
    buffers: dict[str, Tensor]  # the same for BatchNorm's running statistics
    flat: Tensor  # [J, p]: all parameters concatenated, in the order of `parameters`

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    def __repr__(self) -> str:
        count = len(self.instances)
        size = self.flat.shape[1]
        return f"<ParameterInfluence of {count} instances on {size:,} parameters>"


def parameter_influence(
    recording: Recording, instances: np.ndarray, *, progress: bool = False
) -> ParameterInfluence:
    """How the parameters would differ without each of these instances, to first order."""
    tape = recording.tape
    objective = recording.objective
    tangent = Derivative.zeros(recording.state_at(tape.first), len(instances), objective.held)
    chosen = torch.as_tensor(instances)
    recording.check_unchanged()
    total = tape.steps - tape.first
    with (
        recording.executor.training(),
        progress_bar("following instances", total, show=progress) as advance,
    ):
        for taken in recording.walk_forward():
            tangent = forward_step(recording, taken, chosen, tangent)
            advance(1)
    named = objective.layout.unflatten(tangent.theta)
    order = [name for name, _ in objective.model.named_parameters() if name in named]
    flat = torch.cat([named[name].reshape(len(instances), -1) for name in order], dim=1)
    ordered = {name: named[name] for name in order}
    return ParameterInfluence(instances, ordered, tangent.buffers, flat)


def forward_step(
    recording: Recording, taken: TakenStep, chosen: Tensor, tangent: Derivative
) -> Derivative:
    """The tangent after a step: how the state changes as an instance's weight falls from 1 to 0.

    Arguments:
        recording: the run.
        taken: the step.
        chosen: the ids of the J instances that are followed.
        tangent: before the step, with a leading axis [J].
    """
    executor = recording.executor
    state = taken.state
    buffers = taken.state.buffers

    def jvp_batch(item, buffers_dot: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal buffers
        micro, batch = item
        present = (chosen[:, None] == torch.as_tensor(micro.ids)[None, :]).to(batch.c)  # [J, B]
        scaled = batch.scaled(taken.step.scale)
        g_dot, buffers_dot = executor.jvp(
            state.theta, buffers, scaled, tangent.theta, buffers_dot, -present
        )
        if buffers_dot:
            _, buffers = executor.losses(state.theta, buffers, batch)
        return g_dot, buffers_dot

    items = zip(taken.step.micros, taken.batches)
    g_dot, buffers_dot = sum_over_batches(items, tangent.buffers, jvp_batch, tangent.theta)
    after = jvp_step(recording.optimizer, state, taken.step, taken.gradient, tangent, g_dot)
    return replace(after, buffers=buffers_dot)
