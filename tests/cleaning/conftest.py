"""Cleaned projects that several test modules look at."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import dross
from dross._figures import encode_png
from tests.cleaning.made_inputs import QUICK, copy_project, other_parts, small_table, write_parts
from tests.cleaning.made_labels import QUICK as QUICK_LABELS
from tests.cleaning.made_labels import make_part
from tests.quick_cleaning import quick_cleaning

_THOROUGH = ("test_label_noise", "test_plans")  # they are about what is made quick here


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Clean quickly; session fixtures are made inside of the first test that asks for them."""
    here = Path(__file__).parent in item.path.parents  # xdist asks this hook about all tests
    if not here or item.path.stem.startswith(_THOROUGH):
        return (yield)
    with quick_cleaning():
        return (yield)


@pytest.fixture(scope="session")
def cancer(tmp_path_factory):
    """A table with flipped labels, cleaned: its folder, the project, and which are flipped."""
    folder = tmp_path_factory.mktemp("cancer")
    data = load_breast_cancer(as_frame=True)
    frame = data.data.assign(diagnosis=np.array(["malignant", "benign"])[data.target])
    bad = write_parts(frame, "diagnosis", folder, 0.12)
    project = dross.clean(
        folder / "train.csv",
        "diagnosis",
        out=folder / "run",
        repeats=3,
        lr=0.02,
        epochs=12,
        progress=False,
        **other_parts(folder),
    )
    return folder, project, bad


@pytest.fixture(scope="session")
def _little(tmp_path_factory):
    folder = tmp_path_factory.mktemp("little") / "made"
    folder.mkdir()
    for part, count in (("train", 120), ("validation", 40), ("test", 40)):
        small_table(folder / f"{part}.csv", count, note=[f"n{k}" for k in range(count)])
    options = QUICK | {"repeats": 1, "epochs": 3, "check": 2, "model": "linear"}
    dross.clean(folder / "train.csv", "kind", out=folder / "run", **options, **other_parts(folder))
    return folder


@pytest.fixture
def little(_little, tmp_path):
    """The folder of a small project of three tables, and beside it its inputs; to be spoilt."""
    return copy_project(_little, tmp_path / "little")


@pytest.fixture(scope="session")
def _album(tmp_path_factory):
    folder = tmp_path_factory.mktemp("album") / "made"
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        for k in range(40):
            path = folder / "pics" / kind / f"{k:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 99, (8, 8), dtype=np.uint8) + (100 if kind == "cat" else 0)
            path.write_bytes(encode_png(pixels.astype(np.uint8)))
    options = QUICK | {"repeats": 1, "epochs": 2, "check": 2, "model": "mlp"}
    dross.clean(folder / "pics", out=folder / "run", **options)
    return folder


@pytest.fixture
def album(_album, tmp_path):
    """The folder of a small project of images, and beside it its input `pics`; to be spoilt."""
    return copy_project(_album, tmp_path / "album")


@pytest.fixture(scope="session")
def clusters():
    """Arguments of dross.clean, and which validation and which test labels are wrong."""
    train, validation, test = (make_part(n, 0.15, k) for k, n in enumerate((240, 90, 90)))
    parts = {"validation": validation[:2], "test": test[:2]}
    return train[:2], parts, validation[2], test[2]


@pytest.fixture(scope="session")
def _cleaned(tmp_path_factory, clusters):
    data, parts, _, _ = clusters
    folder = tmp_path_factory.mktemp("clusters") / "run"
    dross.clean(*data, out=folder, **parts, **QUICK_LABELS)
    return folder


@pytest.fixture
def cleaned(_cleaned, tmp_path):
    """A project of `clusters`; to be spoilt."""
    shutil.copytree(_cleaned, tmp_path / "run")
    return dross.Project.open(tmp_path / "run")
