"""What a person says about validation labels enters the next scoring."""

import json

import numpy as np
import pandas
import pytest
import torch

import dross
from cleanse.made_inputs import interrupted
from cleanse.made_labels import QUICK
from dross.cleanse.inputs.load import Request, prepare
from dross.cleanse.pipeline import rounds
from dross.cleanse.pipeline.checked_labels import CheckedLabels
from dross.cleanse.project import Project
from dross.errors import BadInput, TapeDamaged, TapeMismatch


@pytest.fixture
def again(cleaned, clusters):
    """The same call once more, and the lines that it says."""
    data, parts, _, _ = clusters

    def clean():
        said: list[str] = []
        options = QUICK | {"out": cleaned.folder, "say": said.append}
        return dross.clean(*data, **parts, **options), " ".join(said)

    return clean


def test_decisions_enter_the_next_scoring(cleaned, again):
    doubted, made, before = cleaned.doubted_validation, cleaned.about["made"], cleaned.instances
    right, wrong, other = (int(id) for id in doubted.index[:3])
    corrected = doubted.loc[other, "prediction"]
    decided = {right: ("keep", None), wrong: ("remove", None), other: ("relabel", corrected)}
    cleaned.decisions.record({4: ("remove", None)}, who="ana")
    cleaned.decisions.record(decided, part="validation")
    runs = cleaned.folder / "runs" / "round-1"
    tape = json.loads((runs / "run-0" / "manifest.json").read_text())["id"]
    project, said = again()
    assert "3 validation labels as they were checked: 1 right, 1 wrong and left out, 1 co" in said
    assert json.loads((runs / "run-0" / "manifest.json").read_text())["id"] == tape
    assert project.about["made"] >= made and project.about["validation_labels"]["checked"] == 3
    assert not np.allclose(project.instances["score"], before["score"])
    every = project.validation_labels
    assert [every.loc[id, "checked"] for id in (right, wrong, other)] == [
        "right",
        "wrong",
        "relabelled",
    ]
    assert not set(project.doubted_validation.index) & decided.keys() and len(every) == 90
    assert np.isnan(every.loc[wrong, "change"]) and every["change"].isna().sum() == 1
    assert np.isnan(every.loc[wrong, "wrong"]) and every.loc[wrong, "prediction"] == ""
    hurt = [entry[0] for id in range(240) for entry in project.why(id)["hurts"]]
    assert hurt and wrong not in hurt and max(hurt) > 80  # ids are those of the whole part
    assert project.decisions.current() == {4: ("remove", None)}
    assert project.decisions.current("validation") == decided
    assert "Everything is there already" in again()[1]
    project.decisions.undo()
    taken_back, _ = again()
    pandas.testing.assert_frame_equal(taken_back.instances, before)


def test_scores_are_those_of_the_part_that_a_person_would_have_given(cleaned, again, clusters):
    """Corrected and left out by decisions, or in the input: the same scores."""
    wrong = int(cleaned.doubted_validation.index[0])
    cleaned.decisions.record({wrong: ("remove", None)}, part="validation")
    project, _ = again()
    data, parts, _, _ = clusters
    x, y = (np.delete(part, wrong, axis=0) for part in parts["validation"])
    options = QUICK | {"out": cleaned.folder.parent / "other", "test": parts["test"]}
    given = dross.clean(*data, validation=(x, y), **options)
    assert np.allclose(project.instances["score"], given.instances["score"], atol=1e-7)
    kept = project.validation_labels.drop(wrong)["change"].to_numpy()
    assert np.allclose(kept, given.validation_labels["change"], atol=1e-5)


def test_an_interrupted_scoring_goes_on_and_decisions_are_safe(cleaned, again, monkeypatch):
    decided = {int(cleaned.doubted_validation.index[0]): ("remove", None)}
    cleaned.decisions.record(decided, part="validation")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(rounds, "compete", interrupted)
        again()
    with pytest.raises(TapeDamaged, match="has not finished"):
        Project.open(cleaned.folder)
    cleaned.decisions.record({int(cleaned.doubted_validation.index[1]): ("keep", None)})
    project, _ = again()
    assert project.decisions.current("validation") == decided
    assert project.about["validation_labels"]["checked"] == 1


def test_too_few_labels_and_labels_of_other_data_are_refused(cleaned, again):
    cleaned.decisions.record(dict.fromkeys(range(85), ("remove", None)), part="validation")
    before = cleaned.about["made"]
    with pytest.raises(BadInput, match="Only 5 of 90 validation labels are left"):
        again()
    assert Project.open(cleaned.folder).about["made"] == before  # nothing is lost
    cleaned.decisions.undo()
    cleaned.decisions.record({90: ("keep", None)}, part="validation")
    with pytest.raises(TapeMismatch, match="only 90 validation"):
        again()
    cleaned.decisions.undo()
    cleaned.decisions.record({3: ("relabel", "oak")}, part="validation")
    with pytest.raises(BadInput, match="not a class of these data"):
        again()


def test_the_copy_and_the_verdict_do_not_take_them_for_training_instances(cleaned, tmp_path):
    cleaned.decisions.record({0: ("remove", None), 1: ("relabel", "ash")}, part="validation")
    assert cleaned.current_decisions() == {}
    with pytest.raises(BadInput, match="Nothing has been removed or relabelled"):
        dross.judge(cleaned.folder, decisions=True, seeds=2, progress=False)
    _, y = cleaned.cleaned()
    recommended = cleaned.recommended
    assert recommended is not None and len(y) == 240 - len(recommended.removed)


def test_numbers_are_corrected_in_their_own_units(tmp_path):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame.assign(price=100 + 20 * frame["a"]).to_csv(tmp_path / "t.csv", index=False)
    data = prepare(Request(str(tmp_path / "t.csv"), label="price"))
    checked = CheckedLabels({0: ("relabel", "130"), 2: ("remove", None)})
    applied = checked.apply(data)
    assert len(applied.y["validation"]) == len(data.y["validation"]) - 1
    expected = (130 - data.scale[0]) / data.scale[1]
    assert applied.y["validation"][0].item() == pytest.approx(expected)
    assert torch.equal(applied.y["validation"][2:], data.y["validation"][3:])
    assert torch.equal(applied.x["validation"][2:], data.x["validation"][3:])
