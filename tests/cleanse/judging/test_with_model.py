"""The user's own model decides: estimators of scikit-learn, by name, by function, as objects."""

import subprocess
import sys

import numpy as np
import pandas
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import dross
from cleanse.made_inputs import QUICK, set_in_json
from dross import cli
from dross.cleanse.judging import fit_seeds
from dross.cleanse.judging.estimators import find_model
from dross.cleanse.learning.edited_data import NO_EDITS
from dross.cleanse.project import Project
from dross.cleanse.project_files import read_json, write_sealed
from dross.cleanse.reopen import reopen_inputs
from dross.cleanse.report import write_report
from dross.errors import BadInput

FEW = {"remove": 10, "seeds": 3, "quick": True, "progress": False}


def ask(run, model, **options):
    return dross.judge(run, with_model=model, **FEW | options)


def files(run):
    return {path.relative_to(run) for path in run.rglob("*")}


class Fitted(RandomForestClassifier):
    """A forest that writes down what it is fitted on."""

    seen: list = []  # noqa: RUF012

    def fit(self, x, y):
        Fitted.seen.append((x, len(y), self.random_state))
        return super().fit(x, y)


def test_an_estimator_is_fitted_thrice_per_seed_on_the_inputs_of_the_project(little):
    Fitted.seen = []
    verdict = ask(little, Fitted(n_estimators=5, max_features=1))
    assert verdict.model == "Fitted" and not verdict.resampled and verdict.seeds == 3
    assert set(verdict.metrics) == {"error", "loss"} and len(verdict.per_class) == 2
    assert verdict.recorded == {} and "Fitted" in verdict.sentence
    tried, judged = Fitted.seen[:2], Fitted.seen[2:]
    assert [size for _, size, _ in tried] == [120, 120] and tried[0][2] != tried[1][2]
    assert [size for _, size, _ in judged] == [120, 110, 110] * 3
    seeds = [seed for _, _, seed in judged]
    assert seeds[0:3] == [seeds[0]] * 3 and len(set(seeds)) == 3
    everything, edited, control = (x for x, _, _ in judged[:3])
    prepared, _ = reopen_inputs(Project.open(little))
    assert (everything == prepared.x["train"].numpy()).all()
    harmful = Project.open(little).instances.sort_values("harm_rank").index[:10]
    assert (edited == np.delete(everything, harmful, 0)).all() and (edited != control).any()
    assert Project.open(little).verdicts()[-1]["model"] == "Fitted"
    assert "Judged by Fitted" in (little / "report.html").read_text()


def test_what_seeds_do_not_change_is_resampled_and_the_verdict_says_so(little):
    verdict = ask(little, "sklearn:HistGradientBoostingClassifier")
    assert verdict.resampled and "3 bootstrap samples" in verdict.sentence
    assert len(set(verdict.metrics["loss"].before)) == 3  # a spread
    again = ask(little, HistGradientBoostingClassifier())
    assert again.metrics == verdict.metrics and again.model == verdict.model
    assert "bootstrap sample" in (little / "report.html").read_text()


def test_the_three_fits_of_a_resampled_seed_have_the_same_sample(monkeypatch):
    rng = np.random.default_rng(0)
    import torch

    x, y = torch.from_numpy(rng.normal(size=(60, 2)).astype(np.float32)), torch.arange(60) % 3
    data = fit_seeds.Learnable(x.numpy(), y, (0.0, 1.0), 3, True)
    one, other = fit_seeds.draw_sample(data, 5), fit_seeds.draw_sample(data, 6)
    assert (one == fit_seeds.draw_sample(data, 5)).all() and (one != other).any()
    assert np.bincount(y.numpy()[one]).tolist() == [20, 20, 20] and len(set(one)) < 60


def test_random_states_inside_of_a_pipeline_are_set(little):
    pipeline = make_pipeline(StandardScaler(), MLPClassifier((4,), max_iter=20))
    verdict = ask(little, pipeline, seeds=2)
    assert verdict.model == "StandardScaler + MLPClassifier" and not verdict.resampled
    assert "The model warns: Stochastic Optimizer: Maximum iterations" in verdict.settle
    assert ask(little, pipeline, seeds=2).metrics == verdict.metrics
    state = np.random.get_state()[1].tolist()  # the caller's random numbers go on as they were
    ask(little, pipeline, seeds=2)
    assert np.random.get_state()[1].tolist() == state


