"""The cleaned copy: what is in it, what stays as it was, and what is refused."""

from dataclasses import replace

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import dross
from dross import cli
from dross.cleaning import examine
from dross.cleaning.formats import Reading, copy_table
from dross.cleaning.images import place_images
from dross.cleaning.modality import RowEdits
from dross.demo import load_flipped_digits, write_images
from dross.errors import InputChanged, InvalidInput
from tests.cleaning.made_inputs import QUICK, enrichment, recommend_removing, small_table


def test_images_in_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(examine, "recommend", recommend_removing(5))  # it takes long
    digits = load_flipped_digits()
    first = {part: 500 if part == "train" else 120 for part in ("train", "validation", "test")}
    fewer = {part: tuple(t[:n] for t in getattr(digits, part)) for part, n in first.items()}
    digits = replace(digits, **fewer)
    folders = write_images(digits, tmp_path / "digits")
    project = dross.clean(
        folders["train"],
        validation=str(folders["validation"]),
        test=str(folders["test"]),
        model="cnn",
        out=tmp_path / "run",
        **QUICK | {"repeats": 1, "epochs": 4, "check": 1},
    )
    sources = project.table["source"]
    bad = np.array([digits.flipped[int(name.split("/")[1][:4])] for name in sources])
    assert enrichment(project, bad, "mislabel_rank") > 10
    assert project.image("train", 0)[:4] == b"\x89PNG"
    assert project.image("train", 10**6) is None and project.image("../x", 0) is None
    first = int(project.table.sort_values("harm_rank").index[0])
    project.decisions.record({first: ("remove", None), 5: ("relabel", "7")})
    cleaned = tmp_path / "cleaned"
    done = dross.export(tmp_path / "run", cleaned)
    assert done.written == 499 and not (cleaned / sources.loc[first]).exists()
    assert (cleaned / "7" / sources.loc[5].split("/")[1]).exists()
    project.decisions.record({6: ("remove", None)})
    with pytest.raises(InvalidInput, match="is an existing folder"):
        dross.export(tmp_path / "run", cleaned, overwrite=True)
    assert dross.export(tmp_path / "run", tmp_path / "again").written == 498
    assert len(list((tmp_path / "again").rglob("*.png"))) == 498
    assert len(list(folders["train"].rglob("*.png"))) == 500  # the input is as it was


@pytest.fixture
def people(tmp_path, monkeypatch):
    """A table in the current folder, cleaned by the command line; runs further commands."""
    monkeypatch.chdir(tmp_path)
    small_table(tmp_path / "people.csv", size2=1.0)
    run = lambda command: CliRunner().invoke(cli.app, command.split(), catch_exceptions=False)
    said = run(
        "clean people.csv --label kind --column when=ignore"
        " --repeats 2 --epochs 6 --lr 0.1 --check 4"
    )
    return said, run


def test_the_commands(people):
    said, run = people
    assert said.exit_code == 0 and "Remaining: about" in said.output
    assert "dross review runs/people" in said.output
    assert "'size2' is ignored: every cell is '1.0'" in said.output
    assert "Categories: colour" in said.output
    assert all(len(line) <= 80 for line in said.output.splitlines())
    judged = run("judge runs/people --remove 5 --seeds 3")
    assert judged.exit_code == 0 and "held out in turn" in judged.output
    exported = run("export runs/people cleaned.csv --remove 5")
    assert exported.exit_code == 0 and "5 removed" in exported.output
    cleaned, original = pandas.read_csv("cleaned.csv"), pandas.read_csv("people.csv")
    assert len(cleaned) == len(original) - 5 and list(cleaned.columns) == list(original.columns)
    listed = pandas.read_csv("cleaned-decisions.csv")
    assert (listed["decision"] == "remove").all() and len(listed) == 5
    with pytest.raises(InvalidInput, match="already exists"):
        dross.export("runs/people", "cleaned.csv", remove=5)


