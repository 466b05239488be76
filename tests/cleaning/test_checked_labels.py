"""What a person says about labels on the page is used by the next `dross clean`."""

import json
import shutil

import numpy as np
import pandas
import pytest
import torch

import dross
from dross._io import seal
from dross.cleaning import examine
from dross.cleaning.checked_labels import CheckedLabels, make_rows, project_rows, read_used
from dross.cleaning.duplicates import no_copies
from dross.cleaning.findings import describe_checked, describe_checks
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.plans import Recommendation
from dross.cleaning.project import Project, reopen_inputs
from dross.errors import CorruptFile, InputChanged, InvalidInput
from tests.cleaning.made_inputs import interrupted
from tests.cleaning.made_labels import QUICK, make_part

# --- labels of a validation file ---


@pytest.fixture
def again(cleaned, clusters):
    """The same call once more, and the lines that it says."""
    data, parts, _, _ = clusters

    def clean():
        said: list[str] = []
        options = QUICK | {"out": cleaned.folder, "say": said.append}
        return dross.clean(*data, **parts, **options), " ".join(said)

    return clean


def test_wrong_validation_labels_are_listed_the_likeliest_first(cleaned, clusters):
    wrong, listed = clusters[2], cleaned.labels_to_check
    found = np.zeros(len(wrong), bool)
    found[listed.index] = True
    assert wrong[found].mean() > 0.8 and found[wrong].mean() > 0.6
    assert (listed["wrong"] > 0.5).all() and (listed["label"] != listed["prediction"]).all()
    assert list(listed["rank"]) == list(range(len(listed)))
    every = cleaned.label_table
    assert len(every) == 90 and set(every.index[every["rank"] >= 0]) == set(listed.index)
    assert list(every["label"]) == list(cleaned.validation[" label"])
    labels = cleaned.info.checked_labels
    assert labels.part == "validation" and labels.count == 90 and labels.checked == 0
    assert labels.to_check == len(listed) and not cleaned.info.options.validation_is_clean
    assert f"Check {len(listed)} validation labels" in describe_checks(cleaned.info)
    assert listed["source"].iloc[0] in (cleaned.folder / "report.html").read_text()


def test_the_next_clean_uses_checked_validation_labels(cleaned, again):
    listed, before = cleaned.labels_to_check, cleaned.table
    right, wrong, other = (int(id) for id in listed.index[:3])
    corrected = listed.loc[other, "prediction"]
    decided = {right: ("keep", None), wrong: ("remove", None), other: ("relabel", corrected)}
    cleaned.decisions.record({4: ("remove", None)}, who="ana")
    cleaned.decisions.record(decided, part="validation")
    runs = cleaned.folder / "runs"
    tape = json.loads((runs / "run-0" / "manifest.json").read_text())["id"]
    project, said = again()
    assert "Using 3 checked labels: 1 kept as correct, 1 relabeled, 1 marked as wrong." in said
    assert json.loads((runs / "run-0" / "manifest.json").read_text())["id"] == tape
    assert project.info.checked_labels.checked == 3
    assert not np.allclose(project.table["score"], before["score"])
    every = project.label_table
    assert every.loc[[right, wrong, other], "checked"].tolist() == ["right", "wrong", "relabeled"]
    assert every.loc[right, "wrong"] == 0 and len(every) == 90
    assert not set(project.labels_to_check.index) & decided.keys()
    assert np.isnan(every.loc[wrong, "wrong"]) and every.loc[wrong, "prediction"] == ""
    hurt = [hurt.id for id in range(240) for hurt in project.why(id).hurts]
    assert hurt and wrong not in hurt and max(hurt) > 80  # ids are those of the whole part
    assert project.decisions.current() == {4: ("remove", None)}
    assert project.decisions.current("validation") == decided
    assert "There is nothing left to do" in again()[1]
    project.decisions.undo()
    taken_back, _ = again()
    pandas.testing.assert_frame_equal(taken_back.table, before)


