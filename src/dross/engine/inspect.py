"""Find out what a run consists of from a model, its optimizer and a batch, or refuse it."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from ..data.batch import Batch
from ..data.seeds import global_generators, use_seed
from ..errors import DrossError, DrossWarning, InvalidInput, NotSupported, first_line
from .autodiff import call_model, probe_direction, refuse_inference_mode
from .live import RefuseLive
from .losses import Loss, check_differentiable, check_labels, check_per_instance, find_loss
from .norms import statistics_of
from .objective import Objective, Penalty
from .optim import Optimizer, read_optimizer
from .precision import MATH, STRICT, PassNotes, Precision, use_arithmetic
from .state import Layout
from .tolerance import ROUNDING, is_close

_LIVE = (
    "The loss or the penalty uses parameters of the live model, which are not those of the step "
    "that is replayed. Let the model return everything that the loss needs, and compute "
    "penalty(params) from `params`."
)


def inspect_run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: str | Loss,
    penalty: Penalty | None,
    x: Any,
    y: Any,
    *,
    precision: Precision = STRICT,
) -> tuple[Objective, Optimizer]:
    """The objective and the pure optimizer of a run whose first batch is (x, y).

    The model is left as it was.

    Arguments:
        model, optimizer, loss, penalty: of the run.
        x, y: its first batch.
        precision: in which the loop computes, as far as it is known.
    """
    check_optimizer(optimizer)
    loss_name, loss_function = find_loss(loss)
    nothing = Layout.of_groups({}, [])
    bare = Objective(model, nothing, loss_function, loss_name, penalty, precision=precision)
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    first_batch = _run_first_batch(bare, x, y, trained)
    objective, groups = complete_objective(bare, optimizer, first_batch)
    description = read_optimizer(optimizer, groups)
    check_second_derivative(objective, x, y)
    _warn_of_held_buffers(objective)
    return objective, description.for_layout(objective.layout)


def is_shard(t: Any) -> bool:
    """Whether a tensor is a DTensor, of which this process has a part."""
    return hasattr(t, "to_local")  # by its method: the class takes long to import


def check_optimizer(optimizer: object) -> None:
    """Refuse anything that is not a torch optimizer."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInput(
            f"optimizer must be a torch.optim optimizer, not {type(optimizer).__name__}."
        )


