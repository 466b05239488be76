"""Copies through `dross clean`: kept in the project, said in the terminal, shown in the report."""

import shutil

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_breast_cancer

import dross
from dross._figures import encode_png
from dross.cleaning.duplicates import FILE
from dross.cleaning.findings import list_findings
from dross.errors import CorruptFile
from tests.cleaning.made_inputs import QUICK, edit_json, other_parts

FAST = QUICK | {"repeats": 1, "epochs": 2, "check": 2, "model": "linear"}


def find_sentence(project: dross.Project) -> str:
    return list_findings(project.info, project.table)[-1]


@pytest.fixture(scope="module")
def _copied(tmp_path_factory):
    """Two of the training part are in the test part, and one is there with another label."""
    folder = tmp_path_factory.mktemp("copied")
    frame = load_breast_cancer(as_frame=True).frame
    frame = frame.assign(target=frame["target"].map({0: "malignant", 1: "benign"}))
    other = frame.iloc[[5]].assign(target="benign")
    pandas.concat([frame[:300], other]).to_csv(folder / "train.csv", index=False)
    frame[300:400].to_csv(folder / "validation.csv", index=False)
    pandas.concat([frame[400:], frame[10:12]]).to_csv(folder / "test.csv", index=False)
    dross.clean(folder / "train.csv", "target", out=folder / "run", **FAST, **other_parts(folder))
    return folder


@pytest.fixture
def project(_copied, tmp_path):
    shutil.copytree(_copied / "run", tmp_path / "run")
    return dross.Project.open(tmp_path / "run")


def test_a_project_keeps_its_copies(project):
    copies = project.copies
    assert repr(copies) == "<Copies: 6 instances in 3 groups>"
    assert copies.ids() == [10, 11, 5, 300] and copies.ids("test") == [169, 170]
    assert copies.table["exact"].all() and len(copies.content.columns) == 30
    leaked = copies.content.iloc[1].astype(float)
    assert np.allclose(leaked, project.content.loc[10].astype(float))
    assert project.info.copies.natural == 0


def test_one_sentence_says_what_was_found_and_what_to_do(project):
    assert find_sentence(project) == (
        "2 of 171 test instances are also in the training set, as exact or near duplicates, which "
        "makes the verdict too optimistic. 2 training instances are exact or near duplicates of "
        "other training instances, in 1 group; the labels differ there, so at least one of them is "
        "wrong. dross review lists them under Duplicates: remove the duplicates there."
    )


def test_the_report_shows_them_side_by_side(project):
    report = (project.folder / "report.html").read_text()
    section = report[report.index('id="copies"') :]
    section = section[: section.index("</details>")]
    assert section.count("<li>") == 6 and "row 171 in the test set" in section
    assert "The labels differ (benign, malignant), so at least one is wrong." in section
    assert "dross review" in section


def test_the_plans_are_not_touched_by_copies(project):
    assert set(project.table["action"]) <= {"keep", "remove", "relabel"}


@pytest.mark.parametrize("spoil", ["missing", "cut", "another table", "an id that is not there"])
def test_damage_is_named(project, spoil):
    path = project.folder / FILE
    if spoil == "missing":
        path.unlink()
    elif spoil == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        table = pandas.read_parquet(path)
        table = table.assign(**{" id": 10**6}) if spoil.startswith("an id") else table.iloc[:, :4]
        old = project.info.digests[FILE]
        table.to_parquet(path)
        new = dross._io.digest_file(path)
        edit_json(project.folder / "project.json", lambda text: text.replace(old, new))
    with pytest.raises(CorruptFile, match=FILE):
        len(dross.Project.open(project.folder).copies)


def test_images_of_the_test_part_are_kept_if_they_are_copies(tmp_path):
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        for part in ("pics", "test"):
            (tmp_path / part / kind).mkdir(parents=True)
        for k in range(40):
            pixels = rng.integers(0, 150, (8, 8)) + (100 if kind == "cat" else 0)
            raw = encode_png(pixels.astype(np.uint8))
            (tmp_path / "pics" / kind / f"{k:02d}.png").write_bytes(raw)
            if k % 8 == 0:
                (tmp_path / "test" / kind / f"{k:02d}-again.png").write_bytes(raw)
            elif k % 4 == 0:
                other = encode_png((250 - pixels).clip(0).astype(np.uint8))
                (tmp_path / "test" / kind / f"{k:02d}-other.png").write_bytes(other)
    options = FAST | {"model": "mlp", "test": str(tmp_path / "test")}
    project = dross.clean(tmp_path / "pics", out=tmp_path / "run", **options)
    tested = project.copies.ids("test")
    assert len(tested) == 10 and all(project.image("test", id) for id in tested)
    outside = set(range(project.info.counts["test"])) - set(tested)
    assert outside and all(project.image("test", id) is None for id in outside)
    assert "data:image/png" in (project.folder / "report.html").read_text()
