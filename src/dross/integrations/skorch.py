"""Record a run of a skorch net.

from dross.integrations.skorch import DrossCallback

net = NeuralNetClassifier(Module, callbacks=[("dross", DrossCallback(path="runs/x"))])
net.fit(X, y)
run = dict(net.callbacks_)["dross"].recorded_run()
"""

import os
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from .._extras import install_command

try:
    from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
    from skorch.callbacks import Callback, GradientNormClipping
    from skorch.dataset import unpack_data
except ImportError as error:
    raise ImportError(
        f"dross.integrations.skorch needs skorch: {install_command('skorch')}."
    ) from error

from ..data.dataset import Collated, ModelKwargs
from ..errors import InvalidInput, NotSupported
from ..influence.query import Query, mean_loss
from ..influence.run import Run, load
from ..record.recorder import Recorder
from ..record.watch import LossHandle
from ..tape.retention import Keep
from .drawn_ids import DrawnIds, replace_batch_sampler


class DrossCallback(Callback):
    """Records the training of a net; an instance's id is its row of X.

    The loss is that of the net's criterion. With reduction="mean" or "sum" each instance counts the
    same. With criterion__reduction="none" and your own get_loss, every instance counts as get_loss
    weights it. Put the callback before others that change the module at the end of training.

    Arguments:
        path: the folder that the run is recorded in.
        keep, overwrite, seed: as for `dross.train`.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        keep: Keep | None = None,
        overwrite: bool = False,
        seed: int = 0,
    ):
        self.path = path
        self.keep = keep
        self.overwrite = overwrite
        self.seed = seed

    def initialize(self) -> "DrossCallback":
        """Discard the state of an earlier training run."""
        self.recorder_: Recorder | None = None
        self._followed: LossHandle | None = None
        self._patches = ExitStack()  # undoes what this callback changes in the net
        return self

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Wrap the net's loader, its training step and its criterion."""
        if len(net._optimizers) != 1 or len(net._modules) != 1:
            raise NotSupported(
                f"The net has {len(net._modules)} modules and {len(net._optimizers)} optimizers, "
                "but dross supports only one of each."
            )
        _check_criterion(net.criterion_)
        self._patches.close()
        self._net = net
        load = net.get_iterator
        step = net.train_step_single

        def get_iterator(dataset: Any, training: bool = False) -> Any:
            loader = load(dataset, training=training)
            return self._begin(net, loader) if training else loader

        def train_step_single(batch: Any, **fit_params: Any) -> Any:
            return self._train_step(step, batch, fit_params)

        self._patch(net, "get_iterator", get_iterator)
        self._patch(net, "train_step_single", train_step_single)
        for _, callback in net.callbacks_:
            if isinstance(callback, GradientNormClipping):
                self._follow_clip(callback)
        self._patches.callback(net.criterion_.register_forward_hook(self._watch).remove)

    def _begin(self, net: Any, loader: Any) -> Any:
        """The training data is known: begin the recording."""
        self._drawn: DrawnIds = replace_batch_sampler(loader)
        dataset = loader.dataset
        self._rows = np.arange(len(dataset))
        while isinstance(dataset, Subset):  # what is left of X beside the net's validation part
            self._rows = np.asarray(dataset.indices)[self._rows]
            dataset = dataset.dataset
        self.source_ = Collated(dataset, loader.collate_fn, _split)
        self.recorder_ = Recorder(
            net.module_,
            InstanceLosses(net),
            net.optimizer_,
            path=self.path,
            keep=self.keep,
            data=self.source_,
            seed=self.seed,
            overwrite=self.overwrite,
            expected_steps=len(loader) * net.max_epochs,
        )
        return loader

    def _train_step(self, step: Any, batch: Any, fit_params: dict) -> Any:
        assert self.recorder_ is not None
        if fit_params:
            raise NotSupported(
                f"fit passes {', '.join(fit_params)} to the module, which dross cannot replay. Put "
                "them into X: a dict of arrays is passed to the module as keyword arguments."
            )
        ids = self._rows[self._drawn.take()]
        x, y = _split(batch)
        epoch = max(len(self._net.history) - 1, 0)
        # skorch leaves the mode of its validation inside its step, after the recorder has looked.
        self._net.module_.train()
        with self.recorder_.observe(ids, x, y, epoch=epoch) as self._followed:
            try:
                return step(batch)
            finally:
                self._followed = None

    def _watch(self, criterion: Any, inputs: Any, loss: Tensor) -> None:
        """The criterion's result, in a training step."""
        if self._followed is None:
            return
        size = len(inputs[0])
        if loss.dim() == 0:
            self._followed(loss, 1.0 if criterion.reduction == "sum" else 1 / size)
        else:
            self._followed(loss)

    def _follow_clip(self, clip: Any) -> None:
        if clip.gradient_clip_value is not None and float(clip.gradient_clip_norm_type) != 2:
            raise NotSupported(
                "dross supports only clipping by the Euclidean norm: use norm type 2."
            )
        clip_gradients = clip.on_grad_computed

        def on_grad_computed(net: Any, named_parameters: Any, **kwargs: Any) -> None:
            limit = clip.gradient_clip_value
            if limit is not None and self.recorder_ is not None:
                with self.recorder_.clipping(max_norm=float(limit)):
                    clip_gradients(net, named_parameters, **kwargs)

        self._patch(clip, "on_grad_computed", on_grad_computed)

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        vars(owner)[name] = value
        self._patches.callback(vars(owner).pop, name, None)

    def on_train_end(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Close the tape, and leave the net as it was."""
        self._patches.close()
        if self.recorder_ is not None:
            self.recorder_.close()

    def recorded_run(self) -> Run:
        """The run that was recorded.

        Raises:
            InvalidInput: if nothing was recorded.
        """
        if getattr(self, "recorder_", None) is None:
            raise InvalidInput("This callback has not recorded anything yet: call net.fit first.")
        return load(self.path, self._net.module_, self.source_, InstanceLosses(self._net))

    def loss_of(self, X: Any, y: Any) -> Query:
        """The mean value of the criterion over the data, as a scalar query."""
        loader = self._net.get_iterator(self._net.get_dataset(X, y), training=False)
        return mean_loss(Collated(loader.dataset, loader.collate_fn, _split))


class InstanceLosses:
    """The net's own loss of each instance, whatever the reduction of its criterion."""

    def __init__(self, net: Any):
        self.net = net
        self.__name__ = f"of {type(net.criterion_).__name__}"

    def __call__(self, outputs: Any, y: Tensor) -> Tensor:
        """One loss per instance, [B]."""
        net = self.net
        criterion = net.criterion_
        if isinstance(net, NeuralNetBinaryClassifier):
            outputs = outputs.reshape(y.shape)
        kinds = [kind for kind in type(net).__mro__ if "get_loss" in vars(kind)]
        by_skorch = next(kind for kind in kinds if kind.__module__.startswith("skorch"))
        before = criterion.reduction
        criterion.reduction = "none"
        try:
            losses = by_skorch.get_loss(net, outputs, y, training=True)
        finally:
            criterion.reduction = before
        return losses if losses.dim() == 1 else losses.flatten(1).mean(1)

    def class_logits(self, outputs: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the classes, and the labels, for `Run.margins`.

        A module whose criterion is NLLLoss or BCELoss returns probabilities, as skorch asks for.
        """
        criterion = self.net.criterion_
        if isinstance(self.net, NeuralNetRegressor):
            raise NotSupported(
                "Margins are defined only for classifiers, but this net is a regressor."
            )
        if isinstance(self.net, NeuralNetClassifier) and isinstance(criterion, nn.NLLLoss):
            return torch.log(outputs + torch.finfo(outputs.dtype).eps), y  # as its get_loss does
        if isinstance(criterion, nn.BCELoss):
            return torch.logit(outputs, eps=torch.finfo(outputs.dtype).eps), y
        return outputs, y


def _split(batch: Any) -> tuple[Any, Any]:
    x, y = unpack_data(batch)
    return (ModelKwargs(x) if isinstance(x, dict) else x), y


def _check_criterion(criterion: Any) -> None:
    if not hasattr(criterion, "reduction"):
        raise NotSupported(
            f"The criterion {type(criterion).__name__} has no reduction, so the loss of each "
            "instance is not known. Use one of torch.nn's losses, or give yours a `reduction` "
            "attribute that can be set to 'none'."
        )
    if getattr(criterion, "weight", None) is not None and criterion.reduction == "mean":
        raise NotSupported(
            f"{type(criterion).__name__} with class weights divides the loss by the sum of the "
            'weights in each batch. Use criterion__reduction="none" and a get_loss that weights '
            "the losses itself."
        )