def unwrap_optimizer(optimizer: Any) -> Any:
    """The optimizer of torch inside that of a trainer (Accelerate's, Lightning's)."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrap_optimizer(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def unwrap_model(model: Any) -> nn.Module:
    """The module that can be differentiated twice: of a compiled one, the original.

    Compiled parts of it run as written in dross's own passes (`plain_passes`).
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module, not {type(model).__name__}.")
    original = getattr(model, "_orig_mod", None)
    model = original if isinstance(original, nn.Module) else model
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise NotSupported(
            f"{type(model).__name__} is not supported here: pass the underlying module, "
            "model.module. To record a loop under DistributedDataParallel, use dross.Recorder."
        )
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise NotSupported(
                f"The module '{name or type(model).__name__}' is a TorchScript module, which "
                "cannot be differentiated twice. Record the model before scripting it; "
                "torch.compile is fine."
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise NotSupported(f"'{name}' has sparse gradients. Build it with sparse=False.")
    return model


def device_and_dtype(
    model: nn.Module, *, without_weights: bool = False
) -> tuple[torch.device, torch.dtype]:
    """Where the trainable parameters are, and their type; both must be one and the same for all.

    A model that cannot be trained as it is, is refused here.

    without_weights: they may be on the meta device, where their own values are not used. Then
        the default device is meant.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise InvalidInput("The model has no trainable parameters.")
    if any(is_lazy(p) for p in parameters):
        raise InvalidInput(
            "The model has uninitialized lazy parameters: call it once on a batch, and create the "
            "optimizer afterwards."
        )
    if any(p.is_inference() for p in parameters):
        raise InvalidInput(
            "The model was created inside torch.inference_mode() and cannot be trained. Create it "
            "outside that context."
        )
    refuse_inference_mode()
    kinds = {(p.device, p.dtype) for p in parameters}
    if len(kinds) > 1:
        raise NotSupported(
            "The trainable parameters must share one device and one dtype; found "
            f"{sorted(map(str, kinds))}."
        )
    device, dtype = kinds.pop()
    if device.type == "meta" and not without_weights:
        raise InvalidInput(
            "The model is on the meta device and has no weights. Move it to a real one with "
            "model.to_empty(device=...), and initialize it."
        )
    trained = {id(p) for p in parameters} if device.type == "meta" and without_weights else set()
    device = torch.get_default_device() if trained else device
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device != device and id(tensor) not in trained:
            raise NotSupported(
                f"'{name}' is not on {device}, where the trainable parameters are: move the whole "
                "model to one device."
            )
    if dtype not in (torch.float32, torch.float64):
        raise NotSupported(
            f"Parameters of type {str(dtype).removeprefix('torch.')} are not supported: updates "
            "smaller than their precision would be lost. Keep them in float32 and compute in 16 "
            "bits: autocast=torch.bfloat16."
        )
    return device, dtype


def count_instances(y: Any) -> int:
    """How many instances a batch of labels is for."""
    leaves = tree_leaves(y)
    if not leaves or not all(isinstance(t, (Tensor, np.ndarray)) and t.ndim for t in leaves):
        raise InvalidInput(
            f"The labels of a batch must be a tensor with one row per instance, not {y!r:.60}. "
            "Convert text to numbers first: replace each class with its index."
        )
    return len(leaves[0])


# --- the first batch ------------------------------------------------------------------------------


@dataclass(frozen=True)
class FirstBatch:
    """What one forward and backward pass shows about a model."""

    used: set[str]  # parameters that get a gradient
    moving: tuple[str, ...]  # buffers that the forward pass changes
    stochastic: bool  # whether it draws random numbers, the loss included
    notes: PassNotes


def complete_objective(
    bare: Objective, optimizer: torch.optim.Optimizer, seen: FirstBatch
) -> tuple[Objective, list[dict]]:
    """The objective of the parameters that train, and their groups in the optimizer.

    Arguments:
        bare: an objective that does not know yet which parameters train.
        optimizer: of the run.
        seen: what its first batch shows.
    """
    parameters = dict(bare.model.named_parameters())
    candidates = names_by_group(parameters, optimizer)
    used = [[name for name in names if name in seen.used] for names in candidates]
    kept = [k for k, names in enumerate(used) if names]
    if not kept:
        raise InvalidInput("The loss does not depend on any of the optimizer's parameters.")
    # a model without attention needs no choice of kernels
    precision = replace(
        bare.precision,
        inner_cast=seen.notes.cast if bare.precision.autocast is None else None,
        kernels=bare.precision.kernels if seen.notes.attention_calls else MATH,
    )
    objective = replace(
        bare,
        layout=Layout.of_groups(parameters, [used[k] for k in kept], seen.moving),
        stochastic=seen.stochastic,
        evaluated=tuple(name for name, module in bare.model.named_modules() if not module.training),
        unused=tuple(name for names in candidates for name in names if name not in seen.used),
        precision=precision,
    )
    return objective, [optimizer.param_groups[k] for k in kept]


def _run_first_batch(bare: Objective, x: Any, y: Any, trained: list[Tensor]) -> FirstBatch:
    """bare: an objective that does not know yet which parameters train."""
    model = bare.model
    parameters = {
        name: p.detach().requires_grad_() for name, p in model.named_parameters() if p.requires_grad
    }
    named = parameters | {name: buffer.clone() for name, buffer in model.named_buffers()}
    frozen = {name: (p, p._version) for name, p in model.named_parameters() if name not in named}

    refuse_live = RefuseLive(trained, _LIVE)

    def losses_of(outputs: Any) -> Tensor:
        _check_frozen(frozen)
        with refuse_live:
            losses = _compute_losses(bare, outputs, y)
            if bare.penalty is not None:
                losses = losses + bare.penalty_at(parameters)
        check_differentiable(losses)
        return losses

    seen = watch_first_batch(bare, parameters, lambda: _call(model, named, x), losses_of)
    return replace(seen, moving=_find_moving_buffers(model, named))


def watch_first_batch(
    objective: Objective,
    leaves: Mapping[str, Tensor],
    call: Callable[[], Any],
    losses_of: Callable[[Any], Tensor],
) -> FirstBatch:
    """Run one forward and backward pass. The caller knows which buffers it has updated.

    Arguments:
        objective: whose model is run, and how.
        leaves: the parameters that might train, by name.
        call: the forward pass, which returns the model's outputs.
        losses_of: the losses of these outputs.
    """
    device = next(iter(leaves.values())).device
    with use_seed(device, 0), use_arithmetic(objective.model), torch.enable_grad():
        generators = global_generators(device)
        before = [g.get_state() for g in generators]
        with PassNotes(device) as notes, objective.precision.cast("model"):
            outputs = call()
        losses = losses_of(outputs)
        after = [g.get_state() for g in generators]
        grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
    return FirstBatch(
        used={name for name, g in zip(leaves, grads) if g is not None},
        moving=(),
        stochastic=any(not torch.equal(one, other) for one, other in zip(before, after)),
        notes=notes,
    )


def _check_frozen(frozen: Mapping[str, tuple[Tensor, int]]) -> None:
    for name, (parameter, version) in frozen.items():
        if parameter._version != version:
            raise NotSupported(
                f"The forward pass changes the frozen parameter '{name}'. dross only replays "
                "buffers that a forward pass updates: register the parameter as a buffer "
                "(register_buffer), or update it outside the model, as AveragedModel does "
                "(recorder.watch_average)."
            )


def _call(model: nn.Module, named: dict[str, Tensor], x: Any) -> Any:
    """The model's outputs for x, which must stay as it is. Moved buffers are in `named` then."""
    copy = tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, x)
    try:
        outputs = call_model(model, named, copy)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the model is the user's code
        raise InvalidInput(f"The model does not accept the training inputs: {error}") from error
    if any(isinstance(t, Tensor) and t._version for t in tree_leaves(copy)):
        raise NotSupported(
            "The model changes its input in place, so a batch would look different the second "
            "time. Use x = x - 1, not x -= 1."
        )
    return outputs