def test_scores_are_those_of_the_part_that_a_person_would_have_given(cleaned, again, clusters):
    """Left out by a decision, or in the input: the same scores."""
    wrong = int(cleaned.labels_to_check.index[0])
    cleaned.decisions.record({wrong: ("remove", None)}, part="validation")
    project, _ = again()
    data, parts, _, _ = clusters
    x, y = (np.delete(part, wrong, axis=0) for part in parts["validation"])
    options = QUICK | {"out": cleaned.folder.parent / "other", "test": parts["test"]}
    given = dross.clean(*data, validation=(x, y), **options)
    assert np.allclose(project.table["score"], given.table["score"], atol=1e-7)
    assert np.allclose(project.table["wrong"], given.table["wrong"], atol=1e-4)


def test_an_interrupted_call_goes_on_and_decisions_are_safe(cleaned, again, monkeypatch):
    decided = {int(cleaned.labels_to_check.index[0]): ("remove", None)}
    cleaned.decisions.record(decided, part="validation")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(examine, "recommend", interrupted)
        again()
    with pytest.raises(InvalidInput, match="has not finished"):
        Project.open(cleaned.folder)
    cleaned.decisions.record({int(cleaned.labels_to_check.index[1]): ("keep", None)})
    project, _ = again()
    assert project.decisions.current("validation") == decided
    assert project.info.checked_labels.checked == 1


def test_too_few_labels_and_labels_of_other_data_are_refused(cleaned, again):
    cleaned.decisions.record(dict.fromkeys(range(85), ("remove", None)), part="validation")
    before = cleaned.info.made
    with pytest.raises(InvalidInput, match="Only 5 of 90 validation labels are left"):
        again()
    assert Project.open(cleaned.folder).info.made == before  # nothing is lost
    cleaned.decisions.undo()
    cleaned.decisions.record({90: ("keep", None)}, part="validation")
    with pytest.raises(InputChanged, match="only 90 validation"):
        again()
    cleaned.decisions.undo()
    cleaned.decisions.record({3: ("relabel", "oak")}, part="validation")
    with pytest.raises(InvalidInput, match="not a class in this data"):
        again()


def test_decisions_on_a_validation_file_do_not_touch_training_instances(cleaned):
    cleaned.decisions.record({0: ("remove", None), 1: ("relabel", "ash")}, part="validation")
    assert cleaned.current_decisions() == {}
    with pytest.raises(InvalidInput, match="No instance has been removed or relabeled"):
        dross.judge(cleaned.folder, decisions=True, seeds=2, progress=False)
    _, y = cleaned.cleaned()
    recommended = cleaned.recommended
    assert recommended is not None and len(y) == 240 - len(recommended.removed)


def test_trusted_labels_are_not_listed(tmp_path, clusters):
    data, given, _, _ = clusters
    project = dross.clean(*data, out=tmp_path / "run", validation_is_clean=True, **given, **QUICK)
    assert project.labels_to_check.empty and len(project.label_table) == 90
    assert project.label_table["wrong"].max() == 0
    assert "--validation-is-clean" in (project.folder / "report.html").read_text()
    with pytest.raises(dross.InvalidInput, match="other settings"):
        dross.clean(*data, out=tmp_path / "run", **given, **QUICK)


def test_numbers_are_corrected_in_their_own_units(tmp_path):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame = frame.assign(price=100 + 20 * frame["a"])
    for name in ("t", "v"):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    request = Request(str(tmp_path / "t.csv"), "price", validation=str(tmp_path / "v.csv"))
    data = prepare(request)
    checked = CheckedLabels("validation", {0: ("relabel", "130"), 2: ("remove", None)})
    applied = checked.apply(data)
    assert len(applied.y["validation"]) == len(data.y["validation"]) - 1
    expected = (130 - data.scale[0]) / data.scale[1]
    assert applied.y["validation"][0].item() == pytest.approx(expected)
    assert torch.equal(applied.y["validation"][2:], data.y["validation"][3:])
    assert torch.equal(applied.x["validation"][2:], data.x["validation"][3:])
    rows = make_rows(data, checked, no_copies())
    assert len(rows) == 119 and rows.y[60] == 130 and rows.checked.nonzero()[0].tolist() == [60]
    assert rows.given is not None and rows.given[60] == frame["price"][0]


