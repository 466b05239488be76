"""What is recommended, what is not, and how a project keeps and words it."""

import json
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import dross
from dross import cli
from dross.cleaning import examine
from dross.cleaning.findings import describe_recommendation, list_findings
from dross.cleaning.plans import (
    Figure,
    PlanResult,
    Recommendation,
    describe_actions,
    describe_figure,
    tabulate_plans,
)
from dross.cleaning.project import Project
from dross.cleaning.project_files import parse_json, to_json
from dross.errors import CorruptFile, DrossError
from tests.cleaning.made_inputs import set_in_json
from tests.cleaning.made_labels import QUICK

FEW = QUICK | {"repeats": 1}
FIGURE = Figure(before=0.13, after=0.125, change=-0.005, interval=(-0.008, -0.002))
PLAN = PlanResult(
    name="wrong-50",
    what="relabel 1 and remove 2",
    removed=np.array([4, 7]),
    relabeled={3: "ash"},
    figures={"error": FIGURE, "noise-aware log loss": FIGURE},
)


def make_table(folder, labels, apart, count=160, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 4))
    x[:, 0] += apart * labels
    frame = pandas.DataFrame(x).add_prefix("x").assign(kind=np.array(["no", "yes"])[labels])
    frame.to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


# --- what is recommended ---


@pytest.mark.parametrize("labels", ["observed", "annotated"])
def test_nothing_is_recommended_where_nothing_can_be_learned(tmp_path, labels):
    table = make_table(tmp_path, np.random.default_rng(1).integers(0, 2, 160), 0.0)
    project = dross.clean(table, "kind", out=tmp_path / "run", labels=labels, **FEW)
    assert project.info.recommendation.state == "nothing learned"
    assert project.recommended is None and not project.plans and project.labels_to_check.empty
    assert (project.table["action"] == "keep").all()
    found = list_findings(project.info, project.table)
    assert found[0].startswith("Recommended: change nothing. No model predicts these labels better")
    assert not any("wrong" in sentence for sentence in found[1:])  # nobody can know
    with pytest.raises(dross.InvalidInput, match=r"no change is recommended.* No model predicts"):
        dross.export(project.folder, tmp_path / "copy.csv")
    judged = CliRunner().invoke(cli.app, ["judge", str(project.folder)])
    assert judged.exit_code == 0 and "There is nothing to change" in judged.output
    as_json = CliRunner().invoke(cli.app, ["judge", str(project.folder), "--json"])
    assert as_json.exit_code == 0 and json.loads(as_json.stdout)["verdict"] is None
    assert "Change nothing" in (project.folder / "report.html").read_text()


def test_nothing_is_recommended_where_classes_overlap_and_nothing_is_wrong(tmp_path):
    """A third of the labels are unlikely, as they are what happened.

    One draw, as the plan comparison is made quick here; tests/cleaning/test_plans.py has it in full.
    """
    table = make_table(tmp_path, np.random.default_rng(0).integers(0, 2, 200), 1.0, 200)
    project = dross.clean(table, "kind", out=tmp_path / "run", **FEW)
    assert project.recommended is None
    assert project.info.recommendation.state in ("undecided", "no gain", "nothing wrong")
    assert (project.table["action"] == "keep").all()


def test_numbers_that_are_swapped_are_never_relabeled_unless_a_plan_says_so(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(180, 3))
    y = 50 + 10 * x[:, 0] + rng.normal(size=180)
    wrong = rng.random(180) < 0.1
    y[wrong] += 60
    frame = pandas.DataFrame(x).add_prefix("x").assign(price=y.round(3))
    frame.to_csv(tmp_path / "t.csv", index=False)
    project = dross.clean(tmp_path / "t.csv", "price", out=tmp_path / "run", **FEW)
    instances = project.table
    assert wrong[instances["wrong"] > 0.5].mean() > 0.8
    assert (instances["wrong"] > 0.5)[wrong].mean() > 0.6
    plan = project.recommended
    edited = [] if plan is None else [*plan.removed, *plan.relabeled]
    assert sorted(edited) == instances.index[instances["action"] != "keep"].tolist()
    assert wrong[np.array(edited, dtype=int)].mean() > 0.8 if edited else True
    for known in project.plans:
        assert {"absolute error"} <= set(known.figures)


# --- how it is kept ---


def test_a_plan_is_kept_and_read():
    again = parse_json(json.dumps(to_json(PLAN)).encode(), PlanResult, Path("plan.json"))
    assert again.removed.tolist() == [4, 7] and again.removed.dtype == np.int64
    assert (again.relabeled, again.figures, len(again)) == ({3: "ash"}, PLAN.figures, 3)


def kept(**changes):
    """A recommendation as project.json keeps it, with changes of its plan or of itself."""
    plan = to_json(PLAN)
    whole = {"state": "recommended", "reason": "It won.", "recommended": "wrong-50"}
    for name, value in changes.items():
        (plan if name in plan else whole)[name] = value
    return {**whole, "plans": [plan]} | {k: v for k, v in changes.items() if k == "plans"}


