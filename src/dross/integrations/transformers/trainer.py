"""Trainer with a recorder inside: the training is the trainer's own, step by step.

Examples carry their ids through the trainer's columns and its collator.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from transformers import Trainer, TrainerCallback

from ..._text import say_count
from ...data.dataset import Collated, ModelKwargs
from ...errors import InvalidInput, NotSupported
from ...influence.query import Query
from ...influence.run import load
from ...record.recorder import Recorder
from ...tape.retention import Keep
from ...tape.writer import rewind
from .losses import InstanceLosses, Shares, loss_of
from .tokens import per_token as _per_token

ID = "dross_id"  # the column of the ids


class RecordingMixin:
    """The methods and arguments that `recording` adds to a trainer.

        trainer = RecordingTrainer(model, args, train_dataset=train, path="runs/x")
        trainer.train()
        run = trainer.recorded_run()
        scores = run.influence(trainer.loss_of(validation))

    Arguments:
        path: the folder that the run is recorded in.
        keep: what is kept of it, as for `dross.train`.
        losses: losses(outputs, labels) -> [B], the loss of each example, if dross cannot compute
            it. The trainer's own loss must be their mean, or their sum divided by the number of
            labeled tokens.
        overwrite: replace an existing tape.

    All other arguments are the trainer's own.
    """

    def __init__(
        self: Any,
        *args: Any,
        path: str | os.PathLike,
        keep: Keep | None = None,
        losses: Callable[[Any, Any], Tensor] | None = None,
        overwrite: bool = False,
        **kwargs: Any,
    ):
        self.recorder: Recorder | None = None
        self._dross = {"path": path, "keep": keep, "overwrite": overwrite}
        self._shares = Shares()
        self._given_losses = losses
        self._following: tuple[ExitStack, Tensor] | None = None
        super().__init__(*args, **kwargs)
        _check_settings(self.args)
        self.add_callback(_Listener(self))

    # --- examples that carry their ids ------------------------------------------------------------

    def _get_dataloader(
        self: Any, dataset: Any, description: str, *args: Any, **kwargs: Any
    ) -> Any:
        make = super()._get_dataloader  # type: ignore[misc]
        if not kwargs.get("is_training", False):
            return make(dataset, description, *args, **kwargs)
        sampler_fn = kwargs.pop("sampler_fn", None)
        if sampler_fn is not None:
            kwargs["sampler_fn"] = lambda _: sampler_fn(dataset)
        collator = self.data_collator
        self.data_collator = IdCollator(collator)
        try:
            return make(WithIds(self._kept_columns(dataset)), description, *args, **kwargs)
        finally:
            self.data_collator = collator

    def _kept_columns(self: Any, dataset: Any) -> Any:
        """The training set without the columns that the model does not take."""
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise NotSupported(
                "The training set is iterable: its examples have no ids and cannot be scored. Use "
                "a map-style dataset (datasets.Dataset, or one with __len__ and __getitem__)."
            )
        is_table = hasattr(dataset, "column_names") and hasattr(dataset, "remove_columns")
        return self._remove_unused_columns(dataset, "training") if is_table else dataset

    def _set_signature_columns_if_needed(self: Any) -> None:
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        if ID not in self._signature_columns:
            self._signature_columns = [*self._signature_columns, ID]

    def _collated(self: Any, dataset: Any, collator: Any = None) -> Collated:
        """A dataset with the collator, as the trainer makes batches from it."""
        collator = self.data_collator if collator is None else collator
        collate = self._get_collator_with_removed_columns(collator, "recorded")
        inner = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        decodes = bool(getattr(getattr(inner, "config", None), "is_encoder_decoder", False))
        split = Split(self.label_names, keep_labels=decodes)
        return Collated(self._kept_columns(dataset), collate, split)

    # --- the training itself ----------------------------------------------------------------------

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The trainer's own. After an error the tape keeps every step that was taken."""
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        except BaseException as error:
            if self.recorder is not None:
                self.recorder.__exit__(type(error), error, error.__traceback__)
                self.recorder = None
            raise

    def training_step(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The trainer's own, followed by the recorder."""
        if self.recorder is None:
            return super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        ids = take_ids(inputs)
        with ExitStack() as stack:
            self._following = (stack, ids)
            try:
                return super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
            finally:
                self._following = None

    def compute_loss(
        self: Any,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The trainer's own; while it trains, the recorder watches the result."""
        own: Any = super()
        options = {"return_outputs": return_outputs, "num_items_in_batch": num_items_in_batch}
        if self._following is None or self.recorder is None:
            return own.compute_loss(model, inputs, **options)
        stack, ids = self._following
        self._following = None  # a trainer that computes the loss twice is seen by the check
        x, y = self.recorder.instances.source.split(inputs)
        check_rows(ids, x, y)
        epoch = int(self.state.epoch or 0)
        followed = stack.enter_context(self.recorder.observe(ids, x, y, epoch=epoch))
        result = own.compute_loss(model, inputs, **options)
        loss = result[0] if return_outputs else result
        share = self._shares.find(self._losses, y, num_items_in_batch, loss, followed)
        followed(loss, share)
        return result

    def _clip_grad_norm(self: Any, model: Any) -> Any:
        own: Any = super()
        if self.recorder is None:
            return own._clip_grad_norm(model)
        with self.recorder.clipping(max_norm=self.args.max_grad_norm):
            return own._clip_grad_norm(model)

    def _get_grad_norm(self: Any, model: Any, grad_norm: Any = None) -> Any:
        own: Any = super()
        if self.recorder is None or grad_norm is not None:
            return own._get_grad_norm(model, grad_norm=grad_norm)
        with self.recorder.clipping(max_norm=float("inf")):  # it only measures
            return own._get_grad_norm(model, grad_norm=grad_norm)

    def _save_checkpoint(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if self.recorder is not None:
            self.recorder.save()  # so that the tape can be rewound to this checkpoint
        return super()._save_checkpoint(model, *args, **kwargs)  # type: ignore[misc]

    def _load_best_model(self: Any) -> None:
        self._close_recorder()  # the model that was recorded is the one after the last step
        super()._load_best_model()  # type: ignore[misc]

    def _close_recorder(self: Any) -> None:
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None

    # --- what can be asked ------------------------------------------------------------------------

    @property
    def _losses(self: Any) -> Any:
        if self._given_losses is not None:
            return _OneArgument(self._given_losses)
        smoother = self.label_smoother
        return InstanceLosses.of(self.model, 0.0 if smoother is None else smoother.epsilon)

    def recorded_run(self: Any, *, per_token: bool = False) -> Any:
        """The run that was recorded. In a new process, a trainer built the same way opens it.

        Arguments:
            per_token: return a `TokenRun`, which scores every labeled token of every example.

        Raises:
            DrossError: if there is no tape, or it belongs to another model or other data.
        """
        self._close_recorder()
        if self.accelerator.native_amp and not hasattr(self.model, "_original_forward"):
            # as train() does it: accelerate puts autocast into the model's forward
            self.accelerator.prepare_model(self.model, evaluation_mode=True)
        data = self._collated(self.train_dataset)
        run = load(self._dross["path"], self.model, data, self._losses)
        return _per_token(run) if per_token else run

    def loss_of(
        self: Any, dataset: Any = None, collator: Any = None, *, each: bool = False
    ) -> Query:
        """The loss on a dataset, as `evaluate` computes it, as a scalar query.

        Arguments:
            dataset: by default the trainer's eval_dataset.
            collator: by default the trainer's own.
            each: one query per example instead: the loss of each prompt, the mean over its tokens.
        """
        dataset = self.eval_dataset if dataset is None else dataset
        if dataset is None:
            raise InvalidInput(
                "Pass the dataset to compute the loss on: trainer.loss_of(validation)."
            )
        counted = "counted items" in self._shares.fitting[:1]

        def count(losses: InstanceLosses, y: dict[str, Tensor]) -> Any:
            items = self._get_num_items_in_batch([y], torch.device("cpu")) if counted else None
            return losses.count(y).sum() if items is None else items

        collated = self._collated(dataset, collator)
        return loss_of(collated, self.args.eval_batch_size, count, each)


class _OneArgument:
    """The user's losses(outputs, labels): one tensor of labels if there is one."""

    def __init__(self, losses: Callable[[Any, Any], Tensor]):
        self.losses = losses
        self.__name__ = getattr(losses, "__name__", type(losses).__name__)

    def __call__(self, outputs: Any, y: dict[str, Tensor]) -> Tensor:
        return self.losses(outputs, next(iter(y.values())) if len(y) == 1 else y)


class _Listener(TrainerCallback):
    """Begins the recording, checks after every step, and ends it."""

    def __init__(self, trainer: Any):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called when the model and the optimizer are ready, before the first step."""
        trainer = self.trainer
        settings = trainer._dross
        if resumes := state.global_step > 0:
            rewind(settings["path"], state.global_step)
        trainer._shares = Shares()
        trainer.recorder = Recorder(
            trainer.model,
            trainer._losses,
            trainer.optimizer,
            path=settings["path"],
            keep=settings["keep"],
            data=trainer._collated(trainer.train_dataset),
            seed=trainer.args.seed,
            overwrite=settings["overwrite"] and not resumes,
            resume=resumes,
            expected_steps=state.max_steps,
            scaler=trainer.accelerator.scaler,  # with fp16=True
        )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped, or should have."""
        recorder = self.trainer.recorder
        if recorder is not None and recorder.steps + recorder.skipped != state.global_step + 1:
            raise NotSupported(
                f"Trainer is at step {state.global_step}, but its optimizer has taken "
                f"{recorder.steps} recorded steps: a step was skipped, or another optimizer "
                "took a step. dross records the steps of trainer.optimizer; let it take one step per "
                "update."
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the tape."""
        self.trainer._close_recorder()


def _check_settings(args: Any) -> None:
    """Refuse what cannot be recorded, before an hour of training is lost."""
    if getattr(args, "packing", False) or getattr(args, "padding_free", False):
        raise packing_refused("The trainer puts several examples into one row")
    if args.n_gpu > 1:
        raise NotSupported(
            f"Trainer would spread each batch over {args.n_gpu} GPUs with DataParallel, which "
            "cannot be recorded. Make only one GPU visible: CUDA_VISIBLE_DEVICES=0."
        )
    if args.world_size > 1:
        raise NotSupported(
            f"This Trainer runs on {args.world_size} processes, but dross can record only one. "
            "Start a single process, or write the loop with dross.Recorder, which supports "
            "DistributedDataParallel."
        )
    if args.neftune_noise_alpha is not None:
        raise NotSupported(
            "neftune_noise_alpha adds noise that Trainer removes from the model after training, "
            "so the run could not be replayed. Train without it."
        )


class WithIds(Dataset):
    """A dataset of dicts, each with its id under "dross_id"."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.dataset)

    def __getitem__(self, i: int) -> dict:
        """The example, with its id."""
        return self._add(i, self.dataset[i])

    def __getitems__(self, ids: Sequence[int]) -> list[dict]:
        """These examples, read at once where the dataset can do that."""
        together = getattr(self.dataset, "__getitems__", None)
        items = [self.dataset[i] for i in ids] if together is None else together(list(ids))
        return [self._add(i, item) for i, item in zip(ids, items)]

    def _add(self, i: int, item: Any) -> dict:
        if not isinstance(item, Mapping):
            raise InvalidInput(
                f"Example {i} of the training set has the type {type(item).__name__}, but dross "
                "needs dicts of columns, such as those of datasets.Dataset, to add an id to each."
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
                "The examples reach the collator without their ids: something between the dataset "
                f"and the collator drops the column '{ID}'. Keep it, or let Trainer create the "
                "loader."
            )
        ids = [example[ID] for example in examples]
        bare = [{k: v for k, v in example.items() if k != ID} for example in examples]
        batch = self.collate(bare)
        batch[ID] = torch.tensor(ids)
        return batch


def take_ids(inputs: Any) -> Tensor:
    """The ids of a batch, taken out of it."""
    if ID not in inputs:
        raise InvalidInput(
            f"The batch does not contain the ids of its examples ('{ID}' is missing): this trainer "
            "makes its own loader, or its collator drops the ids. Let "
            "Trainer.get_train_dataloader make the loader, or make it with WithIds(train_dataset) "
            "and IdCollator(collator) from dross.integrations.transformers.trainer."
        )
    return inputs.pop(ID)


class Split:
    """Splits a batch into the model's inputs and the labels by name."""

    def __init__(self, label_names: Sequence[str], keep_labels: bool):
        """keep_labels: an encoder-decoder model makes its decoder's inputs from them."""
        self.label_names, self.keep_labels = tuple(label_names), keep_labels

    def __call__(self, batch: Mapping) -> tuple[ModelKwargs, dict[str, Tensor]]:
        """x and y of a batch.

        Raises:
            InvalidInput: if there are no labels.
            NotSupported: if rows are not examples.
        """
        if not hasattr(batch, "items"):
            raise InvalidInput(
                f"The collator returned an object of type {type(batch).__name__}, but Trainer calls "
                "the model with a dict of columns. Return {'input_ids': ..., 'labels': ...}."
            )
        given = {k: v for k, v in batch.items() if v is not None and k != ID}
        if "shift_labels" in given or "cu_seq_lens_q" in given:
            raise packing_refused("The collator puts several examples into one row")
        y = {name: given[name] for name in self.label_names if name in given}
        if not y:
            raise InvalidInput(
                f"The batches have the columns {', '.join(given) or 'none'} and no "
                f"{' or '.join(self.label_names) or 'labels'}, so there is no loss to train on. "
                "Add that column to the dataset, let the collator make it, or pass its name: "
                "TrainingArguments(label_names=[...])."
            )
        odd = [name for name, value in given.items() if not isinstance(value, Tensor)]
        if odd:
            raise InvalidInput(
                f"'{odd[0]}' in the batch has the type {type(given[odd[0]]).__name__}, but dross "
                "can replay only tensors. Leave out that column, or convert it to a tensor in the "
                "collator."
            )
        kept = given if self.keep_labels else {k: v for k, v in given.items() if k not in y}
        if not kept:
            raise InvalidInput(
                f"The batches have the labels ({', '.join(y)}) and no inputs: the dataset has "
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
    """The losses of several examples in one row cannot be separated."""
    return NotSupported(
        f"{what} (packing, padding-free). The examples then share a row, and their losses cannot "
        "be separated, so none can be scored. Train with packing=False and padding_free=False."
    )


@cache
def recording(trainer_class: type[Trainer]) -> Any:
    """Return a subclass of a trainer class that records its training.

        recording(SFTTrainer)(..., path="runs/x")

    Arguments:
        trainer_class: transformers' Trainer, or any class made from it.

    Raises:
        InvalidInput: for anything else.
    """
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, Trainer)):
        raise InvalidInput(
            f"trainer_class must be a trainer class, such as SFTTrainer, not {trainer_class!r}."
        )
    name = f"Recording{trainer_class.__name__}"
    return type(name, (RecordingMixin, trainer_class), {"__doc__": RecordingMixin.__doc__})


RecordingTrainer = recording(Trainer)
