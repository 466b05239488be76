"""The SGD-influence itself: the estimated theta_-j - theta, by the same linear map run forwards.

    delta_{t+1} = Z_t delta_t + eta_t/|S_t| g(z_j; theta_t) [j in S_t]            (plain SGD)

for many instances at once. <u, delta_j> is the score that the retrace gives z_j, u being the query's gradient.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..replay.recording import Recording
from ..replay.take_steps import take_step
from ..step.layout import State
from ..step.step import Derivative, push
from ..support.progress import progress_bar


@dataclass(frozen=True)
class ParameterInfluence(Mapping):
    """name -> [J, *shape]: how each parameter would differ without each of J instances, to first order."""

    instances: np.ndarray
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]  # the same for BatchNorm's running statistics
    flat: Tensor  # [J, p]: all parameters side by side, in the order of `parameters`

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    def __repr__(self) -> str:
        return f"<ParameterInfluence of {len(self.instances)} instances on {self.flat.shape[1]:,} parameters>"


def parameter_influence(
    recording: Recording, instances: np.ndarray, *, progress: bool = False
) -> ParameterInfluence:
    tape, objective, optimizer = recording.tape, recording.objective, recording.optimizer
    state = recording.state_at(tape.first)
    tangent = _zero(state, len(instances))
    chosen = torch.as_tensor(instances)
    recording.check_unchanged()
    with (
        objective.training(),
        progress_bar("following instances", tape.steps - tape.first, show=progress) as advance,
    ):
        for index, segment in enumerate(recording.segments(range(len(tape.entries)))):
            state = segment.states[0]
            all_batches = recording.batches(segment.first, segment.steps)
            for k, (step, batches) in enumerate(zip(segment.steps, all_batches)):
                state = segment.states[k] if len(segment.states) == len(segment.steps) else state
                after, g, _ = take_step(objective, optimizer, state, step, batches)
                g_dot, buffers, buffers_dot = (
                    torch.zeros_like(tangent.theta),
                    state.buffers,
                    tangent.buffers,
                )
                for micro, batch in zip(step.micros, batches):
                    present = (chosen[:, None] == torch.as_tensor(micro.ids)[None, :]).to(
                        batch.c
                    )  # [J, B]
                    part, buffers_dot = objective.push(
                        state.theta, buffers, batch, tangent.theta, buffers_dot, -present
                    )
                    g_dot = g_dot + part
                    if buffers_dot:
                        with torch.no_grad():
                            _, buffers = objective.losses(state.theta, buffers, batch)
                tangent = push(optimizer, state, step, g, tangent, g_dot)
                tangent = Derivative(tangent.theta, tangent.slots, buffers_dot)
                state = after
                advance(1)
            recording.check_arrival(index, state, segment)
    named = objective.layout.unflatten(tangent.theta)
    ordered = {name: named[name] for name, _ in objective.model.named_parameters() if name in named}
    flat = torch.cat([value.reshape(len(instances), -1) for value in ordered.values()], dim=1)
    return ParameterInfluence(instances, ordered, tangent.buffers, flat)


def _zero(state: State, count: int) -> Derivative:
    zeros = lambda t: torch.zeros(count, *t.shape, dtype=t.dtype, device=t.device)
    floating = {name: b for name, b in state.buffers.items() if b.is_floating_point()}
    return Derivative(
        zeros(state.theta),
        {n: zeros(s) for n, s in state.slots.items()},
        {n: zeros(b) for n, b in floating.items()},
    )
