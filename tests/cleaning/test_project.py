"""The folder that dross clean leaves: what it shows of itself, and that damage is refused."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import dross
from dross._io import seal
from dross.cleaning.findings import list_findings, warn_of_disagreement
from dross.cleaning.project import Project
from dross.errors import CorruptFile
from tests.cleaning.made_inputs import QUICK, small_table


def test_the_project_shows_itself(cancer):
    _, project, _ = cancer
    assert "training instances" in repr(project) and "<table" in project._repr_html_()
    why = project.why(int(project.table["harm_rank"].idxmin()))
    assert len(why.similar) == 4 and why.hurts
    assert all(hurt.measured for hurt in why.hurts)


def test_columns_of_mislabeled_rows_speak_against_their_labels(cancer):
    project = cancer[1]
    suspects = project.table["mislabel_rank"].pipe(lambda rank: rank[rank.between(0, 9)]).index
    weights = [[weight for _, weight in project.why(int(id)).columns] for id in suspects]
    assert all(len(row) == 10 for row in weights)
    assert all(np.all(np.diff(np.abs(row)) <= 0) for row in weights)  # the heaviest first
    assert np.median([sum(row) for row in weights]) < 0


def test_a_poor_agreement_of_runs_is_said_in_a_sentence(cancer):
    project = cancer[1]
    with_agreement = lambda value: replace(project.info, run_agreement=value)
    poor = warn_of_disagreement(with_agreement(0.21))
    assert poor is not None and "halves of the runs is 0.21" in poor and "`repeats`" in poor
    for unknown in (None, 0.34, 0.6):
        assert warn_of_disagreement(with_agreement(unknown)) is None
    shown = Project(project.folder, with_agreement(0.1))
    assert "agree poorly" in shown._repr_html_()


def test_findings_say_what_is_recommended_wrong_and_harmful(cancer):
    _, project, bad = cancer
    found = list_findings(project.info, project.table)
    assert found[0].startswith("Recommended: ")
    wrong = next(line for line in found if line.startswith("Labels that look wrong: "))
    estimated = int(re.findall(r"about ([\d,]+) labels are estimated", wrong)[0])
    assert 0.5 * bad.sum() < estimated < 2 * bad.sum()
    assert any("raise the expected held-out error in every run" in line for line in found)


def test_a_tampered_folder(tmp_path):
    out = tmp_path / "run"
    dross.clean(small_table(tmp_path / "t.csv"), "kind", out=out, **QUICK)
    (out / "instances.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(CorruptFile, match="not what dross wrote"):
        Project.open(out).table  # noqa: B018
    (out / "instances.parquet").unlink()
    with pytest.raises(CorruptFile, match="missing"):
        dross.judge(out, remove=3)
    (out / "project.json").write_text("{")
    with pytest.raises(CorruptFile, match="not readable JSON"):
        Project.open(out)
    (out / "project.json").write_text('{"made_by": "somebody"}')
    with pytest.raises(CorruptFile, match="not what dross wrote"):
        Project.open(out)
    (out / "project.json").write_text(json.dumps(seal({"made_by": "dross", "format": 99})))
    with pytest.raises(CorruptFile, match=r"is damaged: .*99.*format"):
        Project.open(out)


def test_a_hostile_cell_stays_text_in_the_report(tmp_path):
    hostile = "<img src=x onerror=alert(1)>"
    colours = np.where(np.arange(150) % 3 == 0, hostile, "\"quoted\" & 'so'")
    columns = {"colour": colours, "<b>name": np.arange(150) % 7}
    path = small_table(tmp_path / "t.csv", **columns)
    dross.clean(path, "kind", out=tmp_path / "run", **QUICK)
    report = (tmp_path / "run" / "report.html").read_text()
    assert hostile not in report and "&lt;img src=x" in report and "<b>name" not in report


def test_a_project_judges_and_exports_itself(little):
    project = Project.open(little)
    verdict = project.judge(remove=3, seeds=2, quick=True, progress=False)
    again = dross.judge(project, remove=3, seeds=2, quick=True, progress=False)
    assert again.metrics == verdict.metrics and len(project.verdicts()) == 2
    done = project.export(little.parent / "copy.csv", remove=3)
    other = dross.export(project, little.parent / "other.csv", remove=3)
    assert done.cleaned.read_bytes() == other.cleaned.read_bytes() and done.removed == 3


def test_a_project_serves_its_page(little, monkeypatch):
    served = []
    monkeypatch.setattr("dross.review.server.serve", lambda *args, **options: served.append(args))
    project = Project.open(little)
    project.review()
    assert served == [(project,)]