HOSTILE = {
    "no plans": {"plans": None},
    "plans that are numbers": {"plans": [3]},
    "an empty plan": {"plans": [{}]},
    "an unknown recommended one": {"recommended": "other"},
    "a list for a name": {"name": ["wrong-50"]},
    "no reason": {"reason": None},
    "no state": {"state": 3},
    "an id below 0": {"removed": [-1]},
    "an id that is not there": {"removed": [10]},
    "an id that is too large": {"removed": [10**30]},
    "an id in words": {"removed": ["x"]},
    "half an id": {"removed": [1.5]},
    "ids in ids": {"removed": [[1]]},
    "no ids": {"removed": None},
    "a label for nobody": {"relabeled": {"99": "ash"}},
    "a label alone": {"relabeled": ["ash"]},
    "a label that is a number": {"relabeled": {"3": 7}},
    "a label that is no class": {"relabeled": {"3": "../../x"}},
    "no figures": {"figures": None},
    "a figure in words": {"figures": {"error": {**vars(FIGURE), "before": "x"}}},
    "a figure without an interval": {"figures": {"error": {"before": 1.0}}},
    "a long interval": {"figures": {"error": {**vars(FIGURE), "interval": [1, 2, 3]}}},
    "what is not said": {"what": None},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_recommendation_that_dross_did_not_write_is_refused(little, case):
    set_in_json(little / "project.json", recommendation=kept(relabeled={}))
    assert Project.open(little).plans[0].name == "wrong-50"
    changes = {"removed": [10**6]} if case == "an id that is not there" else HOSTILE[case]
    set_in_json(little / "project.json", recommendation=kept(**{"relabeled": {}} | changes))
    with pytest.raises(CorruptFile, match=r"project\.json is damaged: .*Run dross clean again"):
        Project.open(little)
    with pytest.raises(CorruptFile):
        dross.export(little, little.parent / "copy.csv")


def test_a_forged_label_leads_nowhere_else(album):
    plan = kept(removed=[], relabeled={"5": "../../x"}, figures={})
    set_in_json(album / "project.json", recommendation=plan)
    before = sorted(str(path) for path in album.parent.rglob("*"))
    with pytest.raises(DrossError):
        dross.export(album, album.parent / "copy")
    assert sorted(str(path) for path in album.parent.rglob("*")) == before


# --- how it is worded ---


def test_figures_are_what_they_say():
    percent = describe_figure("error", FIGURE)
    assert percent == {
        "before": "13.0 %",
        "after": "12.5 %",
        "change": "-0.5 points",
        "interval": "-0.8 to -0.2",
    }
    loss = describe_figure("log loss", FIGURE)
    assert (loss["before"], loss["after"], loss["change"]) == ("0.130", "0.125", "-0.005")
    table = tabulate_plans([PLAN], "wrong-50")
    assert table["measures"] == ["error", "log loss"]
    (row,) = table["rows"]
    assert row["recommended"] and row["figures"] == [percent, loss]
    assert tabulate_plans([], None) == {"measures": [], "rows": []}
    assert [describe_actions(*n) for n in ((2, 0), (0, 1200), (1, 2), (0, 0))] == [
        "remove 2",
        "relabel 1,200",
        "relabel 2 and remove 1",
        "change nothing",
    ]


def test_a_plan_with_a_lower_error_and_a_higher_log_loss_is_shown_and_can_be_taken(
    tmp_path, monkeypatch
):
    """The plan comparison does not allow it; `plan` takes it, with both figures in sight."""
    worse = Figure(before=0.3, after=0.4, change=0.1, interval=(0.05, 0.15))
    figures = {"error": FIGURE, "noise-aware log loss": worse}
    plan = PlanResult(np.array([3, 5]), {}, name="wrong-50", what="remove 2", figures=figures)
    found = Recommendation([plan], None, "no gain", "No plan is better.")
    monkeypatch.setattr(examine, "recommend", lambda *_, **__: found)
    table = make_table(tmp_path, np.arange(80) % 2, 3.0, 80)
    project = dross.clean(table, "kind", out=tmp_path / "run", **FEW)
    assert project.recommended is None and [plan.name for plan in project.plans] == ["wrong-50"]
    report = " ".join((project.folder / "report.html").read_text().split())
    assert re.search(r"wrong-50.*13\.0 %.*12\.5 %.*0\.4", report)
    with pytest.raises(dross.InvalidInput, match="no change is recommended"):
        dross.export(project.folder, tmp_path / "copy.csv")
    done = dross.export(project.folder, tmp_path / "copy.csv", plan="wrong-50")
    assert (done.removed, done.written) == (2, 78)


def test_the_recommendation_is_a_sentence_with_its_figures(cleaned):
    plan = cleaned.recommended
    assert plan is not None
    what, why = describe_recommendation(cleaned.info, cleaned.table)
    assert what == f"Recommended: {plan.what} of 240 instances."
    error = describe_figure("error", plan.figures["error"])
    assert (
        f"error {error['before']} -> {error['after']} ({error['change']}, 95 % confidence int"
        in why
    )
    assert "log loss" in why