def _compute_losses(bare: Objective, outputs: Any, y: Any) -> Tensor:
    if isinstance(y, Tensor):
        check_labels(outputs, y, bare.loss_name)
    try:
        losses = check_per_instance(bare.apply_loss(outputs, y), count_instances(y))
        _check_loss(bare, outputs, y)
        return losses
    except DrossError:
        raise
    except Exception as error:  # the loss is the user's code
        got = f"of type {type(outputs).__name__}"
        if isinstance(outputs, Tensor):
            got = f"of shape {tuple(outputs.shape)}"
        raise InvalidInput(
            f"The loss does not accept the model's outputs ({got}) and the labels: {error}"
        ) from error


def _check_loss(bare: Objective, outputs: Any, y: Any) -> None:
    """Refuse a loss that gives different values the second time, or that mixes the instances."""
    count = count_instances(y)
    device = tree_leaves(y)[0].device

    def compute(rows: slice) -> tuple[Tensor, bool]:
        """The losses of these rows, and whether random numbers were drawn."""

        def cut(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            # a copy, because a loss may change it in place
            return (t[rows] if t.shape[:1] == (count,) else t).detach().clone()

        with use_seed(device, 0), torch.no_grad():
            before = [g.get_state() for g in global_generators(device)]
            losses = bare.apply_loss(*(tree_map(cut, part) for part in (outputs, y)))
            after = [g.get_state() for g in global_generators(device)]
        drawn = any(not torch.equal(one, other) for one, other in zip(before, after))
        return losses.reshape(-1), drawn

    losses, drawn = compute(slice(None))
    again, _ = compute(slice(None))
    if not _is_same(again, losses):
        raise NotSupported(
            "The loss gives different values when it is computed again, so the run could not be "
            "replayed. It may count its calls, keep a running mean, or draw random numbers from "
            "numpy or random. Draw random numbers with torch. If the loss changes during training, "
            "apply the change in the training loop, as a weight on the losses."
        )
    if drawn or count < 2:
        return
    try:
        alone, _ = compute(slice(0, count // 2))
    except Exception:  # it takes whole batches only: its instances cannot be told apart
        return
    if not _is_same(alone, losses[: count // 2]):
        raise NotSupported(
            "The loss of an instance depends on the other instances of its batch: the losses of "
            f"{count // 2} instances change when the others are left out. dross scores an instance "
            "by its own loss. Compute each loss from the outputs and the label of its instance "
            "alone, and move anything that needs the whole batch into the training loop, such as "
            "dividing by the sum of the class weights: (losses.sum() / weight[y].sum()).backward(). "
            "For a contrastive loss, treat each pair or group as one instance."
        )


def _is_same(losses: Tensor, expected: Tensor) -> bool:
    """Whether losses are the same up to rounding, as far as they are numbers."""
    if losses.shape != expected.shape:
        return False
    return is_close(losses.nan_to_num(), expected.nan_to_num(), ROUNDING)


def _find_moving_buffers(model: nn.Module, after: dict[str, Tensor]) -> tuple[str, ...]:
    """The buffers that training updates. after: the tensors as a forward pass left them."""
    buffers = dict(model.named_buffers())
    moved = {name for name, buffer in buffers.items() if not torch.equal(after[name], buffer)}
    known = statistics_of(model)
    # one may by chance be unchanged by this batch; those of one module are updated together
    modules = {name.rpartition(".")[0] for name in moved - set(known)}
    others = [n for n in buffers if n.rpartition(".")[0] in modules and n not in known]
    return (*statistics_of(model, training=True), *others)


def names_by_group(
    parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> list[list[str]]:
    """The names of the trainable parameters in each of the optimizer's groups."""
    name_of = {parameter: name for name, parameter in parameters.items()}

    def find_name(parameter: Tensor) -> str:
        if parameter not in name_of:
            raise InvalidInput(
                f"The optimizer has a parameter of shape {tuple(parameter.shape)} that does not "
                "belong to the model."
            )
        return name_of[parameter]

    return [
        [find_name(p) for p in group["params"] if p.requires_grad]
        for group in optimizer.param_groups
    ]


def _warn_of_held_buffers(objective: Objective) -> None:
    buffers = dict(objective.model.named_buffers())
    held = [f"'{name}'" for name in objective.held if buffers[name].is_floating_point()]
    if held:
        warnings.warn(
            f"The forward pass updates {', '.join(held[:3])} with custom code. dross records and "
            "replays this exactly, but scores treat these buffers as constants. run.verify shows "
            "how much that matters.",
            DrossWarning,
            stacklevel=4,
        )


def check_second_derivative(objective: Objective, x: Any, y: Any) -> None:
    """Find now, not after a long run, an operator that can be trained but not retraced."""
    theta, buffers = objective.layout.read(objective.model)
    count = count_instances(y)
    batch = Batch(x, y, theta.new_full((count,), 1.0 / count), 0)
    try:
        with objective.training():
            objective.vjp_reverse(theta, buffers, batch, probe_direction(theta), {})
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        raise NotSupported(
            "The model has an operator without a second derivative, so its runs cannot be "
            f"retraced: {first_line(error)}"
        ) from error