# --- labels of one file ---


@pytest.fixture(scope="module")
def _one(tmp_path_factory):
    x, y, flipped = make_part(160, 0.15, 3)
    folder = tmp_path_factory.mktemp("one") / "made"
    folder.mkdir()
    pandas.DataFrame(x.round(4)).add_prefix("x").assign(tree=y).to_csv(
        folder / "all.csv", index=False
    )
    options = QUICK | {"repeats": 1, "out": folder / "run", "labels": "annotated"}
    dross.clean(folder / "all.csv", "tree", **options)
    return folder, y, flipped


@pytest.fixture
def one(_one, tmp_path):
    """A project of one file, its labels, which are wrong, and the same call once more."""
    shutil.copytree(_one[0] / "run", tmp_path / "run")
    said: list[str] = []

    def again():
        options = QUICK | {"repeats": 1, "out": tmp_path / "run", "labels": "annotated"}
        return dross.clean(_one[0] / "all.csv", "tree", say=said.append, **options)

    return Project.open(tmp_path / "run"), *_one[1:], again, said


def test_the_next_clean_uses_checked_labels_of_one_file(one, tmp_path):
    project, y, flipped, again, said = one
    plan = project.recommended
    assert plan is not None
    untouched = sorted(set(range(160)) - set(plan.removed) - set(plan.relabeled))
    right, wrong, other = (int(k) for k in np.array(untouched)[~flipped[untouched]][:3])
    confirmed = int(next(iter(plan.relabeled)))  # the plan would relabel it
    label = next(name for name in project.classes if name != y[other])
    decided = {
        right: ("keep", None),
        confirmed: ("keep", None),
        wrong: ("remove", None),
        other: ("relabel", label),
    }
    project.decisions.record(decided, part="validation")
    found = again()
    assert "Using 4 checked labels: 2 kept as correct, 1 relabeled, 1 marked as wrong." in said
    plan = found.recommended
    assert plan is not None and plan.relabeled[other] == label and wrong in plan.removed
    for id in (right, confirmed):
        assert id not in plan.removed and id not in plan.relabeled
        assert found.table.loc[id, ["wrong", "action"]].tolist() == [0, "keep"]
    assert found.table.loc[other, ["action", "prediction"]].tolist() == ["relabel", label]
    assert (found.table.loc[[wrong, other], ["wrong", "confidence"]] == 1).all(axis=None)
    assert found.info.checked_labels.checked == 4
    assert found.label_table.loc[other, "checked"] == "relabeled"
    assert not set(found.labels_to_check.index) & decided.keys()
    copy = pandas.read_csv(dross.export(found.folder, tmp_path / "copy.csv").cleaned)
    kept = np.delete(np.arange(160), plan.removed)
    assert len(copy) == len(kept) and copy["tree"][list(kept).index(other)] == label
    assert copy["tree"][list(kept).index(confirmed)] == y[confirmed]
    said.clear()
    again()
    assert "There is nothing left to do" in said[-1]
    found.decisions.undo()
    assert again().info.checked_labels.checked == 0


def test_checked_labels_are_kept_where_the_project_is_made_anew(one):
    project, y, _, again, _ = one
    other = 5
    label = next(name for name in project.classes if name != y[other])
    project.decisions.record({other: ("relabel", label)}, part="validation")
    again()
    (project.folder / "project.json").unlink()
    found = again()
    assert found.decisions.current("validation") == {other: ("relabel", label)}
    assert found.recommended is not None and found.recommended.relabeled[other] == label
    used = read_used(found.folder, reopen_inputs(found)[0])
    assert used.decided == {other: ("relabel", label)} and used.part == "train"
    rows = project_rows(found, reopen_inputs(found)[0])
    place = {name: k for k, name in enumerate(found.classes)}
    assert rows.checked.nonzero()[0].tolist() == [other] and rows.y[other] == place[label]
    assert rows.given is not None and rows.given[other] == place[y[other]]


