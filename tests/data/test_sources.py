"""Datasets of other forms: dicts of columns, and those of common packages."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import dross
from dross.data.dataset import Instances
from dross.errors import InvalidInput
from tests.zoo import problem

CPU, F64 = torch.device("cpu"), torch.float64


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


def recorded(p, loader, folder, epochs=2, **options):
    model, optimizer = p.start()
    model.train()
    recorder = dross.Recorder(model, p.loss, optimizer, path=folder, **options)
    for epoch in range(epochs):
        for ids, x, y in loader:
            with recorder.step(ids, x, y, epoch=epoch) as losses:
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    return recorder


def test_an_iterable_data_set_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(0, torch.ones(3), 1)])

    with pytest.raises(InvalidInput, match=r"map-style dataset .* ids are 0 to N-1"):
        Instances(Stream(), CPU, F64)


def test_ids_that_are_texts_are_refused(tmp_path):
    p = problem("mlp", "sgd")
    with pytest.raises(InvalidInput, match="must be integers"):
        recorded(p, [(["a", "b"], p.X[:2], p.Y[:2])], tmp_path / "a")


class Rows:
    """A map-style dataset of dicts."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def test_dicts_of_columns():
    one = Instances(Rows([{"x": [0.5, 1.5], "label": 2}] * 3), CPU, F64)
    x, y = one[np.array([0, 2])]
    assert x.shape == (2, 2) and y.tolist() == [2, 2]
    two = Instances(Rows([{"a": np.ones(2), "b": [1, 2], "y": 0, "id": 7}] * 3), CPU, F64)
    x, y = two[np.array([1])]
    assert set(x) == {"a", "b"} and x["b"].tolist() == [[1, 2]]
    for row in ({"x": 1.0, "z": 2.0}, {"label": 1}, {"x": 1.0, "label": 1, "y": 2}):
        with pytest.raises(InvalidInput, match=r"not clear which one is the label.*rename_column"):
            Instances(Rows([row] * 3), CPU, F64)
    with pytest.raises(InvalidInput, match="Convert text to numbers first"):
        Instances(Rows([{"x": 1.0, "label": "cat"}] * 3), CPU, F64)


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_hugging_face_datasets(record, tmp_path, form):
    datasets = pytest.importorskip("datasets")
    p = problem("mlp", "momentum")
    p.X = p.X.float().double()  # what arrow and a torch format keep
    expected = record(p).influence(query(p)).values
    made = datasets.Dataset.from_dict({"features": p.X.tolist(), "label": p.Y.tolist()})
    made = made if form is None else made.with_format(form)
    model, optimizer = p.start()
    options = {"path": tmp_path / "t", "batches": p.batches, "progress": False}
    run = dross.train(model, made, p.loss, optimizer, **options)
    np.testing.assert_allclose(run.influence(query(p)).values, expected, rtol=1e-12)
    loader = DataLoader(dross.data.indexed(made), batch_size=4, shuffle=True)
    again = recorded(p, loader, tmp_path / "mine", data=made).run()
    assert again.influence(query(p)).values.shape == expected.shape
