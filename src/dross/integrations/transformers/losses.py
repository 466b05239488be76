"""One loss per example, from what a model of transformers returns; and the query made of them.

A model of transformers returns the mean over all tokens. What dross needs is what each example adds
to it: the sum over the example's own tokens, or its one loss where it has one label.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers.loss.loss_utils import (
    LOSS_MAPPING,
    ForCausalLMLoss,
    ForMaskedLMLoss,
    ForQuestionAnsweringLoss,
    ForSequenceClassificationLoss,
    ForTokenClassification,
)

from ...data.dataset import Collated, move_to
from ...engine.objective import Objective
from ...errors import InvalidInput, NotSupported
from ...influence.query import Buffers, Query, QueryPart
from ...record.watch import LossHandle

IGNORED = -100  # the label of a token that has no loss
_TOLERANCE = 1e-3  # of the loss: divisors that are closer to each other than this do not matter
_KINDS = {
    ForCausalLMLoss: "next token",
    ForMaskedLMLoss: "token",
    ForTokenClassification: "token",
    ForSequenceClassificationLoss: "label",
    ForQuestionAnsweringLoss: "answer",
}


@dataclass(frozen=True)
class InstanceLosses:
    """The loss of each example of a batch, [B].

    Arguments:
        kind: "next token", "token", "label" or "answer": what has a label.
        labels: how many classes there are; 1 is a regression.
        problem: the configuration's problem_type, where it has one.
        smoothing: the trainer's label_smoothing_factor.
        each_token: one loss per token that has one instead, [tokens]; an example without any has
            one of 0.
    """

    kind: str
    labels: int = 0
    problem: str | None = None
    smoothing: float = 0.0
    each_token: bool = False

    @property
    def __name__(self) -> str:
        """What a tape calls it."""
        smoothed = f", smoothed by {self.smoothing:g}" if self.smoothing else ""
        return f"of each {self.kind}{smoothed}"

    @staticmethod
    def of(model: nn.Module, smoothing: float = 0.0) -> "InstanceLosses":
        """The losses of a model as transformers computes them.

        Raises:
            NotSupported: for a model whose loss dross cannot compute.
        """
        inner: Any = model
        if hasattr(inner, "get_base_model"):  # a model of peft
            inner = inner.get_base_model()
        name = getattr(inner, "loss_type", None)
        if name is None and hasattr(inner, "loss_function"):
            name = "ForCausalLM"  # as transformers has it
        kind = _KINDS.get(LOSS_MAPPING.get(name)) if name else None
        if kind is None:
            raise NotSupported(
                "dross does not know how to compute the loss of each example for "
                f"{type(inner).__name__}. Pass a function: RecordingTrainer(..., losses=fn), where "
                "fn(outputs, labels) returns one loss per example, [B]."
            )
        config = inner.config
        if kind == "next token" and getattr(config, "is_encoder_decoder", False):
            kind = "token"
        labels = int(getattr(config, "num_labels", 0))
        return InstanceLosses(kind, labels, getattr(config, "problem_type", None), smoothing)

    @property
    def has_tokens(self) -> bool:
        """Whether an example has one loss per token."""
        return self.kind in ("next token", "token")

    def __call__(self, outputs: Any, y: dict[str, Tensor]) -> Tensor:
        """The losses of a batch. y: its labels by name."""
        if self.kind == "answer":
            return self._of_answers(outputs, y)
        logits = _widen(outputs["logits"] if isinstance(outputs, dict) else outputs[0])
        labels = self._align(y["labels"])
        if not self.has_tokens:
            return self._of_labels(logits, labels)
        if self.kind == "next token":
            logits = logits[:, :-1]
        losses = self._cross_entropy(logits.flatten(0, 1), labels.flatten()).view(labels.shape)
        return losses[_counted(labels)] if self.each_token else losses.sum(1)

    def count(self, y: dict[str, Tensor]) -> Tensor:
        """How many losses each example has that are not ignored, [B]."""
        if not self.has_tokens:
            return torch.ones(len(next(iter(y.values()))), dtype=torch.long)
        return (self._align(y["labels"]) != IGNORED).sum(1)

    def slots(self, y: dict[str, Tensor]) -> Tensor:
        """How many numbers `each_token` gives for each example, [B]."""
        return self.count(y).clamp(min=1)

    def class_logits(self, outputs: Any, y: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The logits of the classes, and the labels, for `Run.margins`.

        Raises:
            NotSupported: if an example does not have one label out of several classes.
        """
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if self.kind != "label" or self._problem(y["labels"]) != "single_label_classification":
            raise NotSupported(
                "Margins need one label per example, out of several classes. This model is "
                f"for a different task ({self.problem or self.kind})."
            )
        return logits.view(-1, self.labels), y["labels"].view(-1)

    def losses_of_rows(self, y: dict[str, Tensor]) -> Tensor:
        """How many numbers a call gives for each example, [B]."""
        slots = self.slots(y)
        return slots if self.each_token else torch.ones_like(slots)

    def token_by_token(self) -> "InstanceLosses":
        """The same losses, one per token."""
        if not self.has_tokens:
            raise InvalidInput(
                f"This model has one loss per {self.kind} and none per token: compute scores per "
                "example."
            )
        return replace(self, each_token=True)

    def _align(self, labels: Tensor) -> Tensor:
        return labels[:, 1:] if self.kind == "next token" else labels

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="none", label_smoothing=self.smoothing)

    def _of_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        problem = self._problem(labels)
        if problem == "single_label_classification":
            return self._cross_entropy(logits.view(-1, self.labels), labels.view(-1))
        labels = labels.view(logits.shape).to(logits.dtype)
        if problem == "regression":
            return ((logits - labels) ** 2).flatten(1).mean(1)
        each = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return each.flatten(1).mean(1)

    def _problem(self, labels: Tensor) -> str:
        """The configuration's problem_type, or what transformers infers from the labels."""
        if self.problem is not None:
            return self.problem
        if self.labels > 1 and not labels.is_floating_point():
            return "single_label_classification"
        return "regression" if self.labels == 1 else "multi_label_classification"

    def _of_answers(self, outputs: Any, y: dict[str, Tensor]) -> Tensor:
        losses = []
        for end in ("start", "end"):
            logits = _widen(outputs[f"{end}_logits"])
            outside = logits.shape[1]  # an answer that lies outside of the text is ignored
            places = y[f"{end}_positions"].view(-1).clamp(0, outside)
            loss = F.cross_entropy(logits, places, ignore_index=outside, reduction="none")
            losses.append(loss / 2)
        return losses[0] + losses[1]


