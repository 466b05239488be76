"""Look at a model, its optimizer and one batch, and find out what a run of them consists of, or refuse it by name."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..autodiff.batchnorm import statistics_of
from ..autodiff.functional import call_model
from ..autodiff.precision import use_arithmetic
from ..data.batch import Batch
from ..data.seeds import global_generators, use_seed
from ..errors import BadInput, NotSupported, first_line
from .layout import Layout
from .loss import check_labels, check_per_instance, find_loss
from .objective import Objective, Penalty, random_direction
from .optimizers import Optimizer, read_optimizer


def unwrap_model(model: Any) -> nn.Module:
    """The module that can be differentiated twice: a compiled one gives its original back."""
    if not isinstance(model, nn.Module):
        raise BadInput(f"model must be a torch.nn.Module, not {type(model).__name__}.")
    original = getattr(model, "_orig_mod", None)
    model = original if isinstance(original, nn.Module) else model
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise NotSupported(
            f"{type(model).__name__} is not supported here: pass the bare module, model.module. dross.Recorder follows a loop under "
            "DistributedDataParallel."
        )
    for name, module in model.named_modules():
        compiled = (
            hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        )
        if compiled or isinstance(module, torch.jit.ScriptModule):
            raise NotSupported(
                f"The module '{name or type(model).__name__}' is compiled and has no second derivative. Record the model "
                "before compiling it; torch.compile(model) around the whole model is fine."
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise NotSupported(f"'{name}' has sparse gradients. Build it with sparse=False.")
    return model


def device_and_dtype(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise BadInput("The model has no parameters to train.")
    kinds = {(p.device, p.dtype) for p in parameters}
    if len(kinds) > 1:
        raise NotSupported(
            f"The parameters to train must share one device and one dtype; found {sorted(map(str, kinds))}."
        )
    device, dtype = kinds.pop()
    if elsewhere := [
        name
        for name, t in [*model.named_parameters(), *model.named_buffers()]
        if t.device != device
    ]:
        raise NotSupported(
            f"'{elsewhere[0]}' is not on {device}, where the parameters to train are: move the whole model to one device."
        )
    if dtype not in (torch.float32, torch.float64):
        raise NotSupported(
            f"Parameters of type {str(dtype).removeprefix('torch.')} are not supported: use float32 or float64."
        )
    return device, dtype


def inspect_run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Any,
    penalty: Penalty | None,
    x: Any,
    y: Any,
) -> tuple[Objective, Optimizer]:
    """The objective and the pure optimizer of a run whose first batch is (x, y). The model is left as it was."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadInput(
            f"optimizer must be a torch.optim optimizer, not {type(optimizer).__name__}."
        )
    loss_name, loss_function = find_loss(loss)
    parameters = dict(model.named_parameters())
    name_of: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
    candidates = [
        [_named(p, name_of) for p in g["params"] if p.requires_grad] for g in optimizer.param_groups
    ]
    used, moved, stochastic = _look(model, loss_function, loss_name, penalty, x, y)

    groups = [[name for name in names if name in used] for names in candidates]
    kept = [k for k, names in enumerate(groups) if names]
    if not kept:
        raise BadInput("The loss depends on none of the parameters that the optimizer has.")
    names = tuple(name for k in kept for name in groups[k])
    sizes = tuple(sum(parameters[name].numel() for name in groups[k]) for k in kept)
    layout = Layout(names, tuple(parameters[name].shape for name in names), sizes, tuple(moved))
    evaluated = tuple(name for name, module in model.named_modules() if not module.training)
    unused = tuple(name for group in candidates for name in group if name not in used)
    objective = Objective(
        model, layout, loss_function, loss_name, penalty, stochastic, evaluated, unused
    )
    pure = read_optimizer(optimizer, sizes, [optimizer.param_groups[k] for k in kept])
    _check_second_derivative(objective, x, y)
    return objective, pure


def _check_second_derivative(objective: Objective, x: Any, y: Any) -> None:
    """An operator that can be trained but not retraced is found now, not after a long run."""
    theta, buffers = objective.layout.read(objective.model)
    batch = Batch(
        x,
        y,
        torch.full((count_of(y),), 1.0 / count_of(y), dtype=theta.dtype, device=theta.device),
        0,
    )
    try:
        with objective.training():
            objective.pull_reverse(theta, buffers, batch, random_direction(theta), {})
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = first_line(error)
        raise NotSupported(
            f"The model has an operator without a second derivative, so its runs cannot be retraced: {reason}"
        ) from error


def count_of(y: Any) -> int:
    """How many instances a batch of labels is for."""
    return len(tree_leaves(y)[0])


def moving_groups(layout: Layout, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[dict]:
    """The optimizer's parameter groups that have a part of theta, in theta's order."""
    parameters = dict(model.named_parameters())
    moving = {parameters[name] for name in layout.names}
    return [group for group in optimizer.param_groups if any(p in moving for p in group["params"])]


def _named(parameter: Tensor, name_of: dict[Tensor, str]) -> str:
    if parameter not in name_of:
        raise BadInput(
            f"The optimizer has a parameter of shape {tuple(parameter.shape)} that is not one of the model's."
        )
    return name_of[parameter]


def _look(model, loss, loss_name, penalty, x, y) -> tuple[set[str], list[str], bool]:
    """One forward and backward pass: which parameters get a gradient, which buffers move, whether random numbers are drawn."""
    parameters = {
        n: p.detach().requires_grad_() for n, p in model.named_parameters() if p.requires_grad
    }
    device = next(iter(parameters.values())).device
    named = {**parameters, **{name: buffer.clone() for name, buffer in model.named_buffers()}}
    given = tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, x)
    with use_seed(device, 0), use_arithmetic(model), torch.enable_grad():
        generators = global_generators(device)
        before = [g.get_state() for g in generators]
        try:
            outputs = call_model(model, named, given)
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadInput(f"The model does not take the training inputs: {error}") from error
        stochastic = any(
            not torch.equal(g.get_state(), state) for g, state in zip(generators, before)
        )
        if any(isinstance(t, Tensor) and t._version for t in tree_leaves(given)):
            raise NotSupported(
                "The model changes its input in place, so a batch would look different the second time. Use x = x - 1, not x -= 1."
            )
        if isinstance(y, Tensor):
            check_labels(outputs, y, loss_name)
        try:
            losses = check_per_instance(loss(outputs, y), count_of(y))
        except (RuntimeError, IndexError, AttributeError, TypeError) as error:
            got = (
                f"a {type(outputs).__name__}"
                if not isinstance(outputs, Tensor)
                else f"outputs of shape {tuple(outputs.shape)}"
            )
            raise BadInput(
                f"The loss does not take what the model returns ({got}) and the labels: {error}"
            ) from error
        if penalty is not None:
            losses = losses + Objective(
                model, Layout((), (), (), ()), loss, penalty=penalty
            ).penalty_at(parameters)
        grads = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
    moved = {name for name, buffer in model.named_buffers() if not torch.equal(named[name], buffer)}
    strangers = moved - set(statistics_of(model))
    if strangers:
        raise NotSupported(
            f"The forward pass changes the buffer '{sorted(strangers)[0]}'. dross knows BatchNorm's running statistics and no "
            "other moving buffer yet."
        )
    # a statistic may by chance not have moved in this batch; a layer's three move together
    moving = statistics_of(model, training=True)
    return {name for name, g in zip(parameters, grads) if g is not None}, moving, stochastic
