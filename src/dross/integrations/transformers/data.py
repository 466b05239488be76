"""Examples that carry their ids through Trainer, its columns and its collators."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..._text import say_count
from ...data.dataset import ModelKwargs
from ...errors import InvalidInput, NotSupported

ID = "dross_id"


class WithIds(Dataset):
    """A data set of dicts, each with its id under "dross_id"."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.dataset)

    def __getitem__(self, i: int) -> dict:
        """The example, with its id."""
        return self._add(i, self.dataset[i])

    def __getitems__(self, ids: Sequence[int]) -> list[dict]:
        """These examples, read at once where the data set can do that."""
        together = getattr(self.dataset, "__getitems__", None)
        items = [self.dataset[i] for i in ids] if together is None else together(list(ids))
        return [self._add(i, item) for i, item in zip(ids, items)]

    def _add(self, i: int, item: Any) -> dict:
        if not isinstance(item, Mapping):
            raise InvalidInput(
                f"Example {i} of the training set has the type {type(item).__name__}; dross needs "
                "dicts of columns, as datasets.Dataset gives them, to let each carry its id."
            )
        return {**item, ID: int(i)}


class IdCollator:
    """Takes the ids out of the examples, and puts them into the batch that a collator makes."""

    def __init__(self, collate: Any):
        self.collate = collate

    def __call__(self, examples: list[dict]) -> Any:
        """The collator's batch with the ids under "dross_id"."""
        missing = [k for k, example in enumerate(examples) if ID not in example]
        if missing:
            raise InvalidInput(
                "The examples reach the collator without their ids: something between the data "
                f"set and the collator drops the column '{ID}'. Keep it, or leave the loader to "
                "Trainer."
            )
        ids = [example[ID] for example in examples]
        bare = [{k: v for k, v in example.items() if k != ID} for example in examples]
        batch = self.collate(bare)
        batch[ID] = torch.tensor(ids)
        return batch


def take_ids(inputs: Any) -> Tensor:
    """The ids of a batch, taken out of it."""
    if not hasattr(inputs, "pop"):
        raise InvalidInput(f"Trainer's batches must be dicts, not {type(inputs).__name__}.")
    if ID not in inputs:
        raise InvalidInput(
            f"The batch does not say which examples it is made of ('{ID}' is missing): this "
            "trainer makes its own loader, or its collator drops the ids. Let "
            "get_train_dataloader of Trainer make the loader, or give the loader "
            "WithIds(train_dataset) and IdCollator(collator) of "
            "dross.integrations.transformers.data."
        )
    return inputs.pop(ID)


class Split:
    """Takes a batch apart: what the model is called with, and the labels by name."""

    def __init__(self, label_names: Sequence[str], keep_labels: bool):
        """keep_labels: an encoder-decoder model makes its decoder's inputs from them."""
        self.label_names, self.keep_labels = tuple(label_names), keep_labels

    def __call__(self, batch: Mapping) -> tuple[ModelKwargs, dict[str, Tensor]]:
        """x and y of a batch.

        Raises:
            InvalidInput: where there are no labels.
            NotSupported: where rows are not examples.
        """
        if not hasattr(batch, "items"):
            raise InvalidInput(
                f"The collator makes the type {type(batch).__name__}; Trainer calls a model with "
                "a dict of columns. Return {'input_ids': ..., 'labels': ...}."
            )
        given = {k: v for k, v in batch.items() if v is not None and k != ID}
        if "shift_labels" in given or "cu_seq_lens_q" in given:
            raise packing_refused("The collator puts several examples into one row")
        y = {name: given[name] for name in self.label_names if name in given}
        if not y:
            raise InvalidInput(
                f"The batches have the columns {', '.join(given) or 'none'} and no "
                f"{' or '.join(self.label_names) or 'labels'}, so there is no loss to learn from. "
                "Add that column to the data set, let the collator make it, or say its name: "
                "TrainingArguments(label_names=[...])."
            )
        odd = [name for name, value in given.items() if not isinstance(value, Tensor)]
        if odd:
            raise InvalidInput(
                f"'{odd[0]}' in the batch has the type {type(given[odd[0]]).__name__}: dross "
                "replays tensors. Leave that column out, or turn it into a tensor in the collator."
            )
        kept = given if self.keep_labels else {k: v for k, v in given.items() if k not in y}
        if not kept:
            raise InvalidInput(
                f"The batches have the labels ({', '.join(y)}) and no inputs: the data set has "
                "no column that the model's forward takes. Check the names of the columns, or set "
                "remove_unused_columns=False."
            )
        return ModelKwargs(kept), y


def check_rows(ids: Tensor, x: ModelKwargs, y: dict[str, Tensor]) -> None:
    """Refuse a batch in which a row is not one example."""
    for name, value in {**x, **y}.items():
        if value.dim() == 0 or len(value) != len(ids):
            rows = 0 if value.dim() == 0 else len(value)
            raise packing_refused(
                f"The collator makes {say_count(rows, 'row')} of '{name}' from "
                f"{say_count(len(ids), 'example')}"
            )


def packing_refused(what: str) -> NotSupported:
    """Several examples in one row cannot be told apart."""
    return NotSupported(
        f"{what} (packing, padding-free). Then the examples share a row and the loss of one "
        "cannot be told from that of another, so none has a score. Train with packing=False and "
        "padding_free=False."
    )
