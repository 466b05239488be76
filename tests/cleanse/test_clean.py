"""The journeys, end to end on real data: clean, judge, export; and what goes wrong on the way."""

import json

import numpy as np
import pandas
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import nn
from typer.testing import CliRunner

import dross
from dross import cli
from dross.cleanse import edits, judge, pipeline
from dross.cleanse.inputs import load as inputs_load
from dross.cleanse.inputs import source, tables
from dross.cleanse.project import Project
from dross.datasets import load
from dross.errors import BadInput, DataUnavailable, StorageFailed, TapeDamaged, TapeMismatch

QUICK = {"runs": 2, "epochs": 8, "rate": 0.05, "verified": 4, "progress": False}


def flipped(labels: np.ndarray, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels with a share of them changed to another that occurs, and which."""
    rng = np.random.default_rng(seed)
    kinds, wrong, bad = np.unique(labels), labels.copy(), rng.random(len(labels)) < share
    for k in np.flatnonzero(bad):
        wrong[k] = rng.choice(kinds[kinds != labels[k]])
    return wrong, bad


def parts_of(frame: pandas.DataFrame, label: str, folder, share: float) -> np.ndarray:
    """Three files; only the training labels are flipped. Returns which."""
    order = np.random.default_rng(1).permutation(len(frame))
    cut = np.split(order, [int(0.6 * len(order)), int(0.8 * len(order))])
    train = frame.iloc[cut[0]].copy()
    train[label], bad = flipped(train[label].to_numpy(), share)
    for name, part in (
        ("train", train),
        ("validation", frame.iloc[cut[1]]),
        ("test", frame.iloc[cut[2]]),
    ):
        part.to_csv(folder / f"{name}.csv", index=False)
    return bad


def files(folder) -> dict[str, str]:
    return {"validation": str(folder / "validation.csv"), "test": str(folder / "test.csv")}


def loaded_or_skip(name: str):
    try:
        return load(name)
    except DataUnavailable as missing:
        pytest.skip(str(missing))


def enrichment(project: Project, bad: np.ndarray, column: str = "harm_rank") -> float:
    """The share of flipped ones among as many first suggestions, over their share everywhere."""
    first = (project.instances[column] >= 0) & (project.instances[column] < bad.sum())
    return float(bad[first.to_numpy()].mean() / bad.mean())


# --- journeys -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cancer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cancer")
    data = load_breast_cancer(as_frame=True)
    frame = data.data.assign(diagnosis=np.array(["malignant", "benign"])[data.target])
    bad = parts_of(frame, "diagnosis", folder, 0.12)
    project = dross.clean(
        folder / "train.csv",
        "diagnosis",
        out=folder / "run",
        runs=3,
        rate=0.02,
        epochs=12,
        progress=False,
        **files(folder),
    )
    return folder, project, bad


def test_a_table_with_flipped_labels_is_improved(cancer):
    folder, project, bad = cancer
    assert enrichment(project, bad) > 3 and enrichment(project, bad, "mislabel_rank") > 4
    assert project.about["suggested"]["m"] > 0 and project.about["verification"]["tau"] > 0.5
    verdict = dross.judge(folder / "run", progress=False)
    assert verdict.verdict == "improved" and verdict.metrics["loss"].difference < 0
    assert set(verdict.recorded) == {"all", "last"} and len(verdict.per_class) == 2
    assert "improved" in verdict._repr_html_() and "improved" in repr(verdict)
    relabelled = dross.judge(folder / "run", relabel=20, quick=True, progress=False)
    assert relabelled.relabelled == 20 and relabelled.metrics["loss"].difference < 0
    both = edits.chosen(project, 20, 20, False)
    assert (
        "20 most harmful removed" in both.what and "in both lists only relabelled" in both.what
    )  # flipped labels are in both
    assert len(both.relabelled) == 20 > len(both.removed) and not set(both.removed) & set(
        both.relabelled
    )
    report = (folder / "run" / "report.html").read_text()
    assert "Most harmful" in report and report.count("<svg") == 4 and "<script" not in report
    assert len(project.verdicts()) == 2
    assert "make" not in report or "dross clean" in report
    scores = pandas.read_csv(folder / "run" / "scores.csv")
    assert len(scores) == len(bad) and set(project.instances.columns) <= set(scores.columns)


def test_a_judgement_that_was_stopped_goes_on_in_other_processes(cancer, monkeypatch):
    run = cancer[0] / "run"
    ask = lambda **options: dross.judge(
        run, remove=15, relabel=5, seeds=6, quick=True, progress=False, **options
    )
    whole, before = ask(), len(Project.open(run).verdicts())
    calls, train = [], judge.fit

    def stopped(*given, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*given, **options)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(judge, "fit", stopped)
        ask()
    (waiting,) = (run / "judging").glob("*/piece-*")
    assert (
        waiting.name == "piece-000000.safetensors" and len(Project.open(run).verdicts()) == before
    )
    again = ask(n_jobs=2)  # the second piece, in a worker
    assert again.metrics == whole.metrics and again.per_class == whole.per_class
    assert not (run / "judging").exists() and not (run / "judging.json").exists()


def test_the_project_shows_itself(cancer):
    _, project, _ = cancer
    assert "training instances" in repr(project) and "<table" in project._repr_html_()
    why = project.why(int(project.instances["harm_rank"].idxmin()))
    assert (
        len(why["similar"]) == 4 and why["hurts"] and all(verified for *_, verified in why["hurts"])
    )


def test_random_removal_from_clean_data_is_not_an_improvement(tmp_path):
    data = load_digits()
    frame = pandas.DataFrame(data.data[:900]).add_prefix("p").assign(digit=data.target[:900])
    frame.to_csv(tmp_path / "digits.csv", index=False)
    project = dross.clean(
        tmp_path / "digits.csv", "digit", task="classification", out=tmp_path / "run", **QUICK
    )
    chance = np.random.default_rng(3).choice(len(project.instances), 30, replace=False)
    project.decisions.record({int(k): ("remove", None) for k in chance})
    verdict = dross.judge(tmp_path / "run", decisions=True, progress=False)
    assert verdict.verdict != "improved" and verdict.removed == 30


def test_pictures_in_folders(tmp_path):
    from dross.demo import load_flipped_digits, write_pictures

    digits = load_flipped_digits()
    folders = write_pictures(digits, tmp_path / "digits")
    project = dross.clean(
        folders["train"],
        validation=str(folders["validation"]),
        test=str(folders["test"]),
        model="cnn",
        out=tmp_path / "run",
        runs=2,
        epochs=4,
        rate=0.05,
        verified=2,
        progress=False,
    )
    bad = np.array(
        [digits.flipped[int(name.split("/")[1][:4])] for name in project.instances["source"]]
    )
    assert enrichment(project, bad, "mislabel_rank") > 10
    assert (
        project.picture("train", 0)[:4] == b"\x89PNG"
        and project.picture("train", 10**6) is None
        and project.picture("../x", 0) is None
    )
    first = int(project.instances.sort_values("harm_rank").index[0])
    project.decisions.record({first: ("remove", None), 5: ("relabel", "7")})
    done = dross.export(tmp_path / "run", tmp_path / "cleaned")
    assert (
        done.written == 899
        and not (tmp_path / "cleaned" / project.instances["source"].loc[first]).exists()
    )
    assert (tmp_path / "cleaned" / "7" / project.instances["source"].loc[5].split("/")[1]).exists()
    project.decisions.record({6: ("remove", None)})
    assert dross.export(tmp_path / "run", tmp_path / "cleaned", overwrite=True).written == 898
    assert (
        len(list((tmp_path / "cleaned").rglob("*.png"))) == 898
    )  # nothing of the earlier copy is left
    assert len(list(folders["train"].rglob("*.png"))) == 900  # the input is as it was


def test_two_newsgroups_as_text(tmp_path):
    news = loaded_or_skip("20news")
    texts, labels = news.train
    pair = [news.classes.index(name) for name in ("rec.sport.hockey", "sci.space")]
    chosen = [k for k in range(len(labels)) if labels[k] in pair][:800]
    frame = pandas.DataFrame(
        {"post": [texts[k] for k in chosen], "group": [news.classes[labels[k]] for k in chosen]}
    )
    bad = parts_of(frame, "group", tmp_path, 0.1)
    project = dross.clean(
        tmp_path / "train.csv",
        "group",
        text="post",
        out=tmp_path / "run",
        runs=2,
        verified=4,
        progress=False,
        **files(tmp_path),
    )
    assert project.about["kind"] == "text" and enrichment(project, bad, "mislabel_rank") > 5
    verdict = dross.judge(tmp_path / "run", relabel=int(0.8 * bad.sum()), progress=False)
    assert verdict.verdict == "improved"
    words = project.why(int(project.instances["mislabel_rank"].replace(-1, 10**6).idxmin()))[
        "words"
    ]
    assert words and isinstance(words[0][0], str)


def test_a_sample_of_adult(tmp_path):
    adult = loaded_or_skip("adult")
    columns, labels = adult.train
    frame = (
        pandas.DataFrame(columns)
        .assign(income=np.array(adult.classes)[labels])
        .sample(1500, random_state=0)
    )
    bad = parts_of(frame, "income", tmp_path, 0.15)
    project = dross.clean(
        tmp_path / "train.csv",
        "income",
        out=tmp_path / "run",
        runs=3,
        verified=4,
        progress=False,
        **files(tmp_path),
    )
    assert enrichment(project, bad) > 1.5
    assert (
        dross.judge(tmp_path / "run", remove=int(0.6 * bad.sum()), progress=False).verdict
        == "improved"
    )


def test_a_number_to_predict(tmp_path):
    frame = load_diabetes(as_frame=True).frame
    frame.to_parquet(tmp_path / "diabetes.parquet")
    project = dross.clean(tmp_path / "diabetes.parquet", "target", out=tmp_path / "run", **QUICK)
    assert project.about["task"] == "regression" and project.classes == []
    verdict = dross.judge(tmp_path / "run", remove=10, quick=True, progress=False)
    assert 1000 < np.mean(verdict.metrics["loss"].before) < 9000  # squared units of the target
    assert 30 < np.mean(verdict.metrics["absolute error"].before) < 90  # its own units
    project.decisions.record({3: ("relabel", "120")})
    assert dross.judge(tmp_path / "run", decisions=True, quick=True, progress=False).relabelled == 1


def made_data():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 4)).astype(np.float32), rng.integers(0, 2, 200)
    x[:, 0] += 2 * y
    return {
        "train": (x[:120], y[:120]),
        "validation": (x[120:160], y[120:160]),
        "test": (x[160:], y[160:]),
        "classes": ["no", "yes"],
    }


def made_model():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def test_data_and_a_model_of_ones_own(tmp_path):
    project = dross.clean(
        "cleanse.test_clean:made_data",
        make="cleanse.test_clean:made_model",
        out=tmp_path / "run",
        **QUICK,
    )
    assert (
        project.about["kind"] == "custom"
        and project.classes == ["no", "yes"]
        and len(project.instances) == 120
    )
    assert dross.judge(tmp_path / "run", remove=5, seeds=2, progress=False).seeds == 2
    about = json.loads((tmp_path / "run" / "project.json").read_text())
    (tmp_path / "run" / "project.json").write_text(
        json.dumps(about | {"model_source": "of another day"})
    )
    with pytest.raises(TapeMismatch, match=r"cleanse\.test_clean:made_model has changed"):
        dross.judge(tmp_path / "run", remove=5, seeds=2, progress=False)
    with pytest.raises(BadInput, match="no file to copy"):
        dross.export(tmp_path / "run", tmp_path / "copy.csv", remove=5)
    for wrong, message in (
        ("nowhere:data", "no module"),
        ("cleanse.test_clean:nothing", "no function"),
        ("cleanse.test_clean:made_model", "must return a dict"),
    ):
        with pytest.raises(BadInput, match=message):
            dross.clean(wrong, out=tmp_path / "other", **QUICK)


# --- going on, going wrong ------------------------------------------------------------------------------------------------------------


def small_table(path, count=150, **more):
    rng = np.random.default_rng(0)
    size, colour = rng.normal(size=count), rng.choice(["red", "blue", None], count)
    kind = np.where(size + (colour == "red") > 0.3, "yes", "no")
    frame = pandas.DataFrame(
        {
            "size": size.round(3),
            "colour": colour,
            "when": pandas.date_range("2024-01-01", periods=count).strftime("%d.%m.%Y"),
            "kind": kind,
        }
    )
    frame.assign(**more).to_csv(path, index=False)
    return path


def test_an_interrupted_run_goes_on_and_a_finished_one_is_left_alone(tmp_path, monkeypatch):
    path, out = small_table(tmp_path / "t.csv"), tmp_path / "run"

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "curve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dross.clean(path, "kind", out=out, **QUICK)
    tape = json.loads((out / "runs" / "round-1" / "run-1" / "manifest.json").read_text())
    with pytest.raises(TapeDamaged, match="has not finished"):
        Project.open(out)
    project = dross.clean(path, "kind", out=out, **QUICK)
    assert (
        json.loads((out / "runs" / "round-1" / "run-1" / "manifest.json").read_text())["id"]
        == tape["id"]
    )  # not trained again
    made = project.about["made"], (out / "report.html").stat().st_mtime_ns
    project.decisions.record({3: ("keep", None)})
    again = dross.clean(path, "kind", out=out, **QUICK)
    assert (again.about["made"], (out / "report.html").stat().st_mtime_ns) == made
    with pytest.raises(BadInput, match="other data or with other settings"):
        dross.clean(path, "kind", out=out, **QUICK | {"runs": 1})
    dross.clean(path, "kind", out=out, overwrite=True, **QUICK | {"runs": 1})
    assert (
        list(out.glob("decisions-*.sqlite")) and not Project.open(out).decisions.current()
    )  # set aside, not deleted
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="not made by dross"):
        dross.clean(path, "kind", out=tmp_path / "mine", overwrite=True, **QUICK)


def test_rounds(tmp_path, monkeypatch):
    from dataclasses import replace

    real = pipeline.curve
    monkeypatch.setattr(pipeline, "curve", lambda *a, **k: replace(real(*a, **k), m=7))
    project = dross.clean(
        small_table(tmp_path / "t.csv"), "kind", out=tmp_path / "run", rounds=2, **QUICK
    )
    assert (
        project.about["suggested"]["m"] == 14
        and len(project.instances) == project.about["counts"]["train"]
    )
    first = project.instances.sort_values("harm_rank")
    assert (first["round"].head(7) == 1).all() and (first["round"].tail(len(first) - 7) == 2).all()
    assert sorted(project.instances["harm_rank"]) == list(range(len(first)))


def test_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small_table(tmp_path / "people.csv", size2=1.0)
    run = lambda *words: CliRunner().invoke(cli.app, list(map(str, words)), catch_exceptions=False)
    said = run(
        "clean",
        "people.csv",
        "--label",
        "kind",
        "--column",
        "when=ignore",
        "--runs",
        2,
        "--epochs",
        6,
        "--rate",
        0.1,
        "--verified",
        4,
    )
    assert (
        said.exit_code == 0
        and "Expected: about" in said.output
        and "dross review runs/people" in said.output
    )
    assert (
        "'size2' is left aside: always '1.0'" in said.output and "Categories: colour" in said.output
    )
    assert all(len(line) <= 80 for line in said.output.splitlines())
    judged = run("judge", "runs/people", "--remove", 5, "--seeds", 3)
    assert judged.exit_code == 0 and "on the test part" in judged.output
    exported = run("export", "runs/people", "cleaned.csv", "--remove", 5)
    assert exported.exit_code == 0 and "5 removed" in exported.output
    cleaned, original = pandas.read_csv("cleaned.csv"), pandas.read_csv("people.csv")
    assert len(cleaned) == len(original) - 5 and list(cleaned.columns) == list(original.columns)
    listed = pandas.read_csv("cleaned.csv-decisions.csv")
    assert (listed["decision"] == "remove").all() and len(listed) == 5
    with pytest.raises(BadInput, match="there already"):
        dross.export("runs/people", "cleaned.csv", remove=5)
    with pytest.raises(BadInput, match="the input itself"):
        dross.export("runs/people", "people.csv", remove=5, overwrite=True)
    if dross.Project.open("runs/people").about["suggested"]["m"] == 0:
        with pytest.raises(BadInput, match="nothing is suggested"):
            dross.export("runs/people", "other.csv")
    with pytest.raises(BadInput, match="end its name with"):
        dross.export("runs/people", "other.xlsx", remove=5)
    with pytest.raises(BadInput, match="Nothing has been removed"):
        dross.judge("runs/people", decisions=True)
    with pytest.raises(BadInput, match="between 1 and"):
        dross.judge("runs/people", remove=10**6)
    with pytest.raises(BadInput, match="at least 2 seeds"):
        dross.judge("runs/people", remove=3, seeds=1)
    small_table(tmp_path / "people.csv", size2=2.0, count=160)
    with pytest.raises(TapeMismatch, match="has changed since"):
        dross.judge("runs/people", remove=5)
    with pytest.raises(TapeMismatch, match="has changed since"):
        dross.export("runs/people", "late.csv", remove=5)


def test_the_copy_is_a_copy(tmp_path):
    """Types of a Parquet file, cells that look like missing ones, and rows that are not training rows all stay."""
    frame = pandas.DataFrame(
        {
            "x": np.random.default_rng(0).normal(size=150),
            "n": np.arange(150),
            "note": ["None", "NA", "-"] * 50,
        }
    )
    frame["kind"] = np.where(frame["x"] > 0, 1, 0)
    frame.to_parquet(tmp_path / "t.parquet")
    project = dross.clean(
        tmp_path / "t.parquet", "kind", task="classification", out=tmp_path / "run", **QUICK
    )
    project.decisions.record({0: ("relabel", "1"), 1: ("remove", None)})
    dross.export(tmp_path / "run", tmp_path / "out.parquet")
    copy = pandas.read_parquet(tmp_path / "out.parquet")
    assert copy.dtypes.equals(frame.dtypes) and len(copy) == 149
    first, second = (int(project.instances["source"].loc[k].split()[1]) - 2 for k in (0, 1))
    expected = frame.copy()
    expected.loc[first, "kind"] = 1
    pandas.testing.assert_frame_equal(copy, expected.drop(index=second).reset_index(drop=True))
    dross.export(tmp_path / "run", tmp_path / "out.csv")
    assert set(pandas.read_csv(tmp_path / "out.csv", keep_default_na=False)["note"]) == {
        "None",
        "NA",
        "-",
    }


def test_relabelled_pictures_do_not_overwrite_others(tmp_path):
    from dross.cleanse.export import _folder

    for kind in "ab":
        (tmp_path / "in" / kind).mkdir(parents=True)
        for k in range(2):
            (tmp_path / "in" / kind / f"{k}.png").write_text(f"{kind}{k}")
    assert _folder(tmp_path / "in", tmp_path / "out", set(), {"a/0.png": "b", "a/1.png": "b"}) == 4
    assert sorted(path.read_text() for path in (tmp_path / "out" / "b").iterdir()) == [
        "a0",
        "a1",
        "b0",
        "b1",
    ]


def test_a_run_at_a_lowered_rate_goes_on_at_that_rate(tmp_path, monkeypatch):
    real, tried = pipeline.score, []

    def diverging(recipe, *args, **kwargs):
        tried.append(recipe.rate)
        if len(tried) == 1:
            raise dross.errors.NotFinite("the loss of instance 3 is not finite", step=7)
        return real(recipe, *args, **kwargs)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "score", diverging)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(pipeline, "curve", interrupted)
        dross.clean(small_table(tmp_path / "t.csv"), "kind", out=tmp_path / "run", **QUICK)
    project = dross.clean(tmp_path / "t.csv", "kind", out=tmp_path / "run", **QUICK)
    assert tried == [0.05, 0.05 / 3, 0.05 / 3] and project.about["recipe"]["rate"] == 0.05 / 3


def test_an_attempt_that_failed_at_once_does_not_block_the_next(tmp_path):
    path = small_table(tmp_path / "t.csv")
    with pytest.raises(BadInput, match="takes pictures"):
        dross.clean(path, "kind", model="cnn", out=tmp_path / "run", **QUICK)
    dross.clean(path, "kind", out=tmp_path / "run", **QUICK)
    with pytest.raises(BadInput, match="A rate must be above 0"):
        dross.clean(path, "kind", out=tmp_path / "other", **QUICK | {"rate": -1.0})


def test_a_tampered_folder(tmp_path):
    out = tmp_path / "run"
    dross.clean(small_table(tmp_path / "t.csv"), "kind", out=out, **QUICK)
    (out / "instances.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(TapeDamaged, match="cannot be read"):
        Project.open(out).instances  # noqa: B018
    (out / "instances.parquet").unlink()
    with pytest.raises(TapeDamaged, match="missing"):
        dross.judge(out, remove=3)
    (out / "project.json").write_text("{")
    with pytest.raises(TapeDamaged, match="not readable JSON"):
        Project.open(out)
    (out / "project.json").write_text('{"made_by": "somebody"}')
    with pytest.raises(TapeDamaged, match="not written by dross"):
        Project.open(out)
    (out / "project.json").write_text('{"made_by": "dross", "format": 99}')
    with pytest.raises(TapeMismatch, match="format 99"):
        Project.open(out)


def test_a_hostile_cell_stays_text_in_the_report(tmp_path):
    hostile = "<img src=x onerror=alert(1)>"
    colours = np.where(np.arange(150) % 3 == 0, hostile, "\"quoted\" & 'so'")
    dross.clean(
        small_table(tmp_path / "t.csv", colour=colours, **{"<b>name": np.arange(150) % 7}),
        "kind",
        out=tmp_path / "run",
        **QUICK,
    )
    report = (tmp_path / "run" / "report.html").read_text()
    assert hostile not in report and "&lt;img src=x" in report and "<b>name" not in report


def test_a_run_that_diverges_is_tried_once_more_at_a_third_of_the_rate(tmp_path):
    said: list[str] = []
    frame = pandas.DataFrame({"x": np.random.default_rng(0).normal(size=200)})
    frame.assign(y=3 * frame["x"] + 1).to_csv(tmp_path / "line.csv", index=False)
    with pytest.raises(dross.DrossError, match="diverge"):
        dross.clean(
            tmp_path / "line.csv",
            "y",
            model="linear",
            out=tmp_path / "run",
            say=said.append,
            **QUICK | {"rate": 1e4},
        )
    assert len(list(tmp_path.glob("line.csv"))) == 1


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(StorageFailed, match="No space left"):
        dross.clean(small_table(tmp_path / "t.csv"), "kind", out=tmp_path / "run", **QUICK)


WRONG = {
    "no such file": (None, {}, "There is no file"),
    "empty": (b"", {}, "is empty"),
    "not a table": (b"\x00\x01\x02\xff" * 50, {}, "not a text file"),
    "no such column": (b"a,kindd\n" + b"1,x\n2,y\n" * 40, {}, "Did you mean 'kindd'"),
    "wrong separator": (b"a^kind\n" + b"1^x\n2^y\n" * 40, {}, "read as one column"),
    "one class": (b"a,kind\n" + b"1,x\n2,x\n" * 40, {}, "'x' everywhere"),
    "too few": (b"a,kind\n" + b"1,x\n2,y\n" * 5, {}, "needs at least"),
    "nothing to learn from": (b"a,kind\n" + b"1,x\n1,y\n" * 40, {}, "No column is left"),
    "an identifier for a label": (
        b"a,kind\n" + b"".join(b"%d,n%d\n" % (k % 5, k) for k in range(90)),
        {},
        "too many to be classes",
    ),
    "not numbers": (b"a,kind\n" + b"1,x\n2,y\n" * 40, {"task": "regression"}, "is to be a number"),
    "longer than the header": (b"a,kind\n" + b"1,x,9\n2,y,9\n" * 40, {}, "as many cells"),
    "ragged": (b"a,kind\n" + b"1,x\n2,y\n" * 40 + b"1,2,3,4\n", {}, "as many cells"),
    "an unknown kind of column": (
        b"a,kind\n" + b"1,x\n2,y\n" * 40,
        {"columns": {"a": "numbr"}},
        "Did you mean 'number'",
    ),
    "an unknown model": (b"a,kind\n" + b"1,x\n2,y\n" * 40, {"model": "mpl"}, "Did you mean 'mlp'"),
    "no label given": (b"a,kind\n" + b"1,x\n2,y\n" * 40, {"label": None}, "--label"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_told_before_anything_is_written(tmp_path, case):
    content, options, message = WRONG[case]
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        dross.clean(path, **{"label": "kind", "out": tmp_path / "run", "progress": False} | options)
    assert not (tmp_path / "run").exists()


def test_what_is_inferred_from_awkward_tables(tmp_path):
    rows = 120
    frame = pandas.DataFrame(
        {
            "id": np.arange(rows),
            "all missing": None,
            "mostly numbers": [
                "n/k" if k % 43 == 3 else "?" if k == 7 else str(k) for k in range(rows)
            ],
            "day": pandas.date_range("2020-03-01", periods=rows),
            "yes or no": np.where(np.arange(rows) % 2, "y", "n"),
            "name": [f"person {k}" for k in range(rows)],
            "wild": np.r_[np.ones(rows - 1), 1e30],
            "größe": np.random.default_rng(0).normal(size=rows),
            "kind": np.where(np.arange(rows) % 3 == 0, "a", "b"),
        }
    )
    frame = pandas.concat([frame, frame.head(3)])
    path = tmp_path / "t.csv"
    path.write_bytes(frame.to_csv(index=False, sep=";").encode("cp1252"))
    prepared = inputs_load.prepare(inputs_load.Request(str(path), "kind"))
    kinds = {column.name: column.kind for column in prepared.columns}
    assert kinds == {
        "id": "number",
        "all missing": "ignore",
        "mostly numbers": "number",
        "day": "date",
        "yes or no": "category",
        "name": "ignore",
        "wild": "number",
        "größe": "number",
    }
    told = " ".join(prepared.notes)
    assert (
        "not UTF-8" in told
        and "separated by ';'" in told
        and "3 rows are exact copies" in told
        and "count as missing" in told
    )
    assert all(torch.isfinite(x).all() and x.abs().max() <= 8 for x in prepared.x.values())
    sizes = {part: len(ids) for part, ids in prepared.parts.items()}
    assert sum(sizes.values()) == rows + 3 and not set(prepared.parts["train"]) & set(
        prepared.parts["test"]
    )
    for part in source.PARTS:
        share = (prepared.part(part).labels == "a").mean()
        assert share == pytest.approx(1 / 3, abs=0.05)


def test_a_class_too_rare_for_every_part_is_used_for_training(tmp_path):
    labels = ["a"] * 60 + ["b"] * 60 + ["once"]
    pandas.DataFrame({"x": np.arange(121) % 13, "kind": labels}).to_csv(
        tmp_path / "t.csv", index=False
    )
    prepared = inputs_load.prepare(inputs_load.Request(str(tmp_path / "t.csv"), "kind"))
    assert "once" in prepared.part("train").labels and "Too rare" in " ".join(prepared.notes)
    pandas.DataFrame({"x": [1, 2] * 30, "kind": ["a", "zebra"] * 30}).to_csv(
        tmp_path / "test.csv", index=False
    )
    with pytest.raises(BadInput, match="zebra"):
        inputs_load.prepare(
            inputs_load.Request(str(tmp_path / "t.csv"), "kind", test=str(tmp_path / "test.csv"))
        )


def test_pictures_that_cannot_be_opened(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for k in range(30):
            Image.fromarray(rng.integers(0, 255, (20 + k % 3, 24, 3), dtype=np.uint8)).save(
                tmp_path / "pets" / kind / f"{k}.png"
            )
    whole = (tmp_path / "pets" / "cat" / "0.png").read_bytes()
    (tmp_path / "pets" / "cat" / "0.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "pets" / "dog" / "1.png").write_bytes(b"")
    prepared = inputs_load.prepare(inputs_load.Request(str(tmp_path / "pets")))
    assert len(prepared.source) == 58 and "2 pictures cannot be opened" in " ".join(prepared.notes)
    assert prepared.shape == (3, 32, 32)  # of different sizes: all made equal
    listing = pandas.DataFrame(
        {
            "file": [f"cat/{k}.png" for k in range(1, 30)] + [f"dog/{k}.png" for k in range(2, 30)],
            "pet": ["cat"] * 29 + ["dog"] * 28,
        }
    )
    listing.to_csv(tmp_path / "pets" / "list.csv", index=False)
    table = inputs_load.prepare(
        inputs_load.Request(str(tmp_path / "pets" / "list.csv"), "pet", images="file")
    )
    assert len(table.source) == 57 and table.source.kind == "images"
    (tmp_path / "none").mkdir()
    with pytest.raises(BadInput, match="no pictures under"):
        inputs_load.prepare(inputs_load.Request(str(tmp_path / "none")))
    (tmp_path / "pets" / "loose.png").write_bytes(whole)
    with pytest.raises(BadInput, match="lies directly in"):
        inputs_load.prepare(inputs_load.Request(str(tmp_path / "pets")))
    for kind in ("cat", "dog"):
        for path in (tmp_path / "pets" / kind).iterdir():
            path.write_bytes(b"nonsense")
    (tmp_path / "pets" / "loose.png").unlink()
    with pytest.raises(BadInput, match="cannot be opened"):
        inputs_load.prepare(inputs_load.Request(str(tmp_path / "pets")))


def test_separators_are_found():
    assert (
        tables._separator("a;b;c\n1,5;2;3\n") == ";"
        and tables._separator("a\tb\n1\t2\n") == "\t"
        and tables._separator("a|b\n1|2\n") == "|"
    )
    assert tables._separator("a,b\n1,2\n") == ","
