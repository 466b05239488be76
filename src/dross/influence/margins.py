"""Margins along a run, which tell wrong labels from right ones (AUM).

    margin of z_i at a step = logit of its label - largest logit of another class
    AUM_i                   = mean over the steps t with i in S_t of the margin at theta_t

A network fits a wrong label late, against what similar instances teach it, so its margin is low for
most of the run. After G. Pleiss et al., "Identifying Mislabeled Data using the Area Under the Margin
Ranking", NeurIPS 2020. As there, a margin is that of the training pass itself: the batch as the step
saw it, in train mode, before the update. So it costs one forward pass of the data per epoch, besides
the replay of states that the tape does not keep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._progress import progress_bar
from ..data.batch import LazyBatch
from ..engine.autodiff import widen
from ..engine.executor import Executor
from ..engine.objective import Objective
from ..engine.state import State
from ..errors import NotSupported
from ..replay.recording import Recording
from ..replay.schedule import StepRange


def mean_margins(recording: Recording, steps: StepRange, *, progress: bool = False) -> np.ndarray:
    """The mean margin of every instance over the steps that used it; nan if none did.

    Arguments:
        recording: the run.
        steps: those that are looked at.
        progress: show a progress bar.

    Returns:
        float64 [N].

    Raises:
        NotSupported: if the model does not return the logits of classes.
    """
    recording.check_unchanged()
    objective = recording.objective
    # what an executor calls the losses are then the margins: the same forward pass
    executor = Executor(replace(objective, loss=_Margins(objective), penalty=None))
    device = recording.device
    totals = torch.zeros(len(recording.instances), dtype=torch.float64, device=device)
    counts = torch.zeros_like(totals)

    def add_step(state: State, batches: Sequence[LazyBatch]) -> None:
        buffers = state.buffers
        for batch in batches:
            margins, buffers = executor.losses(state.theta, buffers, batch)
            ids = batch.ids.to(device)
            totals.index_add_(0, ids, margins.double())
            counts.index_add_(0, ids, torch.ones_like(margins, dtype=torch.float64))

    bar = progress_bar("margins", steps.stop - steps.first, show=progress)
    with recording.executor.training(), bar as advance:
        for block in recording.walk_backward(steps.first, steps.stop, steps.stop):
            for k in reversed(range(len(block.steps))):
                add_step(block.states[k], block.batches[k])
                advance(1)
            del block  # before the next one is replayed
    return (totals / counts).cpu().numpy()  # 0 / 0 is nan


@dataclass(frozen=True)
class _Margins:
    """In place of a loss: the margin of each instance of a batch, [B]."""

    objective: Objective  # whose outputs and labels are compared

    def __call__(self, outputs: Any, y: Any) -> Tensor:
        find_logits = getattr(self.objective.loss, "class_logits", _find_logits)
        logits, labels = find_logits(outputs, y)
        logits = widen(logits)
        if logits.numel() == len(logits) == labels.numel():
            return self._of_one_logit(logits.reshape(-1), labels.reshape(-1))
        return _of_classes(logits, labels)

    def _of_one_logit(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of two classes with one logit for class 1; that of class 0 is 0."""
        is_number = self.objective.loss_name == "squared_error"
        if is_number or not bool(((labels == 0) | (labels == 1)).all()):
            raise NotSupported(
                "Margins are defined only for classifiers. This model has one output for each "
                f"instance, and the labels run from {float(labels.min()):g} to {float(labels.max()):g}, so "
                "it is a regression model. Its instances can be ranked by their loss: "
                "dross.estimators.TrainingLoss()."
            )
        return torch.where(labels == 1, logits, -logits)


def _of_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """Of logits [B, classes] and the number of each instance's class [B]."""
    if logits.dim() != 2 or labels.numel() != len(logits):
        raise NotSupported(
            "Margins need one label and one row of logits for each instance. The outputs of this "
            f"model have shape {tuple(logits.shape)}, the labels {tuple(labels.shape)}."
        )
    classes = logits.shape[1]
    if labels.is_floating_point() or not bool(((labels >= 0) & (labels < classes)).all()):
        raise NotSupported(
            f"Margins need labels that are class indices, 0..{classes - 1}. These are of type "
            f"{labels.dtype} and run from {float(labels.min()):g} to {float(labels.max()):g}."
        )
    given = labels.reshape(-1, 1).long()
    others = logits.scatter(1, given, -torch.inf)
    return logits.gather(1, given)[:, 0] - others.amax(1)


def _find_logits(outputs: Any, y: Any) -> tuple[Tensor, Tensor]:
    """The logits and the labels: tensors, or what a dict calls so.

    A Lightning module's training_step returns a dict, in which both may be.
    """
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else outputs
    labels = y.get("labels") if isinstance(y, Mapping) else y
    if isinstance(outputs, Mapping) and "labels" in outputs:
        labels = outputs["labels"]
    elif isinstance(outputs, Mapping) and "losses" in outputs:
        logits = None  # the labels are known to training_step alone
    if not isinstance(logits, Tensor) or not isinstance(labels, Tensor):
        raise NotSupported(
            "Margins need the logits and the labels of each batch. Let the model return its logits "
            'as a tensor, or in a dict as "logits", and pass the labels as a tensor. A '
            'training_step that returns "losses" must return "logits" and "labels" as well.'
        )
    return logits, labels
