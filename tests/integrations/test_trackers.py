"""Progress, scores and verdicts arrive where experiments are tracked."""

import sys

import pytest
import torch

import dross
import zoo
from cleaning.made_inputs import QUICK
from dross._progress import hide_progress, progress_bar
from dross.distributed.jobs import sweep
from dross.errors import DrossWarning, InvalidInput
from dross.integrations.trackers import MLflow, TensorBoard
from integrations.test_sklearn import made


class Listed:
    """The smallest tracker."""

    def __init__(self):
        self.said = []

    def log(self, values, step):
        self.said += [(name, value, step) for name, value in values.items()]

    def of(self, name):
        return [(value, step) for known, value, step in self.said if known == name]


@pytest.fixture
def tracker():
    return Listed()


def test_progress_is_reported_once_for_each_percent_and_goes_on_counting(tracker):
    with dross.track(tracker):
        for _ in range(2):
            with progress_bar("looking, twice", 1000, show=False) as advance:
                for _ in range(500):
                    advance(2)
    with progress_bar("looking, twice", 10, show=False) as advance:
        advance(10)  # nobody tracks it
    said = tracker.of("progress/looking_twice")
    assert len(said) == len(tracker.said) == 200
    assert said[:2] == [(0.01, 10), (0.02, 20)] and said[-1] == (1.0, 2000)


def test_hidden_progress_is_not_reported_and_trackers_can_be_nested(tracker):
    inner = Listed()
    with dross.track(tracker):
        with hide_progress(), progress_bar("a", 2) as advance:
            advance(2)
        with dross.track(inner), progress_bar("b", 1) as advance:
            advance(1)
        with progress_bar("c", 1) as advance:
            advance(1)
    assert tracker.said == [("progress/c", 1.0, 1)] and inner.said == [("progress/b", 1.0, 1)]


def test_training_and_scores_are_reported(record, tracker):
    problem = zoo.problem(model="linear")
    with dross.track(tracker):
        run = record(problem)
        scores = run.influence(dross.mean_loss((problem.X, problem.Y)))
    assert tracker.of("progress/training")[-1] == (1.0, run.steps)
    assert tracker.of("progress/retracing")[-1] == (1.0, run.steps)
    assert tracker.of("scores/lowest") == [(scores.values.min(), run.steps)]
    assert tracker.of("scores/mean") == [(scores.values.mean(), run.steps)]
    assert tracker.of("scores/harmful") == [((scores.values < 0).mean(), run.steps)]


def test_the_plan_and_the_verdict_are_reported(tracker, tmp_path):
    x, y, _ = made()
    options = QUICK | {"runs": 1, "verified": 1, "model": "linear", "labels": "annotated"}
    with dross.track(tracker):
        project = dross.clean(x, y, out=tmp_path / "run", **options)
        verdict = dross.judge(tmp_path / "run", remove=5, seeds=2, quick=True, progress=False)
    plan = project.recommended
    assert plan is not None and tracker.of("clean/removed") == [(len(plan.removed), 0)]
    assert tracker.of("clean/relabelled") == [(len(plan.relabelled), 0)]
    assert tracker.of("clean/error") == [(plan.figures["error"].change, 0)]
    error = verdict.metrics["error"]
    assert tracker.of("verdict/error/difference") == [(error.difference, 1)]
    assert tracker.of("verdict/error/before") == [(sum(error.before) / 2, 1)]
    assert tracker.of("verdict/error/highest") == [(error.interval[1], 1)]
    signs = {"improved": 1, "worse": -1, "inconclusive": 0}
    assert tracker.of("verdict/improved") == [(signs[verdict.verdict], 1)]


def test_a_sweep_counts_pieces_only_where_workers_take_them(tracker):
    with dross.track(tracker):
        list(sweep(abs, [1, 2], what="adding"))
        assert tracker.said == []  # in this process the work tells of itself
        list(sweep(abs, [1, 2], what="adding", n_jobs=2))
    assert tracker.of("progress/adding") == [(0.5, 1), (1.0, 2)]


def test_a_tracker_that_fails_costs_a_warning_and_nothing_else():
    class Broken:
        calls = 0

        def log(self, values, step):
            self.calls += 1
            raise OSError("the server is gone")

    broken = Broken()
    with pytest.warns(DrossWarning, match="the server is gone") as warned:
        with dross.track(broken), progress_bar("a", 10) as advance:
            for _ in range(10):
                advance(1)
    assert broken.calls == 1 and len(warned) == 1


def test_what_cannot_track_is_refused():
    with pytest.raises(InvalidInput, match=r"log\(values, step\)"), dross.track("tensorboard"):
        pass
    with pytest.raises(InvalidInput, match="SummaryWriter"):
        TensorBoard("runs/board")


def test_tensorboard_reads_what_was_reported(tmp_path, record):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    problem = zoo.problem(model="linear")
    with SummaryWriter(tmp_path / "board") as writer, dross.track(TensorBoard(writer)):
        run = record(problem)
        scores = run.influence(dross.mean_loss((problem.X, problem.Y)))
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert {"progress/training", "progress/retracing", "scores/mean"} <= set(
        events.Tags()["scalars"]
    )
    (mean,) = events.Scalars("scores/mean")
    assert mean.step == run.steps
    assert mean.value == torch.tensor(scores.values.mean(), dtype=torch.float32).item()
    last = events.Scalars("progress/training")[-1]
    assert (last.value, last.step) == (1.0, run.steps)


def test_mlflow_reads_what_was_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())  # mlflow-skinny has no data base
    with mlflow.start_run() as started, dross.track(MLflow()), progress_bar("a", 4) as advance:
        advance(2)
        advance(2)
    history = mlflow.MlflowClient().get_metric_history(started.info.run_id, "progress/a")
    assert [(each.value, each.step) for each in history] == [(0.5, 2), (1.0, 4)]


def test_without_mlflow_a_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    with pytest.raises(InvalidInput, match=r'pip install "dross\[mlflow\]"'):
        MLflow()