def test_without_probabilities_only_the_error_is_compared(little):
    verdict = ask(little, SGDClassifier(loss="hinge"))
    assert set(verdict.metrics) == {"error"} and verdict.model == "SGDClassifier"
    assert "test error went from" in verdict.sentence and "loss" not in verdict.sentence
    assert "SGDClassifier has no predict_proba: only its errors are compared" in verdict.settle
    assert (little / "report.html").read_text().count("Judged by SGDClassifier") == 1


def rents(count, rng):
    """Numbers that two columns tell, but for a deviation of 10."""
    size, place = rng.normal(size=(2, count))
    rent = 400 + 60 * size + 30 * place + rng.normal(0, 10, count)
    return pandas.DataFrame({"size": size, "place": place, "rent": rent})


def test_a_regression_is_judged_in_the_units_of_its_label(tmp_path):
    rng = np.random.default_rng(0)
    train, parts = (
        rents(300, rng),
        {part: tmp_path / f"{part}.csv" for part in ("validation", "test")},
    )
    for path in parts.values():
        rents(100, rng).to_csv(path, index=False)
    wrong = rng.choice(300, 30, replace=False)  # of which several are far off
    train.loc[wrong, "rent"] = rng.permutation(train["rent"])[:30]
    train.to_csv(tmp_path / "train.csv", index=False)
    options = QUICK | {"runs": 1, "verified": 2, "model": "linear", "epochs": 3} | parts
    dross.clean(tmp_path / "train.csv", "rent", out=tmp_path / "run", **options)
    verdict = ask(tmp_path / "run", LinearRegression())
    assert set(verdict.metrics) == {"absolute error", "loss"} and verdict.resampled
    assert 7 < np.mean(verdict.metrics["absolute error"].before) < 14  # a deviation of 10 gives 8
    assert 80 < np.mean(verdict.metrics["loss"].before) < 250  # and 100
    gamma = ask(tmp_path / "run", "sklearn:GammaRegressor")  # learns numbers above 0 only
    assert gamma.metrics["loss"].before != verdict.metrics["loss"].before
    mended = ask(tmp_path / "run", LinearRegression(), remove=None, relabel=5)
    assert mended.relabelled == 5
    assert np.mean(mended.metrics["loss"].after) < np.mean(mended.metrics["loss"].before)
    with pytest.raises(BadInput, match=r"is a classifier, .*sklearn:RandomForestRegressor"):
        ask(tmp_path / "run", "sklearn:RandomForestClassifier")


def test_a_stopped_judgement_goes_on_in_other_processes(little, monkeypatch):
    forest = RandomForestClassifier(4)
    whole = ask(little, forest)
    calls, fit = [], fit_seeds.fit_and_predict

    def stopped(*given):
        calls.append(1)
        if len(calls) == 2 + 3 + 2:  # tried, the first seed, within the second
            raise KeyboardInterrupt
        return fit(*given)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(fit_seeds, "fit_and_predict", stopped)
        ask(little, forest)
    assert [path.name[:12] for path in (little / "judging").glob("*/*")] == ["piece-000000"]
    ask(little, RandomForestClassifier(5))  # another one does not take what is kept
    assert len(list((little / "judging").glob("*/*"))) == 1
    again = ask(little, forest, n_jobs=2)
    assert again.metrics == whole.metrics and not (little / "judging").exists()


