"""Find out from a model under fully_shard, its optimizer and a batch what a run consists of.

It is what engine/inspect.py finds of a whole model, but no rank ever has all of its parameters.
"""

from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..engine.inspect import (
    FirstBatch,
    check_second_derivative,
    complete_objective,
    is_shard,
    names_by_group,
    watch_first_batch,
)
from ..engine.objective import Objective
from ..engine.optim import Optimizer, read_optimizer
from ..engine.state import Layout, State
from ..errors import InvalidInput, NotSupported
from ..tape.reader import Tape
from .gather import (
    GatheredParameters,
    GatheringLayout,
    ShardedObjective,
    saving_notes,
    shard_objective,
)
from .ranks import RankReducer
from .shards import ShardReducer
from .tape import ShardTape


def is_sharded(model: nn.Module) -> bool:
    """Whether a model's parameters are in shards, as fully_shard makes them."""
    return any(is_shard(p) for p in model.parameters())


def ranks_of(model: nn.Module) -> RankReducer:
    """The ranks that hold the shards of this model.

    Raises:
        NotSupported: where the parameters are not in shards of rows over one group of ranks.
    """
    parameters: list[tuple[str, Any]] = list(model.named_parameters())
    meshes = {p.device_mesh for _, p in parameters if is_shard(p)}
    for name, p in parameters:
        if is_shard(p) and not p.requires_grad:
            raise NotSupported(
                f"The frozen parameter '{name}' is sharded. dross needs frozen parameters to be "
                "unsharded: pass them to fully_shard as ignored_params."
            )
        placed = p.placements if is_shard(p) else "whole"
        if p.requires_grad and str(placed) != "(Shard(dim=0),)":
            raise NotSupported(
                f"The parameter '{name}' is {placed}. dross records only loops in which "
                "fully_shard shards every trainable parameter along dimension 0, over a "
                "one-dimensional mesh."
            )
    if len(meshes) != 1:
        raise NotSupported(
            "The parameters are on more than one mesh: use a single mesh for the whole model."
        )
    for name, module in model.named_modules():
        if hasattr(module, "_get_fsdp_state"):
            policy = module._get_fsdp_state()._mp_policy  # type: ignore[operator]
            if policy.param_dtype is not None or policy.reduce_dtype is not None:
                raise NotSupported(
                    f"'{name or type(model).__name__}' has a MixedPrecisionPolicy, which dross "
                    "does not support: pass autocast=torch.bfloat16 to the recorder."
                )
    device = next(model.parameters()).device
    return RankReducer(meshes.pop().get_group(), device)


def refuse_to_open() -> NoReturn:
    """A model under fully_shard is trained, and not queried."""
    raise NotSupported(
        "The tape cannot be opened while the model is under fully_shard. Call recorder.close() "
        "on every rank, then call dross.load(path, model, data, loss) with a model that is not "
        "under fully_shard (it may be on the meta device), and run.influence(query, group=..., sharded=True)."
    )


