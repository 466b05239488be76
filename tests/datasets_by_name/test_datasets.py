"""Data sets by name, and the paper's preprocessing."""

import gzip
import hashlib
import http.server
import threading

import numpy as np
import pytest
import torch

from dross import datasets
from dross.datasets import paper, sets, sources
from dross.datasets.augment import ShiftAndFlip
from dross.errors import InvalidInput


def needs(path: str):
    if sources.find_local(path) is None:
        pytest.skip(f"{path} is not on this machine (DROSS_DATA names a folder that has it)")


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("digits", (1797, 64), 10), ("breast_cancer", (569, 30), 2), ("wine", (178, 13), 3)],
)
def test_inside_scikit_learn(name, shape, classes):
    loaded = datasets.load(name)
    assert loaded.train[0].shape == shape and len(loaded.classes) == classes and loaded.test is None
    assert name in repr(loaded)


def test_names():
    with pytest.raises(InvalidInput, match="Did you mean 'mnist'"):
        datasets.load("mnits")
    with pytest.raises(InvalidInput, match="The names are: digits"):
        datasets.load("zebra")


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
    sample = paper.draw(paper.two_class_problem(name), seed=0)
    np.testing.assert_array_equal(sample.y_train, known["y_tr"][:, 0])
    np.testing.assert_array_equal(sample.y_validation, known["y_val"][:, 0])
    np.testing.assert_allclose(sample.x_train, known["x_tr"], atol=2e-6)
    np.testing.assert_allclose(sample.x_validation, known["x_val"], rtol=1e-6, atol=2e-6)


def test_cifar10_as_published():
    needs("cifar10/test_batch.xz")
    path = sources.find_local("cifar10/test_batch.xz")
    images, labels = sets._unpack_cifar(path)
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


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data set's public home on this machine.

    home.files maps a path to what is served there, one content per request.
    """
    monkeypatch.delenv("DROSS_DATA", raising=False)
    monkeypatch.setenv("DROSS_CACHE", str(tmp_path / "cache"))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            served = self.server.files.get(self.path) or [None]  # type: ignore[attr-defined]
            content = served.pop(0) if len(served) > 1 else served[0]
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files = {}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(
        side.to_bytes(4, "big") for side in array.shape
    )
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


def test_fetched_checked_and_kept(home, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (5, 28, 28)),
        rng.integers(0, 10, 5),
        rng.integers(0, 256, (3, 28, 28)),
        rng.integers(0, 10, 3),
    ]
    files = {f"/{name}.gz": idx(array) for name, array in zip(sets._IDX_FILES, arrays)}
    home.files = {path: [content] for path, content in files.items()}
    first = next(iter(files))
    home.files[first] = [b"damaged on the way", files[first]]  # removed, fetched again
    sums = tuple(hashlib.md5(content).hexdigest() for content in files.values())
    url = f"http://127.0.0.1:{home.server_address[1]}/"
    monkeypatch.setitem(sets._HOMES, "mnist", (url, sums))
    for _ in range(2):  # the second time from the cache
        loaded = datasets.load("mnist")
        assert loaded.test is not None
        np.testing.assert_array_equal(loaded.train[0], arrays[0])
        np.testing.assert_array_equal(loaded.test[1], arrays[3])
        home.files = {}
    (tmp_path / "cache" / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"rotten")
    with pytest.raises(InvalidInput, match=r"t10k-labels-idx1-ubyte\.gz is damaged"):
        datasets.load("mnist")


def test_damaged_for_good_missing_and_unreachable(home, monkeypatch, tmp_path):
    url = f"http://127.0.0.1:{home.server_address[1]}/"
    home.files = {"/a": [b"wrong"]}
    with pytest.raises(InvalidInput, match="damaged twice"):
        sources.fetch(sources.Remote("set/a", url + "a", "0" * 32))
    with pytest.raises(InvalidInput, match="cannot be reached"):
        sources.fetch(sources.Remote("set/b", url + "b", "0" * 32))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    nobody_listens = ("http://127.0.0.1:9/", ("0" * 32,) * 4)
    monkeypatch.setitem(sets._HOMES, "fashion-mnist", nobody_listens)
    with pytest.raises(InvalidInput, match=r"fashion-mnist/train-images.*DROSS_DATA"):
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
    # [50 moves, 50 pictures]
    hits = torch.stack([torch.isclose(moved, one).flatten(1).all(1) for moved in candidates])
    assert hits.any(0).all()  # every picture is one of the moves of its original
    assert len(hits.double().argmax(0).unique()) > 20  # and they are different ones
    assert torch.equal(ShiftAndFlip(0)(x, seeded(0)), x)
