"""One set with some of its labels wrong, cut into three parts."""

from functools import cached_property

import judges
import noise
import numpy as np
import sets
import torch

from dross.cleanse.learning.recipe import Pair, Recipe, default_batch_size
from dross.cleanse.learning.train_many import search_rate

TRAIN, VALIDATION, TEST = 2000, 700, 2000


class Case:
    """What a user has, and what only the benchmark knows: the true labels."""

    def __init__(self, name: str, kind: str, noisy_validation: bool, seed: int):
        whole = sets.load(name)
        order = np.random.default_rng([seed, 7]).permutation(len(whole.y))
        order = order[: TRAIN + VALIDATION + TEST]
        count = len(order)
        train, validation = min(TRAIN, count // 2), min(VALIDATION, count // 6)
        self.data = whole.take(order)
        self.train = np.arange(train)
        self.validation = np.arange(train, train + validation)
        self.test = np.arange(train + validation, count)
        self.labels = noise.wrong_labels(self.data, kind, seed)
        right = self.test if noisy_validation else np.concatenate([self.validation, self.test])
        self.labels[right] = self.data.y[right]
        self.wrong = np.flatnonzero(self.labels[self.train] != self.data.y[self.train])
        self.x, self.seed = judges.encode(self.data, self.train), seed

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers."""
        return self.data.task == "regression"

    def given(self, ids: np.ndarray):
        """The inputs and labels that a user has of some instances."""
        return self.data.take(ids).x, self.labels[ids]

    @cached_property
    def class_names(self) -> np.ndarray:
        """Of all labels, sorted."""
        return np.unique(self.data.y.astype(str))

    def classes_of(self, ids: np.ndarray, labels: np.ndarray | None = None) -> np.ndarray:
        """The given labels of some instances as int64."""
        labels = self.labels if labels is None else labels
        return np.searchsorted(self.class_names, labels[ids].astype(str))

    @cached_property
    def _scale(self) -> tuple[float, float]:
        y = self.labels[self.train].astype(float)
        return float(y.mean()), float(y.std())

    def targets(self, ids: np.ndarray, labels: np.ndarray | None = None) -> torch.Tensor:
        """Labels as the network learns them."""
        if not self.is_regression:
            return torch.from_numpy(self.classes_of(ids, labels))
        y = (self.labels if labels is None else labels)[ids].astype(float)
        mean, deviation = self._scale
        return torch.from_numpy((y - mean) / deviation).float()[:, None]

    def inputs(self, ids: np.ndarray) -> torch.Tensor:
        """Inputs as the network learns them, [N, features]."""
        x = self.x[ids]
        return torch.from_numpy(np.asarray(x.todense() if hasattr(x, "todense") else x)).float()

    @cached_property
    def network(self) -> tuple[Recipe, Pair]:
        """A recipe that dross' own search finds on what was given, and the training part."""
        data = self.inputs(self.train), self.targets(self.train)
        outputs = 1 if self.is_regression else len(self.class_names)
        loss = "squared_error" if self.is_regression else "cross_entropy"
        kind = "linear" if self.data.kind == "text" else "mlp"
        size = default_batch_size(len(self.train))
        recipe = Recipe(kind, tuple(data[0].shape[1:]), outputs, loss, batch_size=size)
        validation = self.inputs(self.validation), self.targets(self.validation)
        return search_rate(recipe, *data, validation, seed=self.seed).recipe, data

    def network_error(self, kept: np.ndarray, labels: np.ndarray, seeds: int = 3) -> float:
        """The mean test error of networks that learnt `labels` of the instances `kept`."""
        from dross.cleanse.learning.train_many import ModelSpec, train_many

        recipe, (x, _) = self.network
        specs = [ModelSpec(1000 + seed, kept, recipe.rate) for seed in range(seeds)]
        trained = train_many(recipe, x, self.targets(self.train, labels), specs)
        truth = self.targets(self.test, self.data.y)
        errors = recipe.errors(trained.outputs(self.inputs(self.test)), truth)
        return float(errors.mean()) * (self._scale[1] if self.is_regression else 1.0)
