"""Cleaned and judged, end to end: what should help helps, and what should not does not."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_diabetes, load_digits

import dross
from cleanse.made_inputs import (
    QUICK,
    edit_json,
    enrichment,
    load_or_skip,
    other_parts,
    recommend_most_harmful,
    set_in_json,
    small_table,
    write_parts,
)
from dross.cleanse import edits, report
from dross.cleanse.confidence.suggestions import suggestion_confidence
from dross.cleanse.judging import train_seeds
from dross.cleanse.pipeline import rounds, search
from dross.cleanse.project import Project
from dross.errors import BadInput
from dross.support.file_digests import digest_file


def test_a_table_with_flipped_labels_is_improved(cancer):
    folder, project, bad = cancer
    assert enrichment(project, bad) > 3 and enrichment(project, bad, "mislabel_rank") > 4
    assert project.about["suggested"]["m"] > 0 and project.about["verification"]["tau"] > 0.5
    verdict = dross.judge(folder / "run", progress=False)
    assert verdict.verdict == "improved" and verdict.metrics["loss"].difference < 0
    assert len(verdict.per_class) == 2
    removed = dross.judge(folder / "run", plan="confused", seeds=2, progress=False)
    assert set(removed.recorded) == {"all", "last"} and removed.removed > 0
    assert "improved" in verdict._repr_html_() and "improved" in repr(verdict)
    relabelled = dross.judge(folder / "run", relabel=20, quick=True, progress=False)
    assert relabelled.relabelled == 20 and relabelled.metrics["loss"].difference < 0
    report = (folder / "run" / "report.html").read_text()
    assert re.search(r"without it about [\d.]+\u00a0% fewer mistakes", report)
    assert re.search(r"recommended:</span>\s*(relabel to|remove)", report) and "% sure)" in report
    assert "Most harmful" in report and report.count("<svg") == 4 and "<script" not in report
    assert len(project.verdicts()) == 3
    assert "make" not in report or "dross clean" in report
    scores = pandas.read_csv(folder / "run" / "scores.csv")
    assert len(scores) == len(bad) and set(project.instances.columns) <= set(scores.columns)


def test_each_suggestion_has_a_confidence_of_its_own(cancer):
    folder, project, bad = cancer
    sure = project.instances["confidence"]
    assert sure.between(0, 1).all() and sure[bad].mean() > 0.6 > 0.1 > sure[~bad].mean()
    assert -1 <= project.about["run_agreement"] <= 1
    table = pandas.read_parquet(folder / "run" / "instances.parquet")
    again = suggestion_confidence(table, project.about["runs"])
    assert np.array_equal(table["confidence"], again)  # as for earlier versions


def forget_what_is_new(text):
    about = json.loads(text)
    about["search"] = {"0.1": [0.6, 0.5, 0.45], "0.05": [0.7, 0.6, 0.5]}
    del about["recipe"]["decay"], about["searched_epochs"], about["measure"], about["measure_scale"]
    return json.dumps(about)


def test_a_project_of_an_earlier_version_is_judged_as_it_was_trained(tmp_path, monkeypatch):
    """Its rates did not decay, its search looked at every epoch, and it does not say so."""
    base = search._base_recipe
    with monkeypatch.context() as patched:
        patched.setattr(search, "_base_recipe", lambda *of: replace(base(*of), decay=False))
        dross.clean(small_table(tmp_path / "t.csv"), "kind", out=tmp_path / "run", **QUICK)
    edit_json(tmp_path / "run" / "project.json", forget_what_is_new)
    project, trained = Project.open(tmp_path / "run"), []
    train = train_seeds.train_many

    def watched(recipe, *given, **options):
        trained.append(recipe)
        return train(recipe, *given, **options)

    monkeypatch.setattr(train_seeds, "train_many", watched)
    verdict = dross.judge(project.folder, remove=3, seeds=3, progress=False)
    assert trained and not any(recipe.decay for recipe in trained)
    assert set(verdict.recorded) == {"all", "last"}  # its tape is replayed, at the rate that it has
    report = (project.folder / "report.html").read_text()
    assert "<!-- epoch -->" in report and "without it the validation loss falls by" in report


def test_an_instance_in_both_lists_is_relabelled_and_not_removed(cancer):
    _, project, _ = cancer
    both = edits.choose_edits(project, 20, 20, False)
    assert "20 most harmful removed" in both.what
    assert "in both lists only relabelled" in both.what  # flipped labels are in both
    assert len(both.relabelled) == 20 > len(both.removed)
    assert not set(both.removed) & set(both.relabelled)


def test_a_judgement_that_was_stopped_goes_on_in_other_processes(cancer, monkeypatch):
    run = cancer[0] / "run"
    ask = lambda **options: dross.judge(
        run, remove=15, relabel=5, seeds=6, quick=True, progress=False, **options
    )
    whole, before = ask(), len(Project.open(run).verdicts())
    calls, train = [], train_seeds.train_many

    def stopped(*given, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*given, **options)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(train_seeds, "train_many", stopped)
        ask()
    (waiting,) = (run / "judging").glob("*/piece-*")
    assert waiting.name == "piece-000000.safetensors"
    assert len(Project.open(run).verdicts()) == before
    again = ask(n_jobs=2)  # the second piece, in a worker
    assert again.metrics == whole.metrics and again.per_class == whole.per_class
    assert not (run / "judging").exists() and not (run / "judging.json").exists()


def test_random_removal_from_clean_data_is_not_an_improvement(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "compete", recommend_most_harmful(5))  # others are removed below
    data = load_digits()
    frame = pandas.DataFrame(data.data[:900]).add_prefix("p").assign(digit=data.target[:900])
    frame.to_csv(tmp_path / "digits.csv", index=False)
    options = QUICK | {"task": "classification", "model": "linear", "runs": 1, "verified": 1}
    project = dross.clean(tmp_path / "digits.csv", "digit", out=tmp_path / "run", **options)
    chance = np.random.default_rng(3).choice(len(project.instances), 30, replace=False)
    project.decisions.record({int(k): ("remove", None) for k in chance})
    verdict = dross.judge(tmp_path / "run", decisions=True, progress=False)
    assert verdict.verdict != "improved" and verdict.removed == 30


def test_two_newsgroups_as_text(tmp_path):
    news = load_or_skip("20news")
    texts, labels = news.train
    pair = [news.classes.index(name) for name in ("rec.sport.hockey", "sci.space")]
    chosen = [k for k in range(len(labels)) if labels[k] in pair][::3]
    frame = pandas.DataFrame(
        {"post": [texts[k] for k in chosen], "group": [news.classes[labels[k]] for k in chosen]}
    )
    bad = write_parts(frame, "group", tmp_path, 0.1)
    project = dross.clean(
        tmp_path / "train.csv",
        "group",
        text="post",
        out=tmp_path / "run",
        runs=1,
        verified=1,
        progress=False,
        **other_parts(tmp_path),
    )
    assert project.about["kind"] == "text" and enrichment(project, bad, "mislabel_rank") > 5
    verdict = dross.judge(tmp_path / "run", relabel=int(0.8 * bad.sum()), progress=False)
    assert verdict.verdict == "improved"
    likeliest = int(project.instances["mislabel_rank"].replace(-1, 10**6).idxmin())
    words = project.why(likeliest)["words"]
    assert words and isinstance(words[0][0], str)


def test_a_sample_of_adult(tmp_path):
    adult = load_or_skip("adult")
    columns, labels = adult.train
    frame = pandas.DataFrame(columns).assign(income=np.array(adult.classes)[labels])
    bad = write_parts(frame.sample(1500, random_state=0), "income", tmp_path, 0.15)
    project = dross.clean(
        tmp_path / "train.csv",
        "income",
        out=tmp_path / "run",
        runs=2,
        verified=2,
        progress=False,
        **other_parts(tmp_path),
    )
    assert enrichment(project, bad) > 1.5
    verdict = dross.judge(tmp_path / "run", remove=int(0.6 * bad.sum()), progress=False)
    assert verdict.verdict == "improved"


def test_a_number_to_predict(tmp_path, monkeypatch):
    frame = load_diabetes(as_frame=True).frame
    frame.to_parquet(tmp_path / "diabetes.parquet")
    project = dross.clean(tmp_path / "diabetes.parquet", "target", out=tmp_path / "run", **QUICK)
    assert project.about["task"] == "regression" and project.classes == []
    verdict = dross.judge(tmp_path / "run", remove=10, quick=True, progress=False)
    assert 1000 < np.mean(verdict.metrics["loss"].before) < 9000  # squared units of the target
    assert 30 < np.mean(verdict.metrics["absolute error"].before) < 90  # its own units
    drawn = []
    monkeypatch.setattr(report.charts, "as_svg", lambda figure: drawn.append(figure) or "")
    report._draw_verdict(verdict.to_json())
    names = [panel.get_ylabel() for panel in drawn[0].axes]
    assert names == ["test absolute error", "test loss"]
    project.decisions.record({3: ("relabel", "120")})
    assert dross.judge(tmp_path / "run", decisions=True, quick=True, progress=False).relabelled == 1
    for label in ("1_000", "\u0661", "nan", "1e39", "1e999"):  # float() would read them
        project.decisions.record({3: ("relabel", label)})
        with pytest.raises(BadInput, match="which is not a number of these data"):
            dross.judge(tmp_path / "run", decisions=True, quick=True, progress=False)
    project.decisions.record({3: ("keep", None)})
    path = tmp_path / "run" / "instances.parquet"
    changed = project.instances.copy()
    changed.loc[5, "prediction"], changed["mislabel_rank"] = "1_000", -1
    changed.loc[5, "mislabel_rank"] = 0
    changed.to_parquet(path)
    digests = project.about["digests"] | {path.name: digest_file(path)}
    set_in_json(tmp_path / "run" / "project.json", digests=digests)
    with pytest.raises(BadInput, match="relabelled as '1_000', which is not a number to learn"):
        dross.judge(tmp_path / "run", relabel=1, quick=True, progress=False)


def test_to_relabel_where_no_label_is_doubted_is_refused(little):
    project = Project.open(little)
    project.instances["mislabel_rank"] = -1
    with pytest.raises(BadInput, match="relabel=5: no label is probably wrong"):
        edits.choose_edits(project, None, 5, False)
    assert len(edits.choose_edits(project, 3, 5, False)) == 3
