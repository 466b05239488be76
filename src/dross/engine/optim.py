"""An optimizer as a pure function of the state, and how it is read from a torch optimizer."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from ..errors import NotSupported
from .formulas import Parameterwise, update_by_formula
from .optim_custom import OF_TORCH, find_formula, formula_named
from .state import Derivative, GroupCounters, Layout, Place, State
from .update_rules import (
    SGD,
    TORCH_STEPPED,
    Adam,
    Elementwise,
    Flags,
    Hyperparams,
    Rule,
    Slots,
    TorchStep,
    flatten_options,
    read_flags,
)

_AND_OTHERS = "Lion, transformers' Adafactor, and your own (see dross.optim.register)"


@dataclass(frozen=True)
class OptimizerDescription:
    """What a tape keeps of an optimizer. Sizes and shapes are in the layout."""

    name: str
    flags: Flags
    columns: tuple[str, ...]  # the names of its hyperparameters, in the order of the tape
    any_momentum: bool
    formula: str | None  # its name, where the optimizer uses one of optim_custom.py
    fused: bool  # it steps with torch's fused kernel, where that rounds differently

    def flag(self, key: str) -> bool:
        """Whether an option is set; False for one that the optimizer does not have."""
        return bool(self.flags.get(key, False))

    def for_layout(self, layout: Layout) -> "Optimizer":
        """The optimizer of a model with this layout.

        Raises:
            NotSupported: it uses a formula that is not registered.
        """
        if self.formula is not None:
            formula_named(self.formula)
        return Optimizer(
            **vars(self),
            group_sizes=layout.group_sizes,
            shapes=layout.shapes_by_group,
            slices=layout.slices,
        )


@dataclass(frozen=True)
class Optimizer(OptimizerDescription):
    """An optimizer's rule, applied to each parameter group's part of theta.

    Shapes: G parameter groups, H hyperparameters each, p parameters. `hyperparams` [G, H] are those
    of all groups at one step, as a tape keeps them.
    """

    group_sizes: tuple[int, ...]
    shapes: tuple[tuple[torch.Size, ...], ...] = ()  # of the parameters of each group
    slices: tuple[Place, ...] = ()  # where each parameter lies in theta, in the model's order

    @cached_property
    def rule(self) -> Rule | None:
        """The update of one parameter group; None if parameters are taken as a whole."""
        return self._update.rule if isinstance(self._update, Elementwise) else None

    @cached_property
    def _update(self) -> Elementwise | Parameterwise:
        """The update of all parameter groups."""
        if self.formula is not None:
            formula = formula_named(self.formula)
            return update_by_formula(formula, self.flags, self.group_sizes, self.shapes)
        if self.name in CLOSED_FORMS:
            rule = CLOSED_FORMS[self.name](self)
        else:
            rule = TorchStep(self.name, self.flags)
        return Elementwise(rule, self.group_sizes)

    @property
    def needs_gradient(self) -> bool:
        """Whether `vjp` and `jvp` depend on the gradient, so that a retrace has to compute it."""
        return self.rule is None or self.rule.needs_gradient

    def _by_name(self, hyperparams: np.ndarray) -> list[Hyperparams]:
        """The hyperparameters of each group by name."""
        return [dict(zip(self.columns, values)) for values in hyperparams.tolist()]

    def initial(self, theta: Tensor, hyperparams: np.ndarray) -> tuple[Slots, GroupCounters]:
        """The slots and the counters of an optimizer that has not stepped yet."""
        return self._update.initial(theta, self._by_name(hyperparams))

    def update(self, state: State, g: Tensor, hyperparams: np.ndarray) -> State:
        """The state after a step with the gradient g [p]."""
        return self._update.update(state, g, self._by_name(hyperparams))

    def vjp(
        self, state: State, g: Tensor, hyperparams: np.ndarray, after: Derivative
    ) -> tuple[Tensor, Derivative]:
        """The adjoint of `update`: d query / d g [Q, p], and d query / d the state before it."""
        return self._update.vjp(state, g, self._by_name(hyperparams), after)

    def jvp(
        self, state: State, g: Tensor, hyperparams: np.ndarray, before: Derivative, g_dot: Tensor
    ) -> Derivative:
        """The tangent of `update`: how the state after it changes."""
        return self._update.jvp(state, g, self._by_name(hyperparams), before, g_dot)

    def split_slot(
        self, layout: Layout, slot: str, value: Tensor, hyperparams: np.ndarray
    ) -> dict[str, Tensor]:
        """A slot by the names of the parameters that have it, each in its own shape."""
        return self._update.split_slot(layout, slot, value, self._by_name(hyperparams))

    @property
    def description(self) -> OptimizerDescription:
        """What a tape keeps of it."""
        kept = {field.name: getattr(self, field.name) for field in fields(OptimizerDescription)}
        return OptimizerDescription(**kept)


# --- rules in closed form -------------------------------------------------------------------------


def _sgd(described: OptimizerDescription) -> Rule:
    return SGD(described.any_momentum, described.flag("nesterov"), described.flag("maximize"))


def _adam(described: OptimizerDescription) -> Rule:
    return Adam(
        amsgrad=described.flag("amsgrad"),
        maximize=described.flag("maximize"),
        decoupled=described.name == "AdamW" or described.flag("decoupled_weight_decay"),
        fused=described.fused,
    )


#: the optimizers of torch.optim whose rule is written out (update_rules.py)
CLOSED_FORMS: dict[str, Callable[[OptimizerDescription], Rule]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adam,
}
SUPPORTED = (*CLOSED_FORMS, *TORCH_STEPPED, *OF_TORCH)


# --- from a torch optimizer -----------------------------------------------------------------------


def read_optimizer(optimizer: torch.optim.Optimizer, groups: list[dict]) -> OptimizerDescription:
    """What a torch optimizer computes.

    Arguments:
        optimizer: the user's.
        groups: those of its parameter groups that have moving parameters.

    Raises:
        NotSupported: the optimizer or its options have no pure form.
    """
    name = type(optimizer).__name__
    formula = find_formula(optimizer)
    of_torch = type(optimizer) is getattr(torch.optim, name, None)
    if formula is None and not (of_torch and name in SUPPORTED):
        _refuse(optimizer)
    keys = optimizer.defaults  # a group may carry other keys, of a scheduler or of its owner
    flags = [read_flags(g, keys) for g in groups]
    columns = [tuple(flatten_options(g, keys)) for g in groups]
    momenta = {g["momentum"] != 0 for g in groups} if "momentum" in keys else {False}
    differ = any(f != flags[0] for f in flags) or any(set(c) != set(columns[0]) for c in columns)
    if name == "RMSprop":  # it keeps a buffer only where there is momentum
        differ = differ or len(momenta) > 1
    if differ:
        raise NotSupported(
            f"The parameter groups of {name} differ in more than their hyperparameters ({flags}). "
            "Use the same options for all groups; learning rates, momenta and weight decays may "
            "differ."
        )
    return OptimizerDescription(
        name=name,
        flags=flags[0],
        columns=columns[0],
        any_momentum=any(momenta),
        formula=None if formula is None else formula.name,
        fused=name in ("Adam", "AdamW") and all(bool(g.get("fused")) for g in groups),
    )


#: a pattern in the class name of optimizers that cannot be followed, and why not
_REFUSED = {
    "schedulefree": "it trains at a point between two sequences of weights, and its train() and "
    "eval() exchange the parameters outside of any step. Use AdamW, and "
    "torch.optim.swa_utils.AveragedModel for an average (recorder.watch_average).",
    "sam$": "each of its steps computes two gradients, the second at modified weights, and dross "
    "supports only one gradient per step. Use the optimizer that it wraps.",
    "lbfgs": "its step calls a closure several times, and dross supports only one gradient per "
    "step. Use SGD or Adam.",
    "sparseadam": "it leaves out the rows without a gradient. Use Adam, with sparse=False in the "
    "embedding.",
    "8bit": "it keeps its state in 8 bits, and rounding has no derivative. Use the 32-bit one.",
}


def _refuse(optimizer: torch.optim.Optimizer) -> NoReturn:
    name = type(optimizer).__name__
    for pattern, reason in _REFUSED.items():
        if re.search(pattern, name.lower().replace("_", "")):
            raise NotSupported(f"The optimizer {name} cannot be retraced: {reason}")
    raise NotSupported(
        f"The optimizer {name} is not supported yet. dross can retrace: {', '.join(SUPPORTED)} "
        f"(torch.optim's own classes), {_AND_OTHERS}."
    )


def check_same_structure(began: OptimizerDescription, now: OptimizerDescription) -> None:
    """Refuse a change of the kind of update. Rates and momenta may change from step to step."""
    if now.flags != began.flags or (now.any_momentum and not began.any_momentum):
        raise NotSupported(
            f"The options of {began.name} changed during the run, from {began.flags} to "
            f"{now.flags}, or momentum was introduced late. dross supports only schedules of "
            "hyperparameters: start with a momentum above 0."
        )