def test_what_cannot_be_exported_or_judged_is_refused(people, tmp_path):
    with pytest.raises(InvalidInput, match="the input itself"):
        dross.export("runs/people", "people.csv", remove=5, overwrite=True)
    if dross.Project.open("runs/people").recommended is None:
        with pytest.raises(InvalidInput, match="no change is recommended"):
            dross.export("runs/people", "other.csv")
    with pytest.raises(InvalidInput, match="its name must end in"):
        dross.export("runs/people", "other.xls", remove=5)
    with pytest.raises(InvalidInput, match=r"such as other\.csv"):
        dross.export("runs/people", "other", remove=5)
    with pytest.raises(InvalidInput, match="No instance has been removed"):
        dross.judge("runs/people", decisions=True)
    with pytest.raises(InvalidInput, match="between 1 and"):
        dross.judge("runs/people", remove=10**6)
    with pytest.raises(InvalidInput, match="at least 2 seeds"):
        dross.judge("runs/people", remove=3, seeds=1)
    small_table(tmp_path / "people.csv", size2=2.0, count=160)
    with pytest.raises(InputChanged, match="has changed since"):
        dross.judge("runs/people", remove=5)
    with pytest.raises(InputChanged, match="has changed since"):
        dross.export("runs/people", "late.csv", remove=5)


def test_what_was_not_examined_is_counted_apart(tmp_path, monkeypatch):
    """Rows without a label are in the copy, but no instance of it."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=100)
    kind = np.where(x > 0, "yes", "no").astype(object)
    kind[:3] = None
    pandas.DataFrame({"x": x, "kind": kind}).to_csv("t.csv", index=False)
    dross.clean("t.csv", "kind", out="run", **QUICK)
    done = dross.export("run", "out.csv", remove=5)
    assert (done.written, done.unexamined) == (92, 3) and len(pandas.read_csv("out.csv")) == 95
    assert done.decisions.name == "out-decisions.csv"
    dross.export("run", "out.parquet", remove=5)  # the same decisions, in the same list
    with pytest.raises(InvalidInput, match=r"out-decisions\.csv already exists"):
        dross.export("run", "out.tsv", remove=6)
    said = CliRunner().invoke(cli.app, ["export", "run", "b.csv", "--remove", "5"]).output
    assert "92 instances; 5 removed" in said and "3 more instances were copied" in said


def test_the_copy_is_a_copy(tmp_path):
    """Types of a Parquet file, cells that look missing, and rows of other parts all stay."""
    frame = pandas.DataFrame(
        {
            "x": np.random.default_rng(0).normal(size=150),
            "n": np.arange(150),
            "note": ["None", "NA", "-"] * 50,
        }
    )
    frame["kind"] = np.where(frame["x"] > 0, 1, 0)
    frame.to_parquet(tmp_path / "t.parquet")
    project = dross.clean(
        tmp_path / "t.parquet", "kind", task="classification", out=tmp_path / "run", **QUICK
    )
    project.decisions.record({0: ("relabel", "1"), 1: ("remove", None)})
    dross.export(tmp_path / "run", tmp_path / "out.parquet")
    copy = pandas.read_parquet(tmp_path / "out.parquet")
    assert copy.dtypes.equals(frame.dtypes) and len(copy) == 149
    first, second = (int(project.table["row"].loc[k]) - 2 for k in (0, 1))
    expected = frame.copy()
    expected.loc[first, "kind"] = 1
    pandas.testing.assert_frame_equal(copy, expected.drop(index=second).reset_index(drop=True))
    dross.export(tmp_path / "run", tmp_path / "out.csv")
    notes = pandas.read_csv(tmp_path / "out.csv", keep_default_na=False)["note"]
    assert set(notes) == {"None", "NA", "-"}


def test_relabeled_images_do_not_overwrite_others():
    names = ["a/0.png", "a/1.png", "b/0.png", "b/1.png"]
    placed = place_images(names, RowEdits(set(), {0: "b", 1: "b"}))
    assert len(placed) == len(set(placed.values())) == 4
    assert all(target.startswith("b/") for target in placed.values())


def test_a_named_index_of_a_parquet_file_is_copied(tmp_path):
    frame = pandas.DataFrame({"x": [1.5, 2.5], "kind": ["a", "b"]})
    frame.index = pandas.Index(["p", "q"], name="key")
    frame.to_parquet(tmp_path / "t.parquet")
    edits = RowEdits({3}, {2: "b"})
    source = tmp_path / "t.parquet"
    for name in ("out.parquet", "out.csv"):
        suffix = f".{name.split('.')[1]}"
        raw, count = copy_table(source.read_bytes(), source, suffix, "kind", edits, Reading())
        (tmp_path / name).write_bytes(raw)
        assert count == 1
    assert pandas.read_parquet(tmp_path / "out.parquet").reset_index().iloc[0].tolist() == [
        "p",
        1.5,
        "b",
    ]
    assert raw == b"key,x,kind\np,1.5,b\n"
