"""Data sets of other forms: iterables with ids, dicts of columns, and those of common packages."""

import io
import tarfile

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import dross
from dross.data.dataset import Instances
from dross.errors import InputChanged, InvalidInput
from tests.zoo import problem

CPU, F64 = torch.device("cpu"), torch.float64


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


def rows_of(p, key=lambda k: k):
    order = np.random.default_rng(0).permutation(len(p.X))
    return [(key(int(k)), p.X[k], p.Y[k]) for k in order]


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


def test_an_iterable_with_numbers_is_the_same_training_set(record, tmp_path):
    p = problem("mlp", "momentum")
    expected = record(p).influence(query(p)).values
    model, optimizer = p.start()
    options = {"path": tmp_path / "t", "batches": p.batches, "progress": False}
    run = dross.train(model, Stream(rows_of(p)), p.loss, optimizer, **options)
    np.testing.assert_array_equal(run.influence(query(p)).values, expected)
    assert run.keys is None
    model, _ = p.start()
    again = dross.load(run.path, model, Stream(rows_of(p)), p.loss)
    np.testing.assert_array_equal(again.influence(query(p)).values, expected)
    other = [(k, x + (k == 3), y) for k, x, y in rows_of(p)]
    with pytest.raises(InputChanged, match="another data set"):
        dross.load(run.path, model, Stream(other), p.loss)


@pytest.mark.parametrize("texts", [False, True])
def test_an_iterable_in_a_loop(tmp_path, texts):
    p = problem("mlp", "momentum")
    name = lambda k: f"sample-{99 - k:02d}" if texts else k  # their order is not that of numbers
    stream = Stream(rows_of(p, name))
    loader = DataLoader(stream, batch_size=4)
    run = recorded(p, loader, tmp_path / "a", data=stream).run()
    expected = recorded(p, DataLoader(Stream(rows_of(p)), batch_size=4), tmp_path / "b")
    expected = expected.run((p.X, p.Y)).influence(query(p)).values
    found = run.influence(query(p)).values
    order = [99 - int(key[-2:]) for key in run.keys] if texts else slice(None)
    np.testing.assert_allclose(found, expected[order], rtol=1e-12)
    if texts:
        assert run.keys == sorted(run.keys)
        one = run.leave_one_out(query(p), [run.keys[3]])
        np.testing.assert_array_equal(one, run.leave_one_out(query(p), [3]))
        with pytest.raises(InvalidInput, match="no instance with the id 'nobody'"):
            run.leave_one_out(query(p), ["nobody"])


def test_texts_without_the_data_set(tmp_path):
    p = problem("mlp", "sgd")
    loader = DataLoader(Stream(rows_of(p, str)), batch_size=4)
    with pytest.raises(InvalidInput, match=r"whole numbers.*data="):
        recorded(p, loader, tmp_path / "a")


@pytest.mark.parametrize(
    "rows, sentence",
    [
        ([(torch.ones(3), 1)], r"must give \(id, x, y\)"),
        ([torch.ones(3)], r"must give \(id, x, y\)"),
        ([{"x": torch.ones(3), "label": 1}], "dicts with '__key__' or 'id'"),
        ([(0.5, torch.ones(3), 1)], "a number from 0 to N-1 or a text"),
        ([(k % 2, torch.ones(3), 1) for k in range(3)], "gives the id 0 twice"),
        ([(k + 1, torch.ones(3), 1) for k in range(3)], r"must be 0 to 2.*found 3"),
        ([(k, torch.ones(6000), 1) for k in range(3)], r"more than 40,000 bytes \(after 2 inst"),
        ([], "empty"),
    ],
)
def test_iterables_that_cannot_be_used(rows, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        Instances(Stream(rows), CPU, F64, memory=40_000)


class Rows:
    """A map-style data set of dicts."""

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
    with pytest.raises(InvalidInput, match="Turn texts into numbers first"):
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


def test_a_stream_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    p = problem("mlp", "sgd")
    made = datasets.Dataset.from_dict({"features": p.X.tolist(), "label": p.Y.tolist()})
    with pytest.raises(InvalidInput, match="dicts with '__key__' or 'id'"):
        Instances(made.to_iterable_dataset(), CPU, F64)
    named = made.add_column("id", [f"{k:02d}" for k in range(len(p.X))]).to_iterable_dataset()
    read = Instances(named, CPU, F64)
    np.testing.assert_allclose(read[np.array([3])][0][0], p.X[3], rtol=1e-6)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves its files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    p = problem("mlp", "momentum")
    shard = tmp_path / "shard-000000.tar"
    with tarfile.open(shard, "w") as tar:
        for k in range(len(p.X)):
            raw = io.BytesIO()
            np.save(raw, p.X[k].numpy())
            for kind, content in (("npy", raw.getvalue()), ("cls", str(int(p.Y[k])).encode())):
                entry = tarfile.TarInfo(f"sample{k:03d}.{kind}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    made = webdataset.WebDataset(str(shard), shardshuffle=False).decode()
    loader = DataLoader(made.to_tuple("__key__", "npy", "cls"), batch_size=4)
    run = recorded(p, loader, tmp_path / "mine", data=made).run()
    assert run.keys == [f"sample{k:03d}" for k in range(len(p.X))]
    order = [np.arange(k, min(k + 4, 15)) for k in range(0, 15, 4)] * 2
    p.batches, p.epochs = order, 2
    model, optimizer = p.start()
    options = {"path": tmp_path / "t", "batches": order, "epochs": 2, "progress": False}
    expected = dross.train(model, (p.X, p.Y), p.loss, optimizer, **options)
    found = run.influence(query(p)).values
    np.testing.assert_allclose(found, expected.influence(query(p)).values, rtol=1e-9)