def _counted(labels: Tensor) -> Tensor:
    """Which tokens have their own loss; the first one of an example that has none."""
    counted = labels != IGNORED
    first = torch.zeros_like(counted)
    first[:, 0] = ~counted.any(1)
    return counted | first


def _widen(logits: Tensor) -> Tensor:
    """At least float32, as transformers does it; a double stays one."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Shares:
    """The share that each example's loss has in the loss of a batch, inferred from that loss.

    Trainer passes the number of labeled tokens of all accumulated micro-batches to the model. Some
    models divide by it, others take the mean over the micro-batch and ignore it, and what counts as
    a token differs between models. So the loss of a batch is compared with the sum of its examples'
    losses, and the divisor that fits is used. This is checked again whenever the divisors that
    have fitted so far differ.
    """

    def __init__(self) -> None:
        self.fitting: list[str] = []  # the divisors that have fitted so far; empty: any may fit

    def find(
        self, losses: Any, y: dict[str, Tensor], items: Any, loss: Tensor, followed: LossHandle
    ) -> float:
        """The share in this batch.

        Arguments:
            losses: the function that gives the losses of the examples.
            y: the labels of the batch.
            items: Trainer's num_items_in_batch, where it counts them.
            loss: what the trainer computed.
            followed: gives the losses of the examples where they are needed.

        Raises:
            NotSupported: if the loss is not the sum of the examples' losses divided by any of
                them.
        """
        divisors = self.divisors(losses, y, items)
        known = {name: divisors[name] for name in self.fitting if name in divisors}
        if known and max(known.values()) == min(known.values()):
            return 1 / next(iter(known.values()))
        if not torch.isfinite(loss).all():
            return 1 / next(iter(divisors.values()))  # the step itself is refused
        total = float(followed.losses().double().sum())
        value = float(loss.detach())
        off = {name: abs(total / d - value) for name, d in (known or divisors).items()}
        limit = _TOLERANCE * abs(value)
        best = min(off.values())
        if best > limit:
            tried = ", ".join(f"{name}: {total / d:.6g}" for name, d in divisors.items())
            raise NotSupported(
                f"The trainer's loss for this batch is {value:.6g}. The sum of the losses of its "
                f"examples, divided by the number of {tried}, is different. The loss contains "
                "something else (an auxiliary loss, another reduction, compute_loss_func). Pass "
                "a function for the loss of each example: losses=fn. fn(outputs, labels) must "
                "return one loss per example, [B], such that the trainer's loss is the mean of "
                "these losses, or their sum divided by the number of tokens."
            )
        self.fitting = [name for name, error in off.items() if error <= max(best, 1e-9 * limit)]
        return 1 / divisors[self.fitting[0]]

    @staticmethod
    def divisors(losses: Any, y: dict[str, Tensor], items: Any) -> dict[str, float]:
        """What a loss may be divided by, by name."""
        found = {} if items is None else {"counted items": float(items)}
        if isinstance(losses, InstanceLosses):
            found["tokens"] = float(losses.count(y).sum())
        found["examples"] = float(len(next(iter(y.values()))))
        return {name: divisor for name, divisor in found.items() if divisor > 0}


def loss_of(
    data: Collated,
    batch_size: int = 8,
    count: Callable[[Any, dict[str, Tensor]], Any] | None = None,
    each: bool = False,
) -> Query:
    """The loss on a dataset, as Trainer.evaluate computes it, as a scalar query.

    Every batch has the mean over its tokens (or examples), and counts by its examples.

    Arguments:
        data: the dataset with its collator.
        batch_size: examples in a batch.
        count: count(losses, y) returns the number of losses in a batch; by default those that are
            not ignored.
        each: one query per example instead, the mean over its own tokens.
    """
    batch_size = 1 if each else batch_size
    count = (lambda losses, y: losses.count(y).sum()) if count is None else count

    def parts(objective: Objective) -> Iterator[QueryPart]:
        losses: Any = objective.loss
        parameter = next(objective.model.parameters())
        to = lambda t: move_to(t, parameter.device, parameter.dtype)
        for start in range(0, len(data), batch_size):
            ids = range(start, min(start + batch_size, len(data)))
            x, y = tree_map(to, data.collate(ids))
            items = count(losses, y) if isinstance(losses, InstanceLosses) else len(ids)
            share = 1 / items if each else len(ids) / len(data) / items

            def ask(theta: Tensor, buffers: Buffers, x=x, y=y, share=share) -> Tensor:
                losses = objective.apply_loss(objective.predict(theta, buffers, x), y)
                return (losses.sum() * share).reshape((1,) if each else ())

            yield len(ids), ask

    return Query("losses_of" if each else "loss_of", parts, added=not each, data=data)
