"""Datasets by name, and the paper's preprocessing."""

import gzip
import hashlib

import numpy as np
import pytest
import torch
from experiments.augment import ShiftAndFlip

from experiments import datasets, networks, problems


def needs(path: str):
    if datasets.find_local(path) is None:
        pytest.skip(f"{path} is not on this machine (DROSS_DATA names a folder that has it)")


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("digits", (1797, 64), 10), ("breast_cancer", (569, 30), 2), ("wine", (178, 13), 3)],
)
def test_inside_scikit_learn(name, shape, classes):
    loaded = datasets.load(name)
    assert loaded.train[0].shape == shape and len(loaded.classes) == classes and loaded.test is None


@pytest.mark.parametrize(
    ("cell", "name", "path"),
    [
        ("adult_logreg", "adult", "adult.csv.gz"),
        ("20news_logreg", "20news", "newsgroups/20news-bydate-all.jsonl.xz"),
        ("mnist_logreg", "mnist", "mnist/train-images-idx3-ubyte.gz"),
    ],
)
def test_the_papers_draws(shared_oracle, cell, name, path):
    """Repetition 0 of Section 7.1, number for number."""
    needs(path)
    known = np.load(shared_oracle / f"{cell}_0.npz")
    sample = problems.draw(problems.two_class_problem(name), seed=0)
    np.testing.assert_array_equal(sample.y_train, known["y_tr"][:, 0])
    np.testing.assert_array_equal(sample.y_validation, known["y_val"][:, 0])
    np.testing.assert_allclose(sample.x_train, known["x_tr"], atol=2e-6)
    np.testing.assert_allclose(sample.x_validation, known["x_val"], rtol=1e-6, atol=2e-6)


def test_cifar10_as_published():
    needs("cifar10/test_batch.xz")
    path = datasets.find_local("cifar10/test_batch.xz")
    images, labels = datasets.unpack_cifar(path)
    planes = images.transpose(0, 3, 1, 2).reshape(10_000, 3072)
    raw = np.concatenate([labels[:, None].astype(np.uint8), planes], axis=1).tobytes()
    official = "803d5f7f4d78ea53de84dbe85f74fb6d"  # of test_batch.bin
    assert hashlib.md5(raw).hexdigest() == official


def test_adult_as_published(tmp_path, monkeypatch):
    """The files of the set's home give the same rows as the packed one."""
    monkeypatch.delenv("DROSS_DATA", raising=False)
    monkeypatch.setenv("DROSS_CACHE", str(tmp_path))
    (tmp_path / "adult").mkdir()
    row = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, "
    row += "White, Male, 2174, 0, 40, United-States, "
    (tmp_path / "adult" / "adult.data").write_text(
        row + "<=50K\n" + row.replace("39", "50") + ">50K\n\n"
    )
    (tmp_path / "adult" / "adult.test").write_text("|1x3 Cross validator\n" + row + ">50K.\n")
    loaded = datasets.load("adult")
    assert loaded.test is not None
    assert loaded.train[1].tolist() == [0, 1] and loaded.test[1].tolist() == [1]
    assert loaded.train[0]["age"].tolist() == [39, 50]
    assert loaded.train[0]["race"].tolist() == ["White", "White"]


def idx(array: np.ndarray) -> bytes:
    sides = [side.to_bytes(4, "big") for side in array.shape]
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + b"".join(sides) + array.tobytes(), mtime=0)


def test_fetched_checked_and_kept(monkeypatch, tmp_path):
    """A dataset's home is a folder here; what arrives damaged is not kept."""
    monkeypatch.delenv("DROSS_DATA", raising=False)
    monkeypatch.setenv("DROSS_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 10, shape, dtype=np.uint8) for shape in ((5, 28, 28), 5, (3, 28, 28), 3)
    ]
    home = tmp_path / "home"
    home.mkdir()
    for name, array in zip(datasets._IDX_FILES, arrays):
        (home / f"{name}.gz").write_bytes(idx(array))
    checksums = tuple(hashlib.md5(idx(array)).hexdigest() for array in arrays)
    monkeypatch.setitem(datasets._IDX_HOMES, "mnist", (home.as_uri() + "/", checksums))
    first = home / f"{datasets._IDX_FILES[0]}.gz"
    first.write_bytes(b"damaged on the way")
    with pytest.raises(OSError, match="arrived damaged"):
        datasets.load("mnist")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    first.write_bytes(idx(arrays[0]))
    for _ in range(2):  # the second time from the cache
        loaded = datasets.load("mnist")
        assert loaded.test is not None
        np.testing.assert_array_equal(loaded.train[0], arrays[0])
        np.testing.assert_array_equal(loaded.test[1], arrays[3])
        first.unlink(missing_ok=True)


def test_what_is_nowhere(monkeypatch, tmp_path):
    monkeypatch.delenv("DROSS_DATA", raising=False)
    monkeypatch.setenv("DROSS_CACHE", str(tmp_path))
    nowhere = (tmp_path.as_uri() + "/", ("0" * 32,) * 4)
    monkeypatch.setitem(datasets._IDX_HOMES, "fashion-mnist", nowhere)
    with pytest.raises(OSError, match=r"fashion-mnist/train-images.*DROSS_DATA"):
        datasets.load("fashion-mnist")


def test_shifts_and_flips():
    x = torch.rand(50, 2, 6, 5, dtype=torch.float64)
    seeded = lambda seed: torch.Generator().manual_seed(seed)
    move = ShiftAndFlip(2, flip=True, fill=(-1.0, 3.0))
    one, same, other = (move(x, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other) and one.shape == x.shape
    fill = torch.tensor([-1.0, 3.0], dtype=torch.float64)[:, None, None]
    padded = torch.nn.functional.pad(x - fill, [2, 2, 2, 2]) + fill
    candidates = [padded[:, :, a : a + 6, b : b + 5] for a in range(5) for b in range(5)]
    candidates += [candidate.flip(3) for candidate in candidates]
    # [50 moves, 50 images]
    hits = torch.stack([torch.isclose(moved, one).flatten(1).all(1) for moved in candidates])
    assert hits.any(0).all()  # every image is one of the moves of its original
    assert len(hits.double().argmax(0).unique()) > 20  # and they are different ones
    assert torch.equal(ShiftAndFlip(0)(x, seeded(0)), x)


def test_the_papers_networks():
    count = lambda model: sum(p.numel() for p in model.parameters())
    mnist = networks.mnist_cnn()
    assert count(mnist) == 13_750 and mnist(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert networks.cifar10_cnn()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert count(networks.dense(62, 8, 8, 1)) == 62 * 8 + 8 + 72 + 9
    for channels, side in ((1, 28), (3, 32)):
        x = torch.zeros(2, channels, side, side)
        assert networks.autoencoder(channels, 4, 2)(x).shape == x.shape
