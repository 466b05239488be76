"""`dross.judge` on projects: whole files and test files, models of the user's own, stopped work."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dross
from dross.cleaning import judge, plans
from dross.cleaning.edits import choose_edits
from dross.cleaning.estimators import find_model
from dross.cleaning.project import Project
from dross.cleaning.task import CLASSIFICATION
from dross.errors import InvalidInput
from tests.cleaning.made_judgments import flip

QUICK = {"repeats": 1, "epochs": 8, "lr": 0.05, "model": "linear", "progress": False}
FEW = {"seeds": 3, "quick": True, "progress": False}


def make_rows(count, seed, share=0.0):
    """Two of the digits, some with the wrong label."""
    x, y = load_digits(n_class=3, return_X_y=True)
    chosen = np.random.default_rng(seed).permutation(len(x))[:count]
    labels, bad = flip(y[chosen].astype(np.int64), share, 3, seed)
    return x[chosen] / 16, np.array(["none", "one", "two"])[labels], bad


@pytest.fixture(scope="module")
def _whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    x, y, _ = make_rows(300, 0, 0.15)
    dross.clean(x, y, out=folder, labels="annotated", **QUICK)
    return folder


@pytest.fixture
def whole(_whole, tmp_path):
    """A project of one file, with wrong labels everywhere; to be spoilt."""
    return shutil.copytree(_whole, tmp_path / "run")


@pytest.fixture(scope="module")
def _tested(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tested") / "run"
    x, y, _ = make_rows(400, 0, 0.1)
    parts = {"validation": (x[240:320], y[240:320]), "test": (x[320:], y[320:])}
    dross.clean(x[:240], y[:240], out=folder, labels="annotated", **parts, **QUICK)
    return folder


@pytest.fixture
def tested(_tested, tmp_path):
    """A project with validation and test data of their own; to be spoilt."""
    return shutil.copytree(_tested, tmp_path / "run")


def ask(run, model=None, **options):
    return dross.judge(run, estimator=model, **{"remove": 10} | FEW | options)


def files(run):
    return {path.relative_to(run) for path in run.rglob("*")}


def test_a_recommended_rule_is_repeated_without_each_fold(whole, monkeypatch):
    held, edit = [], plans.edits_without

    def watched(rows, held_out, *rule, **options):
        held.append(np.flatnonzero(held_out))
        return edit(rows, held_out, *rule, **options)

    monkeypatch.setattr(plans, "edits_without", watched)
    project = Project.open(whole)
    assert project.recommended is not None
    verdict = dross.judge(whole, quick=True, progress=False)
    assert sorted(np.concatenate(held)) == list(range(300)) and len(held) == 5
    assert verdict.verdict == "improved" and verdict.nested and verdict.rows == 300
    assert verdict.removed == len(project.recommended.removed)
    assert verdict.relabeled == len(project.recommended.relabeled)
    assert 0.08 < verdict.noise < 0.25 and len(verdict.per_class) == 3
    assert "knowledge of all labels" not in verdict.advice
    (kept,) = project.verdicts()
    assert kept["verdict"] == "improved" and kept["nested"] and kept["model"] == "linear"
    page = (whole / "report.html").read_text()
    assert (
        "on all rows, held out in turn" in page and "counting all given labels as correct" in page
    )
    assert "improved" in verdict._repr_html_() and "improved" in repr(verdict)


def test_a_list_is_judged_and_the_verdict_says_what_it_has_seen(whole):
    verdict = ask(whole)
    assert verdict.nested and verdict.removed == 10
    assert "so the change is not called an improvement" in verdict.advice
    project = Project.open(whole)
    project.decisions.record({3: ("remove", None), 5: ("relabel", "two")})
    decided = ask(whole, remove=None, decisions=True)
    assert (decided.removed, decided.relabeled) == (1, 1)
    assert "These decisions were made with knowledge of all labels" in decided.advice


def test_a_test_file_measures(tested):
    verdict = ask(tested)
    assert not verdict.nested and verdict.rows == 80 and "with knowledge of" not in verdict.advice
    assert "on 80 test rows (3 repetitions with fresh seeds)" in verdict.sentence
    assert "on the test rows" in (tested / "report.html").read_text()


@pytest.mark.parametrize(("name", "n_jobs"), [("whole", None), ("tested", 2)])
def test_a_stopped_judgment_goes_on(name, n_jobs, request, monkeypatch):
    """In other processes where they need not estimate the noise: ours is made quick for tests."""
    run = request.getfixturevalue(name)
    monkeypatch.setattr(judge, "_SEEDS_SIDE_BY_SIDE", 1)
    finished = ask(run)
    calls, train = [], judge.train_many

    def stopped(*given, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(*given, **options)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(judge, "train_many", stopped)
        ask(run)
    waiting = sorted(path.name for path in (run / "judging").glob("*/piece-*"))
    assert waiting == ["piece-000000.safetensors", "piece-000001.safetensors"]
    assert len(Project.open(run).verdicts()) == 1
    ask(run, remove=11)  # another judgment does not take what is kept
    assert len(list((run / "judging").glob("*/*"))) == 2
    again = ask(run, n_jobs=n_jobs)
    assert again.metrics == finished.metrics and again.per_class == finished.per_class
    assert not (run / "judging").exists() and not (run / "judging.json").exists()


class Fitted(RandomForestClassifier):
    """A forest that writes down what it is fitted on."""

    seen: list = []  # noqa: RUF012

    def fit(self, x, y):
        Fitted.seen.append((x, len(y), self.random_state))
        return super().fit(x, y)


def test_an_estimator_is_fitted_thrice_per_seed_on_the_inputs_of_the_project(tested):
    Fitted.seen = []
    verdict = ask(tested, Fitted(n_estimators=5))
    assert verdict.model == "Fitted" and not verdict.resampled and verdict.seeds == 3
    assert set(verdict.metrics) == {"error", "log loss"} and len(verdict.per_class) == 3
    assert "Fitted" in verdict.sentence
    tried, judged = Fitted.seen[:2], Fitted.seen[2:]
    assert [size for _, size, _ in tried] == [240, 240] and tried[0][2] != tried[1][2]
    assert [size for _, size, _ in judged] == [240, 230, 230] * 3
    seeds = [seed for _, _, seed in judged]
    assert seeds[0:3] == [seeds[0]] * 3 and len(set(seeds)) == 3
    everything, edited, control = (x for x, _, _ in judged[:3])
    harmful = choose_edits(Project.open(tested), 10, None, False).removed
    assert (edited == np.delete(everything, harmful, 0)).all() and (edited != control).any()
    assert "Judged by Fitted" in (tested / "report.html").read_text()


def test_what_seeds_do_not_change_is_resampled_and_the_verdict_says_so(tested):
    boosting = {"max_iter": 5}
    verdict = ask(tested, HistGradientBoostingClassifier(**boosting))
    assert verdict.resampled and "3 bootstrap samples" in verdict.sentence
    assert len(set(verdict.metrics["log loss"].before)) == 3  # a spread
    again = ask(tested, HistGradientBoostingClassifier(**boosting))
    assert again.metrics == verdict.metrics and again.model == verdict.model
    assert "bootstrap sample" in (tested / "report.html").read_text()


def test_random_states_inside_of_a_pipeline_are_set(tested):
    pipeline = make_pipeline(StandardScaler(), MLPClassifier((4,), max_iter=10))
    verdict = ask(tested, pipeline, seeds=2)
    assert verdict.model == "StandardScaler + MLPClassifier" and not verdict.resampled
    assert "Warning from the model: Stochastic Optimizer: Maximum iterations" in verdict.advice
    state = np.random.get_state()[1].tolist()  # the caller's random numbers go on as they were
    assert ask(tested, pipeline, seeds=2).metrics == verdict.metrics
    assert np.random.get_state()[1].tolist() == state


def test_without_probabilities_only_the_error_is_compared(tested):
    verdict = ask(tested, SGDClassifier(loss="hinge"))
    assert set(verdict.metrics) == {"error"} and verdict.plain == {}
    assert "error: " in verdict.sentence and "log loss" not in verdict.sentence
    assert "SGDClassifier has no predict_proba: only its errors are compared" in verdict.advice


def test_a_function_of_ones_own_from_the_command_line(tested, tmp_path):
    (tmp_path / "own_models.py").write_text(
        "from sklearn.naive_bayes import GaussianNB\n\n\ndef bayes():\n    return GaussianNB()\n"
    )
    command = [
        sys.executable,
        "-m",
        "dross",
        "judge",
        str(tested),
        "--estimator",
        "own_models:bayes",
    ]
    command += ["--remove", "10", "--seeds", "2", "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "GaussianNB (own_models:bayes)" in done.stdout
    assert Project.open(tested).verdicts()[-1]["model"] == "GaussianNB (own_models:bayes)"


class Fails(LogisticRegression):
    def fit(self, x, y):
        raise RuntimeError("no such luck\nat all")


class NotANumber(LogisticRegression):
    def predict_proba(self, x):
        return np.full((len(x), 3), np.nan)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("sklearn:RandomForestClasifier", r"Did you mean sklearn:RandomForestClassifier\?"),
        ("sklearn.ensemble:RandomForrest", r"Did you mean sklearn.ensemble:RandomForestCl"),
        ("sklearn.forests:Random", r"scikit-learn has no such estimator"),
        ("RandomForestClassifier", r"no colon.*sklearn:RandomForestClassifier"),
        ("sklearn:RandomForestRegressor", r"is a regressor, .*sklearn:RandomForestClassifier"),
        ("sklearn:KMeans", r"KMeans is a clusterer"),
        ("sklearn:IsolationForest", r"IsolationForest is an outlier detector"),
        ("sklearn:StandardScaler", r"StandardScaler has no predict"),
        ("sklearn:VotingClassifier", r"must not require arguments"),
        ("no_such_module:make", r"there is no module 'no_such_module'"),
        (object(), r"object has no fit"),
    ],
)
def test_what_cannot_judge_is_refused(model, said):
    with pytest.raises(InvalidInput, match=said):
        find_model(model, CLASSIFICATION)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Fails(), r"Fails failed to fit \(RuntimeError: no such luck\)"),
        (NotANumber(), r"failed to predict .*predict_proba returned numbers that are not finite"),
    ],
)
def test_what_fails_leaves_the_project_as_it_was(tested, model, said):
    before = files(tested)
    with pytest.raises(InvalidInput, match=said):
        ask(tested, model)
    assert files(tested) == before