def test_what_a_person_said_is_done_even_if_no_plan_is_recommended(one, monkeypatch, tmp_path):
    project, y, _, again, _ = one
    nothing = Recommendation([], None, "no gain", "Nothing helps.")
    monkeypatch.setattr(examine, "recommend", lambda *_, **__: nothing)
    label = next(name for name in project.classes if name != y[7])
    project.decisions.record({7: ("relabel", label), 9: ("remove", None)}, part="validation")
    found = again()
    plan = found.recommended
    assert (
        plan is not None
        and plan.name == "checked"
        and "based on the labels you checked" in plan.what
    )
    assert plan.removed.tolist() == [9] and plan.relabeled == {7: label}
    done = dross.export(found.folder, tmp_path / "copy.csv")
    assert (done.removed, done.relabeled, done.written) == (1, 1, 159)
    assert (found.folder / "report.html").exists() and "Nothing helps." in str(found.info)


def test_checks_are_drawn_once_and_their_weights_are_used_later(one, monkeypatch):
    project, _, _, again, _ = one
    seen = []
    checks = {11: 2.0, 4: 5.0, 30: 9.0}

    def asking(rows, noise, labels, *, check_weights, **options):
        seen.append(check_weights)
        return Recommendation([], None, "undecided", "Check.", checks)

    monkeypatch.setattr(examine, "recommend", asking)
    (project.folder / "project.json").unlink()
    (project.folder / "checks.json").unlink()
    found = again()
    assert np.isnan(seen[0]).all() and found.labels_to_check.index.tolist() == [11, 4, 30]
    assert "Check 3 labels (about 1 minute) with dross review" in describe_checks(found.info)
    found.decisions.record({4: ("keep", None)}, part="validation")
    found = again()
    assert seen[1][[11, 4, 30]].tolist() == [2.0, 5.0, 9.0] and np.isnan(seen[1]).sum() == 157
    assert found.labels_to_check.index.tolist() == [11, 30]  # one is done
    assert describe_checks(found.info).startswith("Check 2 labels")
    assert describe_checked(found.info).startswith("You checked 1 label: none was wrong.")


@pytest.mark.parametrize(
    "kept", [{"weights": {"x": 1.0}}, {"weights": 7}, {"weights": {str(10**9): 1.0}}, {}]
)
def test_a_list_of_checks_that_dross_did_not_write_does_no_harm(one, kept):
    project, again = one[0], one[3]
    (project.folder / "project.json").unlink()
    (project.folder / "checks.json").write_text(json.dumps(seal(kept)))
    assert len(again().table) == 160


@pytest.mark.parametrize(
    "labels", [7, [[3]], {"x": ["keep", None]}, {"3": ["keep"]}, {"3": ["relabel", 5]}]
)
def test_checked_labels_that_dross_did_not_write_are_damage(one, labels):
    project = one[0]
    path = project.folder / "checked.json"
    path.write_text(json.dumps(seal({"labels": labels})))
    with pytest.raises(CorruptFile, match=r"checked\.json is damaged"):
        read_used(project.folder, reopen_inputs(project)[0])
    path.write_text(json.dumps(seal({"labels": {str(10**6): ["keep", None]}})))
    with pytest.raises(InputChanged, match="a decision about instance 1000000"):
        read_used(project.folder, reopen_inputs(project)[0])


def test_a_damaged_list_is_named(cleaned):
    path = cleaned.folder / "labels.parquet"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(dross.CorruptFile, match=r"labels\.parquet is damaged"):
        _ = dross.Project.open(cleaned.folder).labels_to_check


def test_of_two_classes_a_wrong_label_is_the_other_one(tmp_path):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(60, 3))).add_prefix("x")
    frame["kind"] = np.array(["no", "yes"])[rng.integers(0, 2, 60)]
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = prepare(Request(str(tmp_path / "t.csv"), "kind"))
    checked = CheckedLabels("train", {3: ("remove", None), 5: ("keep", None)})
    rows = make_rows(data, checked, no_copies())
    assert np.flatnonzero(rows.checked).tolist() == [3, 5]
    assert rows.given is not None and np.flatnonzero(rows.y != rows.given).tolist() == [3]
