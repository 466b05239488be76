"""The per-instance losses of a model as a pure function of its state, and the derivatives that training and retracing need."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.func import vjp as vjp_function
from torch.utils.flop_counter import FlopCounterMode

from ..autodiff import batchnorm, modes, precision
from ..autodiff.forward_rules import ElementaryNorms, ForwardRules
from ..autodiff.functional import called
from ..autodiff.present_rows import PresentOnly
from ..autodiff.vjp import batched_vjp, vjp
from ..data.batch import AnyBatch, Batch
from ..data.seeds import seeded
from ..errors import BadInput, DrossWarning, NotSupported
from ..execution import threads
from ..execution.conv_as_matmul import WIDE, WIDE_FOR_SEVERAL, AsProducts
from ..execution.cuda_graph import Graphs
from .layout import Layout
from .loss import Loss, check_per_instance

Buffers = dict[str, Tensor]
Penalty = Callable[[dict[str, Tensor]], Tensor]


@dataclass
class Objective:
    model: nn.Module
    layout: Layout
    loss: Loss
    loss_name: str = ""
    penalty: Penalty | None = None
    stochastic: bool = False  # the forward pass draws random numbers (dropout)
    evaluated: tuple[
        str, ...
    ] = ()  # modules that were in eval mode while training (a frozen BatchNorm)
    unused: tuple[
        str, ...
    ] = ()  # parameters that the optimizer has and the first batch did not need
    arithmetic: str = "strict"  # see arithmetic.py
    plans: dict[int, tuple[bool, int]] = field(default_factory=dict, init=False, repr=False)
    graphs: Graphs = field(default_factory=Graphs, init=False, repr=False)
    hooked: bool = field(
        default=False, init=False, repr=False
    )  # somebody's hooks want to be called in every pass
    _counted: float | None = field(default=None, init=False, repr=False)

    # --- the losses ---------------------------------------------------------------------------------------------------

    def losses(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: AnyBatch,
        differentiable: bool = False,
        products: AsProducts | None = None,
        rules: ForwardRules | None = None,
    ) -> tuple[Tensor, Buffers]:
        """One loss per instance [B], and the buffers that the forward pass leaves.

        differentiable: the new buffers are functions of theta and of the old ones, for the adjoint of the statistics.
        products: how convolutions are done on a GPU, where the pass is of a special kind. rules: of forward-mode derivatives, within a jvp.
        """
        parameters, batch = self.layout.unflatten(theta), batch.realized()
        convolving = products or AsProducts() if batch.c.is_cuda else nullcontext()
        moved = {
            name: buffer.clone() for name, buffer in buffers.items()
        }  # the forward pass writes into these
        if differentiable:
            with batchnorm.watched(self.model) as moved_by_the_pass:
                losses = self._forward(
                    parameters,
                    {n: b.detach().clone() for n, b in buffers.items()},
                    batch,
                    convolving,
                    rules,
                )
                moved = moved_by_the_pass(buffers)
        else:
            losses = self._forward(parameters, moved, batch, convolving, rules)
        return losses, moved

    def _forward(
        self,
        parameters: dict[str, Tensor],
        buffers: Buffers,
        batch: Batch,
        convolving,
        rules: ForwardRules | None,
    ) -> Tensor:
        # the inner one comes first: a dual convolution is taken apart by the rules, and its parts become products
        with convolving, rules or nullcontext():
            with (
                seeded(batch.c.device, batch.seed) if self.stochastic else nullcontext(),
                precision.forward(self.arithmetic, batch.c.device),
            ):
                outputs = precision.exact(called(self.model, {**parameters, **buffers}, batch.x))
            try:
                losses = check_per_instance(self.loss(outputs, batch.y), len(batch.c))
            except IndexError as error:  # what torch says of a label that is out of range
                raise BadInput(f"The loss does not take the labels: {error}") from error
        return losses if self.penalty is None else losses + self.penalty_at(parameters)

    def penalty_at(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """The penalty as a scalar tensor, or a clear error."""
        assert self.penalty is not None
        frozen = {
            name: p.detach() for name, p in self.model.named_parameters() if name not in parameters
        }
        try:
            value = self.penalty({**parameters, **frozen})
        except (AttributeError, TypeError) as error:
            raise BadInput(
                f"penalty(params) failed: {error}. params is a dict of name -> tensor; sum over params.values()."
            ) from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise BadInput(
                "penalty(params) must return one number as a tensor, such as 0.5e-3 * sum of squares."
            )
        return value.reshape(())

    # --- gradients ----------------------------------------------------------------------------------------------------

    def gradient(
        self, theta: Tensor, buffers: Buffers, batch: AnyBatch, w: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Buffers]:
        """sum_i w_i c_i grad l_i as [p], the losses [B], and the moved buffers."""
        return self._run("training step", self._gradient, batch, theta, buffers, w)

    def _gradient(self, batch: Batch, theta: Tensor, buffers: Buffers, w: Tensor | None):
        theta = theta.detach().requires_grad_()
        with torch.enable_grad():
            losses, moved = self.losses(theta, buffers, batch, products=AsProducts(wide=WIDE))
            idle = (
                {name: p for name, p in self.model.named_parameters() if name in self.unused}
                if self.unused
                else {}
            )
            weights = batch.c if w is None else batch.c * w
            g, *others = torch.autograd.grad(
                losses, [theta, *idle.values()], weights, allow_unused=True
            )
        for name, other in zip(idle, others):
            if other is not None:
                raise NotSupported(
                    f"The parameter '{name}' had no part in the first batch and has one in a later batch. dross needs the same "
                    "parameters to train in every step; put such a batch first, or freeze the parameter."
                )
        return g, losses.detach(), moved

    def gradients(
        self, thetas: Tensor, buffers: Buffers, batch: AnyBatch, w: Tensor, cut: bool = False
    ) -> tuple[Tensor, Buffers]:
        """The same for K models at once: thetas [K, p], buffers [K, ...], w [K, B] -> [K, p], [K, ...].

        cut: where w is 0, the instance is gone from BatchNorm's batch as well."""
        return self._run(
            "step of many models",
            self._gradients,
            batch,
            thetas,
            buffers,
            w,
            cut,
            times=len(thetas),
        )

    def _gradients(
        self, batch: Batch, thetas: Tensor, buffers: Buffers, w: Tensor, cut: bool
    ) -> tuple[Tensor, Buffers]:
        def one(theta: Tensor, buffers: Buffers, present: Tensor) -> tuple[Tensor, Buffers]:
            with PresentOnly(present) if cut else nullcontext():
                return self.losses(theta, buffers, batch, products=AsProducts(many=True))

        thetas = thetas.detach().requires_grad_()
        with torch.enable_grad():
            losses, moved = vmap(one, randomness="same")(thetas, buffers, w)  # [K, B]
            # model k's loss depends on its own row only: the gradient of the sum holds every model's gradient
            (g,) = torch.autograd.grad(losses, thetas, batch.c * w)
        return g, {name: buffer.detach() for name, buffer in moved.items()}

    # --- second order: the heart of a reverse step -----------------------------------------------------------------------

    def pull(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: AnyBatch,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool = True,
    ):
        """The adjoint of (theta, w, buffers) -> (g, moved buffers), for Q adjoints at once.

            terms_i  = c_i <a_g, grad l_i>                    [Q, B]   d query / d w_i
            a_theta  = sum_i c_i  H_i a_g  + d<a_buffers, moved> / d theta     [Q, p]

        Forward mode computes the directional losses <a_g, grad l_i> in one jvp and differentiates their sum: about 2-3
        training steps. Reverse over reverse gives the same numbers, works for every operator with a double backward, and is
        the quicker one where a model is so small that the layers of torch.func cost more than its arithmetic.
        """
        return self._run(
            "reverse step",
            self._pull,
            batch,
            theta,
            buffers,
            a_g,
            a_buffers,
            hessian,
            times=len(a_g),
        )

    def _pull(
        self,
        batch: Batch,
        theta: Tensor,
        buffers: Buffers,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool,
    ):
        parts, done = [], 0
        while done < len(a_g):
            forward_mode, at_once = self.plan(theta, buffers, batch, a_buffers)
            how = self._pull_forward if forward_mode else self._pull_reverse
            rows = slice(done, min(done + at_once, len(a_g)))
            try:
                parts.append(
                    how(
                        theta,
                        buffers,
                        batch,
                        a_g[rows],
                        {name: a[rows] for name, a in a_buffers.items()},
                        hessian,
                    )
                )
                done = rows.stop
                continue
            except torch.OutOfMemoryError as error:
                if rows.stop - done == 1:
                    error.add_note(
                        f"dross: a batch of {len(batch.c)} and one query do not fit. Retrace with group=, or where there is more memory."
                    )
                if rows.stop - done == 1 or self.graphs.capturing:
                    raise
            self._halve_plan(
                batch, rows.stop - done
            )  # here, where the error and what it holds are gone
        if len(parts) == 1:
            return parts[0]
        terms, a_theta, moved = zip(*parts)
        return (
            torch.cat(terms),
            torch.cat(a_theta),
            {name: torch.cat([m[name] for m in moved]) for name in a_buffers},
        )

    def plan(
        self, theta: Tensor, buffers: Buffers, batch: Batch, a_buffers: Buffers
    ) -> tuple[bool, int]:
        """Whether to use forward mode for a batch of this size, and for how many queries at once.

        Decided by counting, not by a clock: the choice must not change from one retrace to the next."""
        size = len(batch.c).bit_length()
        if size not in self.plans:
            flops = self._operations(theta, buffers, batch)
            forward = flops >= _WORTH_FORWARD_MODE and self._forward_mode_is_right(
                theta, buffers, batch, a_buffers
            )
            at_hand = _WORK_AT_ONCE_GPU if theta.is_cuda else _WORK_AT_ONCE
            self.plans[size] = forward, min(256, max(8, _power_of_two(at_hand // max(flops, 1))))
        return self.plans[size]

    def _halve_plan(self, batch: Batch, failed: int) -> None:
        size = len(batch.c).bit_length()
        self.plans[size] = self.plans[size][0], failed // 2
        self.graphs.give_back()
        warnings.warn(
            f"Out of memory: going on with {failed // 2} of the queries at once.",
            DrossWarning,
            stacklevel=2,
        )

    @property
    def uses_forward_mode(self) -> bool:
        return any(forward for forward, _ in self.plans.values())

    def _forward_mode_is_right(
        self, theta: Tensor, buffers: Buffers, batch: Batch, a_buffers: Buffers
    ) -> bool:
        """Some operators have no forward mode, and a forward rule can be wrong once it is differentiated again (see
        forward_rules.py). So it is tried on the first batch, in a random direction, and compared with reverse mode."""
        a_g = random_direction(theta)
        a_buffers = {name: a[:1] for name, a in a_buffers.items()}
        try:
            terms, a_theta, _ = self._pull_forward(theta, buffers, batch, a_g, a_buffers, True)
        except torch.OutOfMemoryError:
            raise
        except (NotImplementedError, RuntimeError):
            return False
        expected_terms, expected, _ = self._pull_reverse(
            theta, buffers, batch, a_g, a_buffers, True
        )
        # deep float32 networks round to 1e-3; a wrong rule is off by 5 % and more
        tolerance = 30 * torch.finfo(theta.dtype).eps ** 0.5
        pairs = ((terms, expected_terms), (a_theta, expected))
        return all(
            bool((found - wanted).norm() <= tolerance * wanted.norm()) for found, wanted in pairs
        )

    def _pull_forward(self, theta, buffers, batch, a_g, a_buffers, hessian):
        floating = {name: buffers[name] for name in a_buffers}
        alone = len(a_g) == 1
        rules = ForwardRules(
            joined=alone and theta.is_cuda, several=not alone
        )  # joined, a CPU gains nothing

        products = AsProducts(wide=WIDE if alone else WIDE_FOR_SEVERAL)

        def directional(theta: Tensor, floating: Buffers, a_g: Tensor) -> tuple[Tensor, Buffers]:
            def losses(theta: Tensor) -> tuple[Tensor, Buffers]:
                return self.losses(
                    theta, {**buffers, **floating}, batch, bool(floating), products, rules
                )

            _, d, moved = jvp(losses, (theta,), (a_g,), has_aux=True)  # type: ignore[misc]  # three with has_aux
            return d, {name: moved[name] for name in floating}

        def one(a_g: Tensor, a_buffers: Buffers):
            if not hessian:
                return (
                    batch.c * directional(theta, floating, a_g)[0],
                    torch.zeros_like(a_g),
                    a_buffers,
                )
            (d, _), back = vjp_function(
                lambda theta, floating: directional(theta, floating, a_g), theta, floating
            )  # type: ignore[misc]
            return batch.c * d, *back((batch.c, a_buffers))

        return self._one_or_many(one, a_g, a_buffers)

    @staticmethod
    def _one_or_many(one, a_g, a_buffers):
        if len(a_g) == 1:
            terms, a_theta, a_before = one(a_g[0], {name: a[0] for name, a in a_buffers.items()})
            return terms[None], a_theta[None], {name: a[None] for name, a in a_before.items()}
        return vmap(one, randomness="same")(a_g, a_buffers)

    def _pull_reverse(self, theta, buffers, batch, a_g, a_buffers, hessian):
        theta = theta.detach().requires_grad_()
        w = torch.ones_like(batch.c, requires_grad=True)
        floating = {name: buffers[name].detach().requires_grad_() for name in a_buffers}
        with torch.enable_grad(), _rules(len(a_g)):
            losses, moved = self.losses(
                theta, {**buffers, **floating}, batch, differentiable=bool(floating)
            )
            (g,) = torch.autograd.grad((losses * batch.c * w).sum(), theta, create_graph=True)
        outputs, cotangents = [g], [a_g]
        if hessian:
            outputs += [moved[name] for name in a_buffers]
            cotangents += list(a_buffers.values())
        inputs = [w, theta, *floating.values()] if hessian else [w]
        terms, *rest = batched_vjp(outputs, inputs, cotangents)
        if not hessian:
            return terms, torch.zeros_like(a_g), a_buffers
        return terms, rest[0], dict(zip(floating, rest[1:]))

    def push(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: AnyBatch,
        dot: Tensor,
        buffers_dot: Buffers,
        w_dot: Tensor,
    ):
        """The tangent of (theta, w, buffers) -> (g, moved buffers), for J directions at once.

            g_dot = H theta_dot + sum_i w_dot_i c_i grad l_i        dot [J, p], w_dot [J, B] -> [J, p]

        H is symmetric, so its products come from the reverse pass, which every operator with a double backward has.
        """
        batch = batch.realized()
        theta = theta.detach().requires_grad_()
        floating = {name: buffers[name].detach().requires_grad_() for name in buffers_dot}
        with torch.enable_grad(), _rules(len(dot)):
            losses, moved = self.losses(
                theta, {**buffers, **floating}, batch, differentiable=bool(floating)
            )
            weighted = losses * batch.c
            (g,) = torch.autograd.grad(weighted.sum(), theta, create_graph=True)
            moving = {name: moved[name] for name in buffers_dot}
            # d moved . dot, as the derivative in r of <vjp(r), dot>: reverse mode run twice is forward mode
            r = {
                name: torch.zeros_like(value, requires_grad=True) for name, value in moving.items()
            }
            sources = [theta, *floating.values()]
            back = vjp(list(moving.values()), sources, list(r.values())) if moving else []
        (g_dot,) = batched_vjp([g], [theta], [dot])
        g_dot = g_dot + batched_vjp([weighted], [theta], [w_dot])[0]
        if not moving:
            return g_dot, {}
        moved_dot = batched_vjp(
            back, list(r.values()), [dot, *(buffers_dot[name] for name in floating)]
        )
        return g_dot, dict(zip(moving, moved_dot))

    def _run(
        self, name: str, function: Callable, batch: AnyBatch, *args: Any, times: int = 1
    ) -> Any:
        """Random numbers and parameters that come and go are decided anew by each pass; the others may be replayed.

        times: how many models or queries go through it."""
        if batch.c.device.type == "cpu" and not self.hooked:
            threads.use_for(self._operations_each(batch, *args[:2]) * len(batch.c) * times)
        if self._decides_anew:
            return function(batch.realized(), *args)
        return self.graphs.run(name, function, batch, *args)

    def _operations_each(self, batch: AnyBatch, theta: Tensor, buffers: Buffers) -> float:
        """Operations of the forward pass for one instance, counted at the first batch."""
        if self._counted is None:
            batch = batch.realized()
            one = lambda t: t[0] if theta.dim() > 1 else t  # one model of many
            counted = self._operations(
                one(theta), {name: one(b) for name, b in buffers.items()}, batch
            )
            self._counted = counted / max(1, len(batch.c))
        return self._counted

    def _operations(self, theta: Tensor, buffers: Buffers, batch: AnyBatch) -> int:
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            self.losses(theta, buffers, batch)
        return counted.get_total_flops()

    @property
    def _decides_anew(self) -> bool:
        return self.stochastic or self.hooked or bool(self.unused)

    def captures(self, name: str, theta: Tensor) -> bool:
        """Whether a pass of this name would be captured."""
        return not self._decides_anew and self.graphs.available(name, theta)

    # --- contexts -----------------------------------------------------------------------------------------------------

    @contextmanager
    def training(self) -> Iterator[None]:
        """Inside: modules are in the modes they were trained in, and arithmetic is strict and repeatable."""
        evaluated = set(self.evaluated)
        self.hooked = modes.has_hooks(self.model)
        wanted = {m: name not in evaluated for name, m in self.model.named_modules()}
        computing = precision.computing(self.model, self.arithmetic)
        with (
            threads.manage_threads(),
            modes.modes(wanted),
            computing,
            self.graphs.within("training", self._constants()),
        ):
            yield

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.hooked = modes.has_hooks(self.model)
        wanted = dict.fromkeys(self.model.modules(), False)
        with (
            modes.modes(wanted),
            precision.computing(self.model),
            self.graphs.within("evaluating", self._constants()),
        ):
            yield

    def _constants(self) -> list[Tensor]:
        return list(self.layout.constants(self.model).values())

    def predict(self, theta: Tensor, buffers: Buffers, x: Any) -> Tensor:
        """The model's outputs; differentiable in theta and in BatchNorm's statistics when in eval mode."""
        return called(self.model, {**self.layout.unflatten(theta), **buffers}, x)


_WORTH_FORWARD_MODE = (
    2**25
)  # operations of a forward pass: below, torch.func's own layers cost more than they save
_WORK_AT_ONCE = (
    2**30
)  # operations of the forward passes of queries retraced side by side: more leave the processor's caches
_WORK_AT_ONCE_GPU = 2**38


def _power_of_two(most: int) -> int:
    """Not more than `most`. Kernels are chosen for round sizes."""
    return 1 << max(0, most.bit_length() - 1)


def random_direction(theta: Tensor) -> Tensor:
    """[1, p], the same every time."""
    drawn = torch.randn(
        1, theta.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float32
    )
    return drawn.to(theta)


def _rules(rows: int):
    """Many vjps at once through group norm fail or are wrong in torch; through elementary operations they are right."""
    return ElementaryNorms() if rows > 1 else nullcontext()
