"""The per-instance losses of a model as a pure function of its state, and their derivatives.

    losses      l(z_i; theta), one number per instance
    gradient    g = sum_i w_i c_i grad l(z_i; theta)                what a training step needs
    vjp         the adjoint of (theta, w, buffers) -> (g, buffers)  what a reverse step needs
    jvp         its tangent                                         what parameter influence needs

The paper's letters: z_i is an instance of the batch S_t, and c_i = 1/|S_t| in plain training. The
weights w are all 1 in the real run; removing z_j is w_j: 1 -> 0. Algorithm 2 needs, for an adjoint
u, the products <u, grad l_i> and H u. For a_g = -eta u, `vjp` gives -eta c_i <u, grad l_i> and
-eta H u.

This file is mathematics only. How a pass is run (as a program, as a CUDA graph, how many queries at
once) is decided in `engine/executor.py`; `DROSS_EXECUTOR=eager` runs these functions as they are.
Shapes: B instances, p parameters, Q adjoints, J directions, K models.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from ..data.batch import Batch
from ..data.seeds import use_seed
from ..data.strides import put_all_in_order
from ..errors import InvalidInput, NotSupported
from .autodiff import (
    batched_jvp,
    batched_vjp,
    call_model,
    jvp,
    refuse_inference_mode,
    times,
    unit_factor,
    use_modes,
    widen,
)
from .forward_rules import ForwardRules
from .losses import Loss, check_per_instance
from .norms import PresentRows, statistics_of, watch_statistics
from .precision import STRICT, Precision, use_arithmetic
from .state import Buffers, Layout

Penalty = Callable[[dict[str, Tensor]], Tensor]
Gradient = tuple[Tensor, Tensor, Buffers]  # g [p], losses [B], buffers after the pass
Vjp = tuple[Tensor, Tensor, Buffers]  # terms [Q, B], a_theta [Q, p], a_buffers [Q, ...]


@dataclass(frozen=True)
class Objective:
    """A model, its loss and its penalty, as functions of theta [p] and of the moving buffers."""

    model: nn.Module
    layout: Layout
    loss: Loss
    loss_name: str = ""
    penalty: Penalty | None = None
    stochastic: bool = False  # the forward pass or the loss draws random numbers (dropout)
    evaluated: tuple[str, ...] = ()  # modules in eval mode while training (a frozen BatchNorm)
    unused: tuple[str, ...] = ()  # parameters of the optimizer that the first batch did not need
    precision: Precision = STRICT  # the types and kernels that it computes in

    @cached_property
    def held(self) -> tuple[str, ...]:
        """The buffers that custom code of the model updates, which derivatives treat as constants.

        They are recorded and replayed as they change. Only BatchNorm's statistics are
        differentiated.
        """
        statistics = set(statistics_of(self.model))
        return tuple(name for name in self.layout.moving_buffers if name not in statistics)

    # --- the losses -------------------------------------------------------------------------------

    def losses(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: Batch,
        *,
        track_buffers: bool = False,
        rules: ForwardRules | None = None,
        parameters: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Buffers]:
        """One loss per instance, and the buffers that the forward pass leaves.

        Arguments:
            theta: the parameters, [p].
            buffers: the buffers that the forward pass updates, by name.
            batch: the B instances.
            track_buffers: whether the new buffers are differentiable functions of theta and of the
                old ones, for the adjoint of BatchNorm's statistics.
            rules: forward-mode rules, within a jvp.
            parameters: theta by name, where the caller already has it.

        Returns:
            The losses [B], and the buffers after the pass by name.
        """
        if parameters is None:
            parameters = self.layout.unflatten(theta)
        moved = {name: buffer.detach().clone() for name, buffer in buffers.items()}
        random = use_seed(batch.c.device, batch.seed) if self.stochastic else nullcontext()
        statistics = watch_statistics(self.model) if track_buffers else nullcontext()
        with rules or nullcontext(), statistics as move_statistics, random:
            with self.precision.cast("model"):
                outputs = self.call(parameters, moved, batch.x)
            try:
                losses = check_per_instance(self.apply_loss(outputs, batch.y), len(batch.c))
            except IndexError as error:  # what torch says of a label that is out of range
                raise InvalidInput(f"The loss does not accept the labels: {error}") from error
        if self.penalty is not None:
            with self.precision.cast("loss"):
                losses = losses + self.penalty_at(parameters)
        if move_statistics is not None:
            moved = move_statistics(buffers) | {name: moved[name] for name in self.held}
        return losses, moved

    def call(self, parameters: Mapping[str, Tensor], buffers: Buffers, x: Any) -> Any:
        """The model's outputs. What it assigns to its buffers is in `buffers` afterwards."""
        named = {**parameters, **buffers}
        outputs = call_model(self.model, named, x)
        buffers.update((name, named[name]) for name in buffers)
        return outputs

    def apply_loss(self, outputs: Any, y: Any) -> Tensor:
        """The loss of outputs as the model returned them, in the types it was trained in."""
        cast = self.precision.autocast
        outputs = widen(outputs) if cast is not None and not cast.loss else outputs
        with self.precision.cast("loss"):
            return self.loss(outputs, y)

    def penalty_at(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """The penalty of these parameters and of the frozen ones, as a tensor of one number.

        Raises:
            InvalidInput: the user's function fails, or returns something else.
        """
        assert self.penalty is not None
        named = self.model.named_parameters()
        frozen = {name: p.detach() for name, p in named if name not in parameters}
        try:
            value = self.penalty({**parameters, **frozen})
        except (AttributeError, TypeError, LookupError) as error:
            raise InvalidInput(
                f"penalty(params) failed: {error}. params is a dict of name -> tensor; sum over "
                "params.values()."
            ) from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise InvalidInput(
                "penalty(params) must return a scalar tensor, such as 0.5e-3 * sum of squares."
            )
        return value.reshape(())

    def predict(self, theta: Tensor, buffers: Buffers, x: Any) -> Tensor:
        """The model's outputs for x in eval mode, under the autocast that it was trained in."""
        with self.precision.cast("model"), self.precision.math_attention():
            return self.call(self.layout.views(theta), {**buffers}, x)

    # --- gradients --------------------------------------------------------------------------------

    def gradient(self, theta: Tensor, buffers: Buffers, batch: Batch) -> Gradient:
        """g = sum_i c_i grad l_i as [p], the losses [B], and the updated buffers."""
        theta = theta.detach().requires_grad_()
        parameters = self.precision.own_leaves(self.layout.unflatten(theta))
        inputs = [theta] if parameters is None else list(parameters.values())
        unused = [self.model.get_parameter(name) for name in self.unused]
        with torch.enable_grad():
            losses, moved = self.losses(theta, buffers, batch, parameters=parameters)
            weights = batch.c.to(losses.dtype)
            with self.precision.cast("backward"):
                grads = torch.autograd.grad(losses, [*inputs, *unused], weights, allow_unused=True)
        if parameters is None:
            g = grads[0]
        else:
            torch.clear_autocast_cache()  # of these leaves
            named = zip(parameters.items(), grads)
            g = self.layout.flatten(
                {name: torch.zeros_like(p) if g is None else g for (name, p), g in named}
            )
        for name, other in zip(self.unused, grads[len(inputs) :]):
            if other is not None:
                raise NotSupported(
                    f"The parameter '{name}' was not used in the first batch but is used in a "
                    "later one. dross needs the same parameters to be trained in every step: put a "
                    "batch that uses it first, or freeze the parameter."
                )
        return g, losses.detach(), moved

    def gradients(
        self, thetas: Tensor, buffers: Buffers, batch: Batch, w: Tensor, cut: bool = False
    ) -> tuple[Tensor, Buffers]:
        """The gradients of K models at once, and their updated buffers.

        Arguments:
            thetas: the parameters of each model, [K, p].
            buffers: the buffers of each model, [K, ...].
            batch: the instances, the same for all.
            w: each model's weights of the instances, [K, B].
            cut: whether an instance of weight 0 is gone from BatchNorm's batch as well.

        Returns:
            g [K, p], and the buffers [K, ...].
        """

        # torch's rules for several models at once are written for the usual order in memory
        x, y = put_all_in_order((batch.x, batch.y), ())
        batch = replace(batch, x=x, y=y)

        def losses_of_one(theta: Tensor, buffers: Buffers, present: Tensor):
            parameters = self.layout.views(theta) if self.layout.orders else None
            with PresentRows(present) if cut else nullcontext():
                return self.losses(theta, buffers, batch, parameters=parameters)

        thetas = thetas.detach().requires_grad_()
        with torch.enable_grad(), self.precision.math_attention():
            losses, moved = vmap(losses_of_one, randomness="same")(thetas, buffers, w)  # [K, B]
            # model k's losses depend on its own row: the gradient of the sum holds every model's
            with self.precision.cast("backward"):
                (g,) = torch.autograd.grad(losses, thetas, (batch.c * w).to(losses.dtype))
        return g, {name: buffer.detach() for name, buffer in moved.items()}

    # --- second order: the heart of a reverse step ------------------------------------------------

    def vjp_reverse(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: Batch,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool = True,
    ) -> Vjp:
        """The adjoint of (theta, w, buffers) -> (g, updated buffers), for Q adjoints at once.

            terms_i  = c_i <a_g, grad l_i>                                    = d query / d w_i
            a_theta  = sum_i c_i H_i a_g  +  d <a_buffers, moved> / d theta

        Reverse over reverse: it works for every operator with a double backward, and it is the
        quicker way where a model is so small that torch.func costs more than its arithmetic.

        Arguments:
            theta: the parameters before the step, [p].
            buffers: the moving buffers before the step, by name.
            batch: the B instances.
            a_g: the adjoint of the gradient g, [Q, p].
            a_buffers: the adjoint of the updated buffers, each [Q, ...]; only of floating-point
                ones.
            hessian: False returns the terms alone.

        Returns:
            terms [Q, B], a_theta [Q, p], and the adjoint of the buffers before the step.
        """
        theta = theta.detach().requires_grad_()
        w = torch.ones_like(batch.c, requires_grad=True)
        statistics = {name: buffers[name].detach().requires_grad_() for name in a_buffers}
        with torch.enable_grad(), self.precision.twice_differentiable(len(a_g)):
            before = {**buffers, **statistics}
            losses, moved = self.losses(theta, before, batch, track_buffers=bool(statistics))
            weighted = (losses * batch.c * w).sum()
            with self.precision.cast("backward"):
                (g,) = torch.autograd.grad(weighted, theta, create_graph=True)
        if not hessian:
            (terms,) = batched_vjp([g], [w], [a_g])
            return terms, torch.zeros_like(a_g), a_buffers
        terms, a_theta, *a_before = batched_vjp(
            [g, *(moved[name] for name in a_buffers)],
            [w, theta, *statistics.values()],
            [a_g, *a_buffers.values()],
        )
        return terms, a_theta, dict(zip(statistics, a_before))

    def vjp_forward(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: Batch,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool = True,
    ) -> Vjp:
        """`vjp_reverse` by forward mode: about the work of 2-3 training steps.

        One jvp gives the directional losses d_i = <a_g, grad l_i>. The derivative of
        sum_i c_i d_i in theta is the Hessian-vector product.
        """
        statistics = {name: buffers[name] for name in a_buffers}
        single = len(a_g) == 1
        joined = single and theta.is_cuda  # on a CPU it gains nothing
        rules = ForwardRules(joined=joined, several=not single)

        def directional(theta: Tensor, statistics: Buffers, a_g: Tensor) -> tuple[Tensor, Buffers]:
            """d [B], and the updated statistics."""

            def losses(theta: Tensor) -> tuple[Tensor, Buffers]:
                before, track = {**buffers, **statistics}, bool(statistics)
                return self.losses(theta, before, batch, track_buffers=track, rules=rules)

            with self.precision.twice_differentiable():
                along: Any = jvp(losses, (theta,), (a_g,), has_aux=True)
            _, d, moved = along
            return d, {name: moved[name] for name in statistics}

        def vjp_one(a_g: Tensor, a_buffers: Buffers) -> Vjp:
            if not hessian:
                d, _ = directional(theta, statistics, a_g)
                return batch.c * d, torch.zeros_like(a_g), a_buffers
            along = lambda theta, statistics: directional(theta, statistics, a_g)
            outputs: Any = vjp(along, theta, statistics)
            (d, _), back = outputs
            return batch.c * d, *back((batch.c.to(d.dtype), a_buffers))

        if not single:
            return vmap(vjp_one, randomness="same")(a_g, a_buffers)
        terms, a_theta, a_before = vjp_one(a_g[0], {name: a[0] for name, a in a_buffers.items()})
        return terms[None], a_theta[None], {name: a[None] for name, a in a_before.items()}

    def jvp(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: Batch,
        theta_dot: Tensor,
        buffers_dot: Buffers,
        w_dot: Tensor,
    ) -> tuple[Tensor, Buffers]:
        """The tangent of (theta, w, buffers) -> (g, updated buffers), for J directions at once.

            g_dot = H theta_dot + sum_i w_dot_i c_i grad l_i              H = sum_i c_i H_i

        H is symmetric, so its products come from the reverse pass: a double backward is enough.

        Arguments:
            theta: the parameters before the step, [p].
            buffers: the moving buffers before the step, by name.
            batch: the B instances.
            theta_dot: how theta changes, [J, p].
            buffers_dot: how the floating-point buffers change, each [J, ...].
            w_dot: how the weights of the instances change, [J, B].

        Returns:
            g_dot [J, p], and how the buffers after the step change.
        """
        theta = theta.detach().requires_grad_()
        statistics = {name: buffers[name].detach().requires_grad_() for name in buffers_dot}
        with torch.enable_grad(), self.precision.twice_differentiable(len(theta_dot)):
            before = {**buffers, **statistics}
            losses, moved = self.losses(theta, before, batch, track_buffers=bool(statistics))
            weighted = losses * batch.c
            with self.precision.cast("backward"):
                (g,) = torch.autograd.grad(weighted.sum(), theta, create_graph=True)
        (through_w,) = batched_vjp([weighted], [theta], [w_dot])
        narrow = self.precision.narrow is torch.float16  # there a small tangent would vanish
        factor = unit_factor(theta_dot) if narrow else torch.ones_like(theta_dot[:, 0])
        (through_theta,) = batched_vjp([g], [theta], [times(theta_dot, factor)])
        g_dot = times(through_theta, 1 / factor) + through_w
        if not statistics:
            return g_dot, {}
        moved_dot = batched_jvp(
            [moved[name] for name in statistics],
            [theta, *statistics.values()],
            [theta_dot, *buffers_dot.values()],
        )
        return g_dot, dict(zip(statistics, moved_dot))

    # --- contexts ---------------------------------------------------------------------------------

    @contextmanager
    def training(self) -> Iterator[None]:
        """Inside: modules are in the modes they were trained in; arithmetic is repeatable."""
        refuse_inference_mode()
        evaluated = set(self.evaluated)
        wanted = {m: name not in evaluated for name, m in self.model.named_modules()}
        with use_modes(wanted), use_arithmetic(self.model, self.precision.kernels):
            yield

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside: all modules are in eval mode; arithmetic is strict and repeatable."""
        wanted = dict.fromkeys(self.model.modules(), False)
        with use_modes(wanted), use_arithmetic(self.model):
            yield
