"""Watch an AveragedModel: after which steps it was updated, and how much each update counted."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn

from ..distributed.ddp import bare_module
from ..engine.binding import TorchBinding
from ..engine.inspect import unwrap_model
from ..engine.tolerance import OTHER_ORDER, is_close
from ..errors import DrossWarning, InvalidInput, NotSupported
from ..tape.format import AverageNotes, AverageRecord

_CHECKED_UPDATES = 3


class AverageWatch:
    """Reads the model's own counter of updates between steps, so that its code stays as it is."""

    def __init__(self, averaged: Any, earlier: AverageRecord | None = None):
        """earlier: the average on a tape to be continued; it is restored."""
        if not isinstance(averaged, AveragedModel):
            raise InvalidInput(
                "recorder.watch_average takes a torch.optim.swa_utils.AveragedModel, not "
                f"{type(averaged).__name__}."
            )
        self.averaged = averaged
        self.module = unwrap_model(bare_module(averaged.module))
        self.steps: list[int] = []
        self.rates: list[float] = []
        self._last: Tensor | None = None  # the average after the last update, while it is checked
        self._checked = 0
        self._buffers: dict[str, Tensor] = {}  # the moving ones as the last update must leave them
        if earlier is not None:
            self._restore(earlier)
            named = self._read_named(tuple(earlier.tensors))
            moving = set(dict(self.module.named_buffers()))
            self._buffers = {name: t for name, t in named.items() if name in moving}
        self.count = int(averaged.n_averaged)

    def _restore(self, earlier: AverageRecord) -> None:
        self.steps = earlier.steps.tolist()
        self.rates = earlier.rates.tolist()
        tensors = self._named_tensors()
        with torch.no_grad():
            for name, value in earlier.tensors.items():
                if name not in tensors:
                    raise InvalidInput(f"The averaged model has no '{name}', which is on the tape.")
                tensors[name].copy_(value)
            self.averaged.n_averaged.fill_(earlier.notes.count)

    @property
    def is_current(self) -> bool:
        """Whether all updates have been noted."""
        return int(self.averaged.n_averaged) == self.count

    def poll(self, steps: int, binding: TorchBinding, *, halfway: bool = False) -> None:
        """Note updates since the last time: they averaged the model as it is after `steps` steps.

        Arguments:
            steps: how many have been taken.
            binding: the model.
            halfway: whether a forward pass has moved its buffers since.

        Raises:
            NotSupported: if the average is not one of the model's parameters.
        """
        now = int(self.averaged.n_averaged)
        if now < self.count:
            raise NotSupported(
                f"The averaged model had counted {self.count} updates, but after step {steps - 1} "
                f"it counts {now}: it was reset. Close the recorder first."
            )
        if now == self.count:
            return
        if halfway and binding.layout.moving_buffers:
            raise NotSupported(
                f"The averaged model was updated between the forward pass and step {steps}: it has "
                f"'{binding.layout.moving_buffers[0]}' from one step and parameters from another. "
                "Call update_parameters after optimizer.step()."
            )
        before = self._last
        for count in range(self.count, now):
            rate = self._rate(count)
            self.steps.append(steps)
            self.rates.append(rate)
            if before is not None:
                before = before + (binding.read_theta() - before) * rate
            self._follow_buffers(binding, rate if self.averaged.use_buffers else 1.0)
        self.count = now
        if self._checked > _CHECKED_UPDATES:
            return
        average = self._read(binding)
        if before is not None and not is_close(average, before, OTHER_ORDER):
            raise NotSupported(
                f"The averaged model after step {steps - 1} is not an average of the recorded "
                "parameters. Call averaged.update_parameters(model) with the recorded model, "
                "between one step and the next."
            )
        self._checked += 1
        self._last = average if self._checked <= _CHECKED_UPDATES else None

    def _follow_buffers(self, binding: TorchBinding, rate: float) -> None:
        buffers = binding.layout.read_buffers(binding.model)
        floating = {name: b.cpu() for name, b in buffers.items() if b.is_floating_point()}
        old = self._buffers if rate < 1.0 else floating
        self._buffers = {name: old[name] + (b - old[name]) * rate for name, b in floating.items()}

    def _read(self, binding: TorchBinding) -> Tensor:
        named = dict(self.module.named_parameters())
        like = binding.parameters
        average = {n: named[n].detach().to(like[n].device) for n in binding.layout.names}
        return binding.layout.flatten(average)

    def _rate(self, count: int) -> float:
        """a_n of the update after `count` of them, computed with the averaging function itself."""
        if count == 0:
            return 1.0  # the first one copies
        average = lambda old, new: self._average(old, new, count)
        rate = average(0.0, 1.0)
        rest = average(1.0, 0.0)
        if not np.isclose(rate + rest, 1.0) or not np.isclose(
            average(2.0, -3.0), 2 * rest - 3 * rate
        ):
            raise NotSupported(
                "The averaging function is not a weighted mean of the average and the parameters. "
                "Use the default averaging of AveragedModel, or get_ema_multi_avg_fn(decay)."
            )
        return rate

    def _average(self, old: float, new: float, count: int) -> float:
        device = self.averaged.n_averaged.device
        number = torch.tensor(count, device=device)
        pair = [torch.tensor([x], dtype=torch.float64, device=device) for x in (old, new)]
        if self.averaged.multi_avg_fn is not None:
            self.averaged.multi_avg_fn([pair[0]], [pair[1]], number)
            return float(pair[0])
        return float((self.averaged.avg_fn or get_swa_avg_fn())(pair[0], pair[1], number))

    def record(self, binding: TorchBinding) -> AverageRecord:
        """What the tape keeps."""
        moving = binding.layout.moving_buffers
        how = "averaged" if self.averaged.use_buffers else "copied"
        buffers = self._read_named(moving)
        expected = self._buffers.items()
        changed = [n for n, b in expected if not is_close(buffers[n], b, OTHER_ORDER)]
        if changed:
            how = "fixed"
            warnings.warn(
                f"The buffer '{changed[0]}' of the averaged model was set after its last update "
                "(update_bn). It is used unchanged, and scores treat it as a constant. With "
                "use_buffers=True it would be averaged, and scores would take that into account.",
                DrossWarning,
                stacklevel=2,
            )
        tensors = self._read_named(binding.layout.names) | buffers
        steps = torch.tensor(self.steps, dtype=torch.int64)
        rates = torch.tensor(self.rates, dtype=torch.float64)
        return AverageRecord(steps, rates, tensors, AverageNotes(how, self.count))

    def _read_named(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        tensors = self._named_tensors()
        return {name: tensors[name].detach().cpu().clone() for name in names}

    def _named_tensors(self) -> dict[str, Tensor]:
        return dict(self.module.named_parameters()) | dict(self.module.named_buffers())