def test_a_function_of_ones_own_from_the_command_line(little, tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(
        "from sklearn.naive_bayes import GaussianNB\n\n\ndef bayes():\n    return GaussianNB()\n"
    )
    command = [sys.executable, "-m", "dross", "judge", str(little), "--with", "own_models:bayes"]
    command += ["--remove", "10", "--seeds", "2", "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        "own_models.py (SHA-256" in done.stdout and "GaussianNB (own_models:bayes)" in done.stdout
    )
    assert Project.open(little).verdicts()[-1]["model"] == "GaussianNB (own_models:bayes)"


def test_the_help_teaches_it():
    said = CliRunner().invoke(cli.app, ["judge", "--help"], env={"COLUMNS": "200"}).output
    assert "--with sklearn:HistGradientBoostingClassifier" in said and "bootstrap" in said


class Fails(LogisticRegression):
    def fit(self, x, y):
        raise RuntimeError("no such luck\nat all")


class NotANumber(LogisticRegression):
    def predict_proba(self, x):
        return np.full((len(x), 2), np.nan)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("sklearn:RandomForestClasifier", r"Did you mean sklearn:RandomForestClassifier\?"),
        ("sklearn.ensemble:RandomForrest", r"Did you mean sklearn.ensemble:RandomForestCl"),
        ("sklearn.forests:Random", r"has no module 'sklearn.forests'"),
        ("RandomForestClassifier", r"no colon.*sklearn:RandomForestClassifier"),
        ("sklearn:RandomForestRegressor", r"is a regressor, .*sklearn:RandomForestClassifier"),
        ("sklearn:KMeans", r"KMeans is a clusterer"),
        ("sklearn:IsolationForest", r"IsolationForest is an outlier detector"),
        ("sklearn:StandardScaler", r"StandardScaler has no predict"),
        ("sklearn:VotingClassifier", r"must not need arguments"),
        ("no_such_module:make", r"there is no module 'no_such_module'"),
        (object(), r"object has no fit"),
        (Fails(), r"Fails fails to fit \(RuntimeError: no such luck\)"),
        (NotANumber(), r"fails to predict .*predict_proba returned numbers that are not finite"),
    ],
)
def test_what_cannot_judge_is_refused_and_nothing_is_lost(little, model, said):
    before = files(little)
    with pytest.raises(BadInput, match=said):
        ask(little, model)
    assert files(little) == before


def test_a_class_that_vanishes_by_the_edits(tmp_path):
    rng = np.random.default_rng(0)
    kind = np.array(["a", "b", "c"]).repeat([90, 90, 20])
    place = np.unique(kind, return_inverse=True)[1]
    frame = pandas.DataFrame({"x": place + rng.normal(0, 0.3, 200), "kind": kind})
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = QUICK | {"runs": 1, "epochs": 3, "verified": 2, "model": "linear"}
    project = dross.clean(tmp_path / "t.csv", "kind", out=tmp_path / "run", **options)
    labels = project.instances["label"]
    project.decisions.record({int(k): ("remove", None) for k in labels.index[labels == "c"]})
    for model in (None, "sklearn:GaussianNB"):
        verdict = ask(tmp_path / "run", model, remove=None, decisions=True)
        assert "no training instance of 'c' is left" in verdict.settle
        assert "the 4 test instances of it count as wrong" in verdict.settle
        by_class = {row["class"]: row["after"] for row in verdict.per_class}
        assert by_class["c"] == 1.0
    project.decisions.record({int(k): ("relabel", "a") for k in labels.index[labels != "a"]})
    with pytest.raises(BadInput, match=r"Only one class .* GaussianNB cannot learn it"):
        ask(tmp_path / "run", "sklearn:GaussianNB", remove=None, decisions=True)


def test_numbers_of_classes_have_no_gaps_and_come_back(little):
    """Some estimators insist on labels 0, 1, 2, ...; a class that was not learnt stays at 0."""
    import torch

    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 2)).astype(np.float32)
    y = torch.arange(90) % 3
    x[:, 0] += 5 * y.numpy()
    data = fit_seeds.Learnable(x, y, (0.0, 1.0), 3, True)
    model = find_model("sklearn:GaussianNB", "classification")
    gone = NO_EDITS.__class__(np.flatnonzero(y.numpy() == 1), NO_EDITS.relabelled)
    work = fit_seeds.FitSeeds(model, data, x, gone, False, 1, False)
    said = fit_seeds.fit_and_predict(work, gone, 0, x)
    assert set(said["predicted"].tolist()) == {0, 2}
    assert said["outputs"].shape == (90, 3) and said["outputs"][:, 1].max() < -15
    assert ((said["predicted"] == y)[y != 1]).float().mean() > 0.95


def test_the_code_of_a_model_that_does_not_judge_is_not_needed(little):
    set_in_json(little / "project.json", options__make="strange_module:network")
    with pytest.raises(BadInput, match=r"trust_code=\['strange_module:network'\]"):
        dross.judge(little, **FEW)
    assert ask(little, "sklearn:GaussianNB").model == "GaussianNB"


def test_verdicts_of_earlier_versions_are_still_shown(little):
    ask(little, "sklearn:GaussianNB")
    (path,) = (little / "verdicts").glob("*.json")
    old = {
        key: value for key, value in read_json(path).items() if key not in ("model", "resampled")
    }
    write_sealed(path, old)
    project = Project.open(little)
    page = write_report(project).read_text()
    assert "GaussianNB" in page and "Judged by" not in page
    assert "the same initial weights" in " ".join(page.split())
    assert old["sentence"][:40] in project._repr_html_()
