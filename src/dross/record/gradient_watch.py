"""Check that an optimizer steps with the gradients of the losses as backward() computed them."""

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..engine.state import Layout
from ..errors import NotSupported


class GradientWatch:
    """Notes each gradient's identity and version as backward() leaves it.

    Any later change to a gradient changes one of the two.
    """

    def __init__(self, model: nn.Module):
        self.parameters = dict(model.named_parameters())
        self.versions: dict[Tensor, tuple[int, float]] = {}
        trained = [p for p in self.parameters.values() if p.requires_grad]
        self.handles: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(self._note) for p in trained
        ]

    def accept(self) -> None:
        """Accept what was done to the gradients since backward(): it is recorded."""
        for parameter in self.versions:
            if parameter.grad is not None:
                self._note(parameter)

    def flat(self, layout: Layout) -> Tensor:
        """The gradients of the parameters in training, one after the other: [p]."""
        gradients = {name: self.parameters[name].grad for name in layout.names}
        return layout.flatten({name: g for name, g in gradients.items() if g is not None})

    def check_start(self, layout: Layout, step: int, *, accumulating: bool) -> None:
        """As backward() starts: gradients must be those of the micro-batches that wait for a step.

        Arguments:
            layout: the parameters in training.
            step: the number of the next step.
            accumulating: whether there are such micro-batches.
        """
        gradients = [self.parameters[name].grad for name in layout.names]
        own = [layout.local(g) for g in gradients if g is not None]
        if own and not any(g.numel() for g in own):
            return  # of shards, this rank has none
        present = any(bool((g != 0).any()) for g in own)
        if present and not accumulating:
            raise NotSupported(
                f"Gradients were left over when backward() of step {step} started. Call "
                "optimizer.zero_grad() after each step."
            )
        if accumulating and not present:
            raise NotSupported(
                f"The gradients of the micro-batches since step {step - 1} were cleared without a "
                "step. If a GradScaler skipped it, give the scaler to the recorder: "
                "dross.Recorder(..., scaler=scaler)."
            )

    def check_step(self, layout: Layout, optimizer: Optimizer, step: int) -> None:
        """As the optimizer starts: the same parameters train, and the gradients are unchanged."""
        moving = set(layout.names)
        in_optimizer = {p for group in optimizer.param_groups for p in group["params"]}
        for name, p in self.parameters.items():
            if p not in in_optimizer:
                continue
            if (p.grad is not None) != (name in moving):
                had = "a" if name in moving else "no"
                raise NotSupported(
                    f"Parameter '{name}' had {had} gradient at the first step, unlike at step "
                    f"{step}. dross needs the same parameters to train in every step."
                )
        self.check_unchanged(step)

    def check_unchanged(self, step: int) -> None:
        """Refuse gradients that something changed after backward(), and that was not recorded."""
        for name, p in self.parameters.items():
            if not p.requires_grad or p.grad is None:
                continue
            if self.versions.get(p) != _mark(p.grad):
                raise NotSupported(
                    f"The gradient of '{name}' was changed between backward() and "
                    f"optimizer.step() at step {step}. Clip with recorder.clip_grad_norm_ or "
                    "recorder.clip_grad_value_, and give a GradScaler to the recorder: "
                    "dross.Recorder(..., scaler=scaler). Gradient noise is not supported."
                )

    def _note(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.versions[parameter] = _mark(parameter.grad)


def _mark(g: Tensor) -> tuple[int, float]:
    """What changes with a gradient: its version, or its norm where it is a part of a DTensor.

    DTensors do not count what is done to them.
    """
    local = getattr(g, "to_local", None)
    return id(g), g._version if local is None else float(local().norm())
