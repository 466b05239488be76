"""Whether the gradients that an optimizer steps with are those that backward() computed from the losses, and nothing else."""

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..errors import NotReplayable
from ..step.layout import Layout


class GradientWatch:
    """Notes each gradient's identity and version as backward() leaves it: whatever is done to it later changes one of the two."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.versions: dict[Tensor, tuple[int, int]] = {}
        trained = [p for p in model.parameters() if p.requires_grad]
        self.handles: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(self._note) for p in trained
        ]

    def accept(self) -> None:
        """What was done to the gradients since is known and recorded."""
        for parameter in self.versions:
            if parameter.grad is not None:
                self._note(parameter)

    def flat(self, layout: Layout) -> Tensor:
        parameters = dict(self.model.named_parameters())
        gradients = {name: parameters[name].grad for name in layout.names}
        return layout.flatten({name: g for name, g in gradients.items() if g is not None})

    def check_start(self, layout: Layout, step: int, *, accumulating: bool) -> None:
        """As backward() starts: the gradients that are there must be those of the micro-batches that wait for a step."""
        parameters = dict(self.model.named_parameters())
        gradients = [parameters[name].grad for name in layout.names]
        present = any(g is not None and bool((g != 0).any()) for g in gradients)
        if present and not accumulating:
            raise NotReplayable(
                f"Gradients were left over when backward() of step {step} started. Call optimizer.zero_grad() after each step."
            )
        if accumulating and not present:
            raise NotReplayable(
                f"The gradients of the micro-batches since step {step - 1} were cleared without a step. A step that did not happen (a "
                "GradScaler that skipped it) cannot be recorded as one."
            )

    def check_step(self, layout: Layout, optimizer: Optimizer, step: int) -> None:
        """As the optimizer starts: the parameters with a gradient are those of the first step, and nobody touched the gradients."""
        moving, in_optimizer = (
            set(layout.names),
            {p for group in optimizer.param_groups for p in group["params"]},
        )
        for name, p in self.model.named_parameters():
            if p not in in_optimizer:
                continue
            if (p.grad is not None) != (name in moving):
                had = "a" if name in moving else "no"
                raise NotReplayable(
                    f"Parameter '{name}' had {had} gradient at the first step and the opposite at step {step}. dross needs the same "
                    "parameters to train in every step."
                )
            if p.grad is not None and self.versions.get(p) != (id(p.grad), p.grad._version):
                raise NotReplayable(
                    f"The gradient of '{name}' was changed between backward() and optimizer.step() at step {step}. Clip with "
                    "recorder.clip_grad_norm_ or recorder.clip_grad_value_; a GradScaler and gradient noise are not supported."
                )

    def _note(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.versions[parameter] = (id(parameter.grad), parameter.grad._version)
