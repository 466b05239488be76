"""dross clean: it goes on after an interruption, tries again, and refuses what it cannot use."""

import json

import numpy as np
import pandas
import pytest

import dross
from dross.cleaning import examine
from dross.cleaning.project import Project
from dross.errors import DrossError, InputChanged, InvalidInput
from tests.cleaning.made_inputs import QUICK, interrupted, set_in_json, small_table


def test_data_and_a_model_of_ones_own(tmp_path):
    project = dross.clean(
        "tests.cleaning.made_inputs:made_data",
        make="tests.cleaning.made_inputs:made_model",
        out=tmp_path / "run",
        **QUICK,
    )
    assert project.info.kind == "custom" and project.classes == ["no", "yes"]
    assert len(project.table) == 120
    code = ["tests.cleaning.made_inputs:made_data", "tests.cleaning.made_inputs:made_model"]
    judge = lambda: dross.judge(
        tmp_path / "run", remove=5, seeds=2, progress=False, trust_code=code
    )
    assert judge().seeds == 2
    set_in_json(tmp_path / "run" / "project.json", model_source="of another day")
    with pytest.raises(InputChanged, match=r"cleaning\.made_inputs:made_model has changed"):
        judge()
    with pytest.raises(InvalidInput, match="no file to copy"):
        dross.export(tmp_path / "run", tmp_path / "copy.csv", remove=5)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("nowhere:data", "no module"),
        ("tests.cleaning.made_inputs:nothing", "no function"),
        ("tests.cleaning.made_inputs:made_model", "must return a dict"),
    ],
)
def test_a_function_that_does_not_give_data_is_refused(tmp_path, data, message):
    with pytest.raises(InvalidInput, match=message):
        dross.clean(data, out=tmp_path / "other", **QUICK)


def test_an_interrupted_run_goes_on_and_a_finished_one_is_left_alone(tmp_path, monkeypatch):
    path, out = small_table(tmp_path / "t.csv"), tmp_path / "run"
    quick = QUICK | {"model": "linear", "check": 1}
    clean = lambda **options: dross.clean(path, "kind", out=out, **quick | options)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(examine, "verify", interrupted)
        clean()
    manifest = out / "runs" / "run-1" / "manifest.json"
    tape = json.loads(manifest.read_text())
    with pytest.raises(InvalidInput, match="has not finished"):
        Project.open(out)
    project = clean()
    assert json.loads(manifest.read_text())["id"] == tape["id"]  # not trained again
    made = project.info.made, (out / "report.html").stat().st_mtime_ns
    project.decisions.record({3: ("keep", None)})
    assert (clean().info.made, (out / "report.html").stat().st_mtime_ns) == made
    with pytest.raises(InvalidInput, match="other data or other settings"):
        clean(repeats=1)
    clean(repeats=1, overwrite=True)
    assert list(out.glob("decisions-*.sqlite"))  # set aside, not deleted
    assert not Project.open(out).decisions.current()


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path):
    path = small_table(tmp_path / "t.csv")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInput, match="not made by dross"):
        dross.clean(path, "kind", out=tmp_path / "mine", overwrite=True, **QUICK)


def test_a_run_at_a_lowered_rate_goes_on_at_that_rate(tmp_path, monkeypatch):
    real, tried = examine.score, []

    def diverging(recipe, *args, **kwargs):
        tried.append(recipe.rate)
        if len(tried) == 1:
            raise dross.errors.Diverged("the loss of instance 3 is not finite", step=7)
        return real(recipe, *args, **kwargs)

    monkeypatch.setattr(examine, "score", diverging)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(examine, "verify", interrupted)
        dross.clean(small_table(tmp_path / "t.csv"), "kind", out=tmp_path / "run", **QUICK)
    project = dross.clean(tmp_path / "t.csv", "kind", out=tmp_path / "run", **QUICK)
    assert tried == [0.05, 0.05 / 3, 0.05 / 3] and project.info.training.recipe.rate == 0.05 / 3


def test_an_attempt_that_failed_at_once_does_not_block_the_next(tmp_path):
    path = small_table(tmp_path / "t.csv")
    with pytest.raises(InvalidInput, match="takes images"):
        dross.clean(path, "kind", model="cnn", out=tmp_path / "run", **QUICK)
    dross.clean(path, "kind", out=tmp_path / "run", **QUICK)
    with pytest.raises(InvalidInput, match="`lr` must be above 0"):
        dross.clean(path, "kind", out=tmp_path / "other", **QUICK | {"lr": -1.0})


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
            **QUICK | {"lr": 1e4},
        )
    assert len(list(tmp_path.glob("line.csv"))) == 1


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(DrossError, match="No space left"):
        dross.clean(small_table(tmp_path / "t.csv"), "kind", out=tmp_path / "run", **QUICK)


TWO_CLASSES = b"a,kind\n" + b"1,x\n2,y\n" * 40
WRONG = {
    "no such file": (None, {}, "There is no file"),
    "empty": (b"", {}, "is empty"),
    "not a table": (b"\x00\x01\x02\xff" * 50, {}, "not a text file"),
    "no such column": (b"a,kindd\n" + b"1,x\n2,y\n" * 40, {}, "Did you mean 'kindd'"),
    "wrong separator": (b"a^kind\n" + b"1^x\n2^y\n" * 40, {}, "has one column, named"),
    "one class": (b"a,kind\n" + b"1,x\n2,x\n" * 40, {}, "'x' in every row"),
    "too few": (b"a,kind\n" + b"1,x\n2,y\n" * 5, {}, "needs at least"),
    "nothing to learn from": (b"a,kind\n" + b"1,x\n1,y\n" * 40, {}, "No column is left"),
    "an identifier for a label": (
        b"a,kind\n" + b"".join(b"%d,n%d\n" % (k % 5, k) for k in range(90)),
        {},
        "too many to be classes",
    ),
    "not numbers": (TWO_CLASSES, {"task": "regression"}, "must be a number"),
    "longer than the header": (
        b"a,kind\n" + b"1,x,9\n2,y,9\n" * 40,
        {},
        "but the first has",
    ),
    "ragged": (TWO_CLASSES + b"1,2,3,4\n", {}, "but the first has"),
    "an unknown kind of column": (
        TWO_CLASSES,
        {"columns": {"a": "numbr"}},
        "Did you mean 'number'",
    ),
    "an unknown model": (TWO_CLASSES, {"model": "mpl"}, "Did you mean 'mlp'"),
    "too many epochs": (
        TWO_CLASSES,
        {"epochs": 10**40},
        "`epochs` must be at most 1,000,000, not 1",
    ),
    "no epochs": (TWO_CLASSES, {"epochs": 0}, "`epochs` must be a whole number of at least 1"),
    "too large a batch": (TWO_CLASSES, {"batch_size": 10**40}, "at most .*in memory at once"),
    "too many runs": (
        TWO_CLASSES,
        {"repeats": 10**6},
        "`repeats` must be at most 1,000, not 1000000",
    ),
    "unknown labels": (TWO_CLASSES, {"labels": "guessed"}, "labels.*annotated.*observed"),
    "half a run": (TWO_CLASSES, {"repeats": 1.5}, "`repeats` must be a whole number of at least 1"),
    "no label given": (TWO_CLASSES, {"label": None}, "as `label`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, case):
    content, options, message = WRONG[case]
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        dross.clean(path, **{"label": "kind", "out": tmp_path / "run", "progress": False} | options)
    assert not (tmp_path / "run").exists()
