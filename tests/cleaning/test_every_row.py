"""One file: every row is examined, may be edited, and is in the exported copy."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import dross
from dross import cli
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.job import Job
from dross.cleaning.project import Project, reopen_inputs
from dross.cleaning.project_info import JobInfo, Options
from tests.cleaning.made_labels import CLASSES, QUICK, make_part

WRONG = 0.15
TWICE = 20  # rows of the file that it has twice


@pytest.fixture(scope="module")
def _made(tmp_path_factory):
    """A file with wrong labels, cleaned without a validation and a test file."""
    folder = tmp_path_factory.mktemp("one") / "made"
    folder.mkdir()
    x, y, flipped = make_part(180, WRONG, 0)
    frame = pandas.DataFrame(x.round(4)).add_prefix("x").assign(tree=y)
    frame = pandas.concat([frame, frame.head(TWICE)], ignore_index=True)
    frame.to_csv(folder / "all.csv", index=False)
    said: list[str] = []
    options = QUICK | {"repeats": 3, "say": said.append, "labels": "annotated"}
    dross.clean(folder / "all.csv", "tree", out=folder / "run", **options)
    return folder, np.concatenate([flipped, flipped[:TWICE]]), said


@pytest.fixture
def one(_made, tmp_path):
    """The project, which rows have wrong labels, and the table; to be spoilt."""
    shutil.copytree(_made[0] / "run", tmp_path / "run")
    return Project.open(tmp_path / "run"), _made[1], pandas.read_csv(_made[0] / "all.csv")


def test_the_whole_file_is_the_training_part(one):
    project, flipped, frame = one
    count = len(frame)
    assert project.info.counts == {"train": count, "validation": 0, "test": 0}
    instances = project.table
    assert instances["source"].tolist() == [f"row {k + 2}" for k in range(count)]
    assert instances["label"].tolist() == frame["tree"].tolist()
    for column in ("wrong", "probability", "label_probability", "loss"):
        assert np.isfinite(instances[column]).all()  # no row is left out
    assert instances["wrong"].between(0, 1).all()
    assert flipped[instances["wrong"] > 0.5].mean() > 0.9
    assert sorted(instances["harm_rank"]) == list(range(count))
    assert len(project.label_table) == count and project.checks_training


def test_what_models_say_of_a_row_does_not_come_from_its_label(one):
    """A wrong label is unlikely, which it would not be for models that had learned it."""
    project, flipped, _ = one
    said = project.table["label_probability"]
    assert said[flipped].mean() < 0.2 and said[~flipped].mean() > 0.8


def test_rows_of_the_whole_file_are_edited(one):
    project, flipped, frame = one
    plan = project.recommended
    assert plan is not None and project.info.recommendation.state == "recommended"
    edited = np.array(sorted([*plan.removed, *plan.relabeled]))
    assert flipped[edited].mean() > 0.9 and len(edited) > 0.5 * flipped.sum()
    # all over the file, not in some part of it
    assert (np.histogram(edited, 4, (0, len(frame)))[0] > 0).all()
    actions = project.table["action"]
    assert sorted(actions[actions == "remove"].index) == sorted(plan.removed)
    assert sorted(actions[actions == "relabel"].index) == sorted(plan.relabeled)
    assert (project.table["confidence"].notna() == (actions != "keep")).all()
    likely = project.table["wrong"] > 0.5
    assert likely[edited].all()  # weak cases are for the reviewer


def test_the_exported_copy_is_the_whole_file_with_the_plan_applied(one, tmp_path):
    project, _, frame = one
    plan = project.recommended
    done = dross.export(project.folder, tmp_path / "copy.csv")
    expected = frame.copy()
    for id, label in plan.relabeled.items():
        expected.loc[id, "tree"] = label
    expected = expected.drop(index=plan.removed).reset_index(drop=True)
    pandas.testing.assert_frame_equal(pandas.read_csv(done.cleaned), expected)
    assert (done.removed, done.relabeled) == (len(plan.removed), len(plan.relabeled))
    assert done.written == len(frame) - len(plan.removed)
    listed = pandas.read_csv(done.decisions)
    assert sorted(listed["id"]) == sorted([*plan.removed, *plan.relabeled])


def test_a_run_says_nothing_about_what_it_held_out(one):
    """Three runs hold out a quarter each: so many rows have scores from two runs only."""
    project, _, frame = one
    learned = []
    for tape in sorted((project.folder / "runs").glob("run-?")):
        said = CliRunner().invoke(cli.app, ["info", str(tape), "--json"]).output
        learned.append(json.loads(said)["instances"])
    learned_in = project.table["learned_in"]
    assert len(learned) == 3 and set(learned_in) == {2, 3}
    assert sum(learned) == learned_in.sum() < 3 * len(frame)
    assert (learned_in == 2).sum() == pytest.approx(0.75 * len(frame), abs=3)
    assert (project.table["harmful_in"] <= learned_in).all()
    hurt = [(id, project.why(id).hurts) for id in range(len(frame))]
    assert any(found for _, found in hurt)
    assert all(other.id != id for id, found in hurt for other in found)


def test_duplicates_are_held_out_together(one):
    project, _, frame = one
    first, again = np.arange(TWICE), np.arange(TWICE) + len(frame) - TWICE
    pairs = [project.copies.others(int(id)) for id in first]
    assert [[row["id"] for row in rows] for rows in pairs] == [[id] for id in again]
    instances = project.table
    for column in ("learned_in", "probability", "label_probability", "wrong"):
        left, right = instances[column].to_numpy()[first], instances[column].to_numpy()[again]
        assert np.allclose(left, right, atol=1e-5), column


def test_the_plans_have_figures_of_held_out_rows(one):
    project, _, _ = one
    assert project.recommended.name in [plan.name for plan in project.plans]
    for plan in project.plans:
        assert {"error", "log loss"} <= set(plan.figures)
        for figure in plan.figures.values():
            low, high = figure.interval
            assert low <= figure.change <= high
            assert figure.change == pytest.approx(figure.after - figure.before, abs=1e-9)
    error = project.recommended.figures["noise-aware error"]
    assert 0 < error.before < 1 and error.change < 0
    report = (project.folder / "report.html").read_text()
    assert all(plan.name in report for plan in project.plans)


def test_the_kind_of_labels_is_stated_and_kept(_made, one):
    folder, _, said = _made
    project = one[0]
    (line,) = [line for line in said if line.startswith("Labels: ")]
    assert line.startswith("Labels: annotated. Annotators assigned them")
    assert (
        project.info.training.labels == "annotated" and project.info.options.labels == "annotated"
    )
    assert "--labels annotated" in (project.folder / "report.html").read_text()
    words = ["clean", str(folder / "all.csv"), "--label=tree", "--repeats=1", "--epochs=2"]
    words += ["--lr=0.1", "--check=1", "--model=linear", "--out"]
    out = project.folder.parent / "other"
    printed = CliRunner().invoke(cli.app, [*words, str(out)], catch_exceptions=False)
    assert printed.exit_code == 0
    assumed = "Labels: observed (assumed; --labels annotated changes this). They record what"
    assert assumed in " ".join(printed.output.split())
    info = dross.Project.open(out).info
    assert info.training.labels == "observed" and info.options.labels is None
    with pytest.raises(dross.InvalidInput, match="Did you mean 'annotated'"):
        dross.clean(folder / "all.csv", "tree", out=out, labels="anotated", **QUICK)


@pytest.mark.parametrize(("kind", "column"), [("text", {"text": "words"}), ("table", {})])
def test_texts_are_assumed_to_be_annotated(tmp_path, kind, column):
    texts = [f"a {'fine' if k % 2 else 'poor'} thing number {k % 9}" for k in range(80)]
    frame = pandas.DataFrame(
        {"words": texts, "size": np.arange(80) % 7, "tree": CLASSES[:2].tolist() * 40}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    request = Request(str(tmp_path / "t.csv"), "tree", **column)
    info = JobInfo(request=request, options=Options(), digest="", input_files={})
    job = Job(info, prepare(request), tmp_path, False, print)
    assert job.prepared.source.modality.name == kind
    assert job.labels == ("annotated" if kind == "text" else "observed")
    observed = replace(info, options=Options(labels="observed"))
    assert replace(job, info=observed).labels == "observed"


def test_other_labels_are_another_job(_made, one):
    folder, project = _made[0], one[0]
    options = QUICK | {"repeats": 3, "out": project.folder}
    with pytest.raises(dross.InvalidInput, match="other settings"):
        dross.clean(folder / "all.csv", "tree", labels="observed", **options)


def test_a_test_file_stays_as_it_is(_made, tmp_path):
    folder = _made[0]
    x, y, _ = make_part(60, 0.3, 5)
    frame = pandas.DataFrame(x).add_prefix("x").assign(tree=y)
    frame.to_csv(tmp_path / "test.csv", index=False)
    options = QUICK | {"repeats": 1, "test": str(tmp_path / "test.csv")}
    project = dross.clean(folder / "all.csv", "tree", out=tmp_path / "run", **options)
    assert project.info.counts == {"train": 200, "validation": 0, "test": 60}
    data = reopen_inputs(project)[0]
    assert data.part("test").labels.tolist() == y.tolist()
    assert len(project.table) == 200 and set(project.classes) == set(CLASSES)
