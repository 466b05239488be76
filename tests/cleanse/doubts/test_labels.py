"""Validation labels that models which have not learnt them doubt."""

import json

import numpy as np
import pandas
import pytest
import torch
from typer.testing import CliRunner

import dross
from cleanse.made_inputs import edit_json
from cleanse.made_labels import QUICK, make_part
from dross.cleanse.doubts.labels import Scored, find_doubted, list_doubted, validation_table
from dross.cleanse.findings import describe_doubts
from dross.cleanse.inputs.load import Request, prepare
from dross.cleanse.learning.recipe import Recipe
from dross.cleanse.opinions.beliefs import Beliefs
from dross.cleanse.report import write_report
from dross.cli.app import app


def test_wrong_labels_are_doubted_and_ordered_by_what_hangs_on_them(cleaned, clusters):
    wrong, doubted = clusters[2], cleaned.doubted_validation
    found = np.zeros(len(wrong), bool)
    found[doubted.index] = True
    assert wrong[found].mean() > 0.8 and found[wrong].mean() > 0.6
    assert (doubted["label"] != doubted["prediction"]).all() and (doubted["wrong"] > 0.5).all()
    assert list(doubted["rank"]) == list(range(len(doubted)))
    weight = doubted["change"].abs().to_numpy()
    assert (np.diff(weight) <= 0).all() and weight[0] > 0
    every = cleaned.validation_labels
    assert len(every) == 90 and set(every.index[every["rank"] >= 0]) == set(doubted.index)
    assert list(every["label"]) == list(cleaned.validation[" label"])
    assert cleaned.about["validation_labels"] == {
        "count": 90,
        "doubted": len(doubted),
        "checked": 0,
        "trusted": False,
    }
    report = (cleaned.folder / "report.html").read_text()
    listed = report.split("Validation labels to check first")[1].split("Most helpful")[0]
    assert doubted["source"].iloc[0] in listed and "of 90 validation labels" in listed
    assert "speaks" in listed and listed.count("<li>") == min(12, len(doubted))


def test_what_an_instance_changes_is_what_the_plan_did_to_it(cleaned):
    """The mean over all validation and training instances is the change of the chosen plan."""
    plans = json.loads((cleaned.folder / "plans-1.json").read_text())
    kept = np.array(plans["on_validation"])
    assert np.allclose(kept, cleaned.validation_labels["change"])
    assert "on_validation" not in cleaned.about["plans"]
    recommended = next(p for p in plans["finalists"] if p["name"] == plans["recommended"])
    assert recommended["change"] < 0 and kept.mean() < 0 and np.abs(kept).max() <= 1


def test_the_table_says_what_the_models_of_all_kinds_believe(tmp_path, clusters):
    (x, y), parts, _, _ = clusters
    table = lambda x, y: pandas.DataFrame(x).rename(columns=str).assign(tree=y)
    table(x, y).to_csv(tmp_path / "train.csv", index=False)
    table(*parts["validation"]).to_csv(tmp_path / "val.csv", index=False)
    request = Request(str(tmp_path / "train.csv"), "tree", validation=str(tmp_path / "val.csv"))
    data, rng = prepare(request), np.random.default_rng(0)
    left = np.setdiff1d(np.arange(90), [4])
    y, change = data.y["validation"][left], rng.normal(size=89)
    likely = np.where(left % 5, y, (y + 1) % 3)
    beliefs = Beliefs.of_chances(0.9 * np.eye(3)[likely] + 0.1 / 3, y)
    scored = Scored(left, beliefs, {4: "wrong", 5: "right"}, change)
    found, trusted = (validation_table(data, scored, trusted=t) for t in (False, True))
    wrong = beliefs.wrong > 0.5
    assert 10 < wrong.sum() < 30
    assert set(list_doubted(found).index) == set(left[wrong]) - {5} and 5 in left[wrong]
    assert np.array_equal(found["wrong"].drop(4), beliefs.wrong) and list_doubted(trusted).empty
    assert np.array_equal(found["change"].drop(4), change)
    predicted = np.array(data.source.classes)[beliefs.predicted.numpy()]
    assert list(found["prediction"].drop(4)) == list(predicted)
    assert found.loc[4, "prediction"] == "" and np.isnan(found.loc[4, "wrong"])


def test_numbers_are_doubted_where_they_are_far_off():
    recipe = Recipe("linear", (2,), 1, "squared_error")
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.normal(0, 1, (50, 1)).astype(np.float32))
    outputs = y.numpy() + rng.normal(0, 0.1, (3, 50, 1)).astype(np.float32)
    y[7] = 1.5 - y[7]
    assert np.flatnonzero(find_doubted(recipe, outputs, y)).tolist() == [7]


def test_trusted_labels_are_not_doubted(tmp_path, clusters):
    data, given, _, _ = clusters
    project = dross.clean(*data, out=tmp_path / "run", trusted_validation=True, **given, **QUICK)
    assert project.doubted_validation.empty and len(project.validation_labels) == 90
    report = (project.folder / "report.html").read_text()
    assert "all count as right" in report and "--trusted-validation --runs" in report
    assert describe_doubts(project.about) == ""
    with pytest.raises(dross.BadInput, match="other settings"):
        dross.clean(*data, out=tmp_path / "run", **given, **QUICK)


def test_a_part_that_is_doubted_by_half_is_said_and_cleaned(tmp_path):
    train, validation = make_part(240, 0.0, 0), make_part(90, 0.9, 1)
    options = QUICK | {"validation": validation[:2], "test": make_part(40, 0.0, 2)[:2]}
    project = dross.clean(*train[:2], out=tmp_path / "run", **options)
    assert len(project.doubted_validation) > 45
    sentence = describe_doubts(project.about)
    assert sentence.startswith("Careful: ") and "trusted_validation=True" in sentence
    assert sentence in (project.folder / "report.html").read_text().replace("&#39;", "'")
    assert len(project.instances) == 240


def test_a_project_of_an_earlier_version_doubts_nothing(cleaned):
    def forget(text):
        about = json.loads(text)
        del about["validation_labels"], about["digests"]["doubts.parquet"]
        return json.dumps(about)

    columns = set(cleaned.doubted_validation.columns)
    edit_json(cleaned.folder / "project.json", forget)
    (cleaned.folder / "doubts.parquet").unlink()
    project = dross.Project.open(cleaned.folder)
    assert project.doubted_validation.empty
    assert set(project.doubted_validation.columns) == columns
    assert "earlier version" in write_report(project).read_text()


def test_a_damaged_list_is_named(cleaned):
    path = cleaned.folder / "doubts.parquet"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(dross.TapeDamaged, match=r"doubts\.parquet is damaged"):
        list_doubted(dross.Project.open(cleaned.folder).validation_labels)


def test_the_command_line_teaches_it():
    shown = CliRunner().invoke(app, ["clean", "--help"]).output
    assert "--trusted-validation" in shown