class LocalLayout(GatheringLayout):
    """A layout that reads this rank's shards from DTensors."""

    def flatten(self, named: dict[str, Tensor]) -> Tensor:
        """This rank's parts, one after the other: [p_r]."""
        return torch.cat([self.local(named[name]).reshape(-1) for name in self.names])

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """[p_r] -> this rank's part of each parameter."""
        assert self.ranks is not None
        return dict(zip(self.names, vector.split(self.ranks.layout.sizes(self.ranks.rank), -1)))

    def write(self, state: State, model: nn.Module) -> None:
        """Copy this rank's shard of theta into the model's."""
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, part in self.split(state.theta).items():
                own = self.local(parameters[name])
                own.copy_(part.view_as(own))

    def wrap(self, part: Tensor, parameter: Tensor) -> Tensor:
        """A DTensor in which this part of a slot is this rank's, laid out as the parameter is."""
        from torch.distributed.tensor import DTensor  # takes a third of a second to import

        own = part.clone().view_as(self.local(parameter))
        return DTensor.from_local(
            own,
            device_mesh=parameter.device_mesh,  # type: ignore[attr-defined]
            placements=parameter.placements,  # type: ignore[attr-defined]
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    def local(self, t: Tensor) -> Tensor:
        """This rank's part of a tensor of torch's."""
        if not is_shard(t):
            raise InvalidInput(
                "The model's parameters are currently unsharded, because a forward pass was run "
                "without backward(): call model.reshard() after it."
            )
        return t.to_local()  # type: ignore[attr-defined]


def own_shards(
    tape: Tape, layout: Layout, optimizer: Optimizer, ranks: RankReducer
) -> tuple[Tape, Layout, Optimizer]:
    """A tape, a layout and an optimizer as this rank has them. All ranks call this.

    Raises:
        CorruptFile: where the files of the tape's end are not as they were written.
    """
    shards = ShardReducer(ranks.group, ranks.device, layout)
    own_tape = ShardTape(tape, shards)
    own_tape.check_steps(tape.steps, tape.steps, show=False)
    own_sizes = shards.layout.group_sizes(ranks.rank)
    own_optimizer = replace(optimizer, group_sizes=own_sizes, shapes=())
    return own_tape, LocalLayout.of(layout, shards), own_optimizer


def inspect_sharded(
    bare: Objective, optimizer: torch.optim.Optimizer, batch: Batch, ranks: RankReducer
) -> tuple[Objective, ShardedObjective, Optimizer]:
    """What a run under fully_shard consists of. All ranks call this with a batch each.

    Arguments:
        bare: an objective that does not know yet which parameters train.
        optimizer: the loop's.
        batch: the first one of this rank.
        ranks: that train together.

    Returns:
        The objective as the tape knows it, the one that computes with shards, and the optimizer.

    Raises:
        NotSupported: for a model or an optimizer that cannot be recorded so.
    """
    parameters = dict(bare.model.named_parameters())
    every = Layout.of_groups(parameters, names_by_group(parameters, optimizer))
    seen = _run_first_batch(_shard(replace(bare, layout=every), ranks), batch)
    seen = replace(seen, used=set().union(*ranks.gather(seen.used)))
    objective, groups = complete_objective(bare, optimizer, seen)
    sharded = _shard(objective, ranks)
    assert sharded.gathering.ranks is not None
    own_sizes = sharded.gathering.ranks.layout.group_sizes(ranks.rank)
    pure = replace(
        read_optimizer(optimizer, groups).for_layout(objective.layout),
        group_sizes=own_sizes,
        shapes=(),
        slices=(),
    )
    if pure.rule is None:
        raise NotSupported(
            f"{pure.name} needs unsharded parameters, but under fully_shard no rank holds a "
            "whole parameter. Use an elementwise optimizer, such as AdamW."
        )
    check_second_derivative(sharded, batch.x, batch.y)
    return objective, sharded, pure


def _shard(objective: Objective, ranks: RankReducer) -> ShardedObjective:
    shards = ShardReducer(ranks.group, ranks.device, objective.layout)
    return shard_objective(objective, shards, LocalLayout)


def _run_first_batch(objective: ShardedObjective, batch: Batch) -> FirstBatch:
    """All ranks do this, with a batch each; which parameters were used may differ between them."""
    layout = objective.gathering
    model = objective.model
    assert layout.units is not None
    theta = layout.read(model)[0]
    leaves = {
        name: part.detach().clone().requires_grad_()
        for name, part in layout.split(theta).items()  # type: ignore[attr-defined]
    }
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    gathered = GatheredParameters(layout.units.of, leaves, 1.0)
    with layout.ranks_compute_the_same(), saving_notes():  # no order is known yet
        seen = watch_first_batch(
            objective,
            leaves,
            lambda: objective.call(gathered, {}, batch.x),
            lambda outputs: objective.apply_loss(outputs, batch.y),
        )
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise NotSupported(
                f"The forward pass updates the buffer '{name}', and under fully_shard each rank "
                "has a separate copy of it. Put BatchNorm into eval mode, or use GroupNorm or "
                "LayerNorm."
            )
    return seen
