"""dross.clean(X, y), and what follows from it in other processes: judge, export, cleaned."""

import shutil
import subprocess
import sys

import numpy as np
import pandas
import pytest
import torch

import dross
from dross.errors import CorruptFile, InputChanged, InvalidInput
from tests.cleaning.made_inputs import QUICK, flipped, set_in_json

SMALL = QUICK | {"repeats": 1, "epochs": 4, "check": 2, "model": "linear"}


def made(count=200):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, count)
    x = (rng.normal(size=(count, 4)) + 2 * y[:, None]).astype(np.float32)
    return x, flipped(y, 0.1)[0]


@pytest.fixture(scope="module")
def _arrays(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays") / "run"
    dross.clean(*made(), out=folder, **SMALL)
    return folder


@pytest.fixture
def arrays(_arrays, tmp_path):
    """A project of arrays, copied: nothing in it leads to where it was made."""
    shutil.copytree(_arrays, tmp_path / "moved")
    return dross.Project.open(tmp_path / "moved")


def test_another_process_judges_and_exports_what_was_given(arrays, tmp_path):
    command = [sys.executable, "-m", "dross"]
    judged = [*command, "judge", str(arrays.folder), "--remove", "9", "--seeds", "2", "--quick"]
    done = subprocess.run(judged, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(arrays.verdicts()) == 1
    for name in ("cleaned.parquet", "cleaned.csv"):
        out = dross.export(arrays.folder, tmp_path / name, remove=9)
        assert out.written == 191 and out.removed == 9
    read = pandas.read_csv(tmp_path / "cleaned.csv")
    assert read.columns.tolist() == ["x0", "x1", "x2", "x3", "label"] and len(read) == 191
    assert not any("tmp" in str(value) for value in vars(arrays.info.request).values())


def test_the_cleaned_arrays_are_those_without_the_removed_places(arrays):
    x, y = made()
    worst = arrays.table.sort_values("harm_rank").head(9)
    places = worst["row"].tolist()
    assert worst["label"].tolist() == [str(y[place]) for place in places]
    left_x, left_y = arrays.cleaned(remove=9)
    assert left_x.dtype == np.float32 and left_y.dtype == y.dtype
    assert (left_x == np.delete(x, places, 0)).all() and (left_y == np.delete(y, places)).all()
    arrays.decisions.record({int(worst.index[0]): ("relabel", "2"), 5: ("remove", None)})
    relabeled_x, relabeled_y = arrays.cleaned()
    assert len(relabeled_x) == 199
    gone = int(arrays.table.loc[5, "row"])
    expected = y.copy()
    expected[places[0]] = 2
    assert (relabeled_y == np.delete(expected, gone)).all()


def test_the_same_call_goes_on_and_other_data_are_refused(arrays):
    x, y = made()
    said = []
    dross.clean(x, y, out=arrays.folder, say=said.append, **SMALL)
    assert "already" in said[-1]
    (arrays.folder / "data" / "train.parquet").unlink()
    with pytest.raises(InvalidInput, match="There is no file"):
        dross.judge(arrays.folder, remove=5)
    dross.clean(x, y, out=arrays.folder, **SMALL)  # mends it
    assert len(arrays.cleaned(remove=5)[0]) == 195
    with pytest.raises(InvalidInput, match="contains results from other data"):
        dross.clean(x + 1, y, out=arrays.folder, **SMALL)
    assert len(arrays.cleaned(remove=5)[0]) == 195
    dross.clean(x + 1, y, out=arrays.folder, overwrite=True, **SMALL)
    again = dross.Project.open(arrays.folder)
    assert again.cleaned(remove=5)[0].mean() > x.mean() + 0.5


def test_a_changed_copy_is_noticed(arrays, tmp_path):
    path = arrays.folder / "data" / "train.parquet"
    with pytest.raises(
        InvalidInput, match=r"which must not be changed|one of the project's own files"
    ):
        dross.export(arrays.folder, path, remove=5, overwrite=True)
    frame = pandas.read_parquet(path)
    frame.assign(x0=frame["x0"] + 1).to_parquet(path)
    for use in (lambda: arrays.cleaned(remove=5), lambda: dross.judge(arrays.folder, remove=5)):
        with pytest.raises(InputChanged, match="has changed since dross clean read it"):
            use()


def test_a_project_that_lies_about_its_types_is_damaged(arrays):
    set_in_json(arrays.folder / "project.json", request__memory__x_dtype="no type")
    with pytest.raises(CorruptFile, match="record of its data types"):
        dross.Project.open(arrays.folder).cleaned(remove=5)


def test_a_frame_with_parts_of_its_own(tmp_path):
    x, y = made(260)
    frame = pandas.DataFrame(x, columns=list("abcd")).assign(kind=np.array(["u", "v", "w"])[y])
    frame.index = pandas.Index([f"r{k}" for k in range(len(frame))], name="key")
    parts = {"validation": frame.iloc[120:190], "test": frame.iloc[190:]}
    project = dross.clean(frame.iloc[:120], "kind", out=tmp_path / "run", **parts, **SMALL)
    assert project.info.counts == {"train": 120, "validation": 70, "test": 70}
    cleaned = project.cleaned(remove=7)
    assert len(cleaned) == 113 and cleaned.index.name == "key"
    assert cleaned.equals(frame.loc[cleaned.index])  # the kept rows, as they were
    verdict = dross.judge(project.folder, remove=7, quick=True, seeds=2, progress=False)
    assert verdict.removed == 7
    assert "dross clean" in (project.folder / "report.html").read_text()


def test_images_as_a_tensor(tmp_path):
    rng = np.random.default_rng(0)
    y = torch.arange(80) % 2
    x = torch.from_numpy(rng.random((80, 3, 8, 8), dtype=np.float32)) / 2
    x[y == 1] += 0.5
    pair = (x[:40], y[:40])
    project = dross.clean(x, y, test=pair, out=tmp_path / "run", **SMALL | {"model": "mlp"})
    assert project.info.kind == "images"
    image = project.image("train", 0)
    assert image is not None and image.startswith(b"\x89PNG")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    project = dross.Project.open(tmp_path / "moved")
    verdict = dross.judge(project.folder, remove=4, quick=True, seeds=2, progress=False)
    assert verdict.removed == 4
    left, labels = project.cleaned(remove=4)
    assert left.shape == (76, 3, 8, 8) and left.dtype == torch.float32 and len(labels) == 76
    assert labels.dtype == torch.int64 and bool((left[labels == 1].mean() > 0.6).item())
    exported = dross.export(project.folder, tmp_path / "list.csv", remove=4)
    assert exported.written == 76
    array = project.folder / "data" / "train.npy"
    np.save(array, np.load(array) * 0.5)
    with pytest.raises(InputChanged, match="changed"):
        project.cleaned(remove=4)


def test_texts_and_an_estimator_of_ones_own(tmp_path):
    texts = [f"a {'fine' if k % 2 else 'poor'} thing number {k % 9}" for k in range(120)]
    labels = ["good" if k % 2 else "bad" for k in range(120)]
    project = dross.clean(texts, labels, out=tmp_path / "run", **SMALL)
    options = {"remove": 3, "quick": True, "seeds": 2, "progress": False}
    verdict = dross.judge(project.folder, estimator="sklearn:LogisticRegression", **options)
    assert verdict.model == "LogisticRegression"
    left, kept = project.cleaned(remove=3)
    assert len(left) == len(kept) == 117 and set(left) <= set(texts)


def test_tables_in_files_are_returned_as_frames(little, album):
    project = dross.Project.open(little)
    cleaned = project.cleaned(remove=6)
    assert len(cleaned) == 114 and "kind" in cleaned.columns and cleaned["size"].dtype == float
    with pytest.raises(InvalidInput, match="folder of images"):
        dross.Project.open(album).cleaned(remove=2)


def test_images_in_an_array_are_seen_by_a_backbone(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 16, 16), dtype=np.float32), np.repeat([0, 1], 30)
    x[y == 1, ::4] = 0
    rest = rng.random((10, 16, 16), dtype=np.float32), np.repeat([0, 1], 5)
    options = SMALL | {"backbone": "efficientnet-lite0"}
    project = dross.clean(x, y, test=rest, out=tmp_path / "run", **options)
    assert project.info.training.encoding.inputs == "features"
    assert project.info.training.recipe.inputs == (1280,)
    moved = project.folder.rename(tmp_path / "moved")
    assert dross.judge(moved, remove=3, seeds=2, quick=True, progress=False).removed == 3
    with_model = "sklearn:LogisticRegression"  # it learns the same features
    verdict = dross.judge(moved, remove=3, seeds=2, estimator=with_model, progress=False)
    assert verdict.model == "LogisticRegression"


def test_arrays_with_features_of_ones_own(tmp_path):
    x, y = made()
    own = np.concatenate([x, x**2], axis=1)
    np.save(tmp_path / "own.npy", own)
    project = dross.clean(x, y, features=tmp_path / "own.npy", out=tmp_path / "run", **SMALL)
    assert project.info.training.recipe.inputs == (8,)
    assert set(project.info.input_files) == {"data", "features"}
    assert dross.judge(tmp_path / "run", remove=3, seeds=2, quick=True, progress=False).removed == 3
    np.save(tmp_path / "own.npy", own + 1)
    with pytest.raises(InputChanged, match=r"own\.npy has changed"):
        dross.judge(tmp_path / "run", remove=3, seeds=2, quick=True, progress=False)
