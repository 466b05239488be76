"""`dross compare`: how two versions of a dataset are matched, and what is judged."""

import json

import numpy as np
import pandas
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import dross
from dross.cleaning import compare, judge
from dross.cleaning.compare import Change, judge_change, read_change
from dross.cleaning.estimators import Estimators, find_model
from dross.cleaning.inputs import Request
from dross.cleaning.task import CLASSIFICATION
from dross.cleaning.training import Recipe
from tests.cleaning.made_judgments import know_noise, overlapping, prepare
from tests.quick_cleaning import quick_cleaning

COUNT = 160


@pytest.fixture
def frame():
    """Rows with two features, a key and a label."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, 2)).round(3)
    label = np.where(x.sum(1) > 0, "yes", "no")
    keys = [f"k{number}" for number in range(COUNT)]
    return pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "key": keys, "label": label})


@pytest.fixture
def read(tmp_path):
    """Reads two frames as files; the change between them."""

    def read(before, after, **options):
        before.to_csv(tmp_path / "before.csv", index=False)
        after.to_csv(tmp_path / "after.csv", index=False)
        request = Request(
            str(tmp_path / "before.csv"), "label", after=str(tmp_path / "after.csv"), **options
        )
        return read_change(request)

    return read


# --- which row is which ---------------------------------------------------------------------------


def edit(frame):
    """Rows 3 and 4 removed, row 5 relabeled, and a new row."""
    after = frame.drop(index=[3, 4])
    after.loc[5, "label"] = "yes" if frame["label"][5] == "no" else "no"
    new = frame.iloc[[7]].assign(a=9.0, key="new")
    return pandas.concat([after, new])


@pytest.mark.parametrize("key", [None, "key"])
def test_shuffled_rows_are_matched(frame, read, key):
    after = edit(frame).sample(frac=1, random_state=0)
    data, change, new = read(frame, after, key=key)
    label = edit(frame).loc[5, "label"]
    assert change == Change(removed=[3, 4], relabeled={5: label}, edited={}, added=[COUNT])
    assert new.content["a"].tolist() == ["9.0"] and len(data.part("train")) == COUNT + 1
    assert data.part("train").labels[5] == frame["label"][5]


def test_numbers_that_are_written_differently_are_the_same(frame, read):
    after = frame.assign(a=[f"{value:.5f}" for value in frame["a"]])
    after = after.iloc[:-1]
    _, change, _ = read(frame, after)
    assert change.removed == [COUNT - 1] and not change.edited and not change.added


def test_edited_rows_that_stay_in_their_place_are_one_change(frame, read):
    after = frame.copy()
    after.loc[[8, 9], "b"] = 7.5
    _, change, _ = read(frame, after)
    assert change.edited == {8: COUNT, 9: COUNT + 1} and change.counts["removed"] == 0
    assert _ids(read(frame, after, key="key")[1]) == _ids(change)


def test_a_key_finds_edited_rows_anywhere(frame, read):
    after = frame.copy()
    after.loc[[8, 9], "b"] = 7.5
    after.loc[9, "label"] = "no"
    after = after.drop(index=[0]).sample(frac=1, random_state=1)
    _, change, new = read(frame, after, key="key")
    assert set(change.edited) == {8, 9} and change.removed == [0] and not change.relabeled
    assert sorted(new.content["key"]) == ["k8", "k9"]


def _ids(change):
    return change.removed, set(change.edited), change.added, set(change.relabeled)


def test_copies_are_matched_one_by_one_with_their_own_label_first(frame, read):
    copied = frame.drop(columns="key")
    copied = pandas.concat([copied, copied.iloc[[0, 0]]], ignore_index=True)
    other = "no" if copied["label"][0] == "yes" else "yes"
    copied.loc[COUNT, "label"] = other
    after = copied.drop(index=[COUNT + 1])
    _, change, _ = read(copied, after)
    assert len(change.removed) == 1 and not change.relabeled and not change.added


def test_moved_images_are_relabeled(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(60):
        pixels = rng.integers(0, 255, (12, 12), dtype=np.uint8)
        for version in ("before", "after"):
            label = "ab"[number % 2] if number != 10 or version == "before" else "b"
            if number == 11 and version == "after":
                continue
            folder = tmp_path / version / label
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    request = Request(str(tmp_path / "before"), after=str(tmp_path / "after"))
    data, change, _ = read_change(request)
    paths = data.part("train").content["path"].tolist()
    assert [paths[id] for id in change.removed] == ["b/11.png"]
    assert {paths[id]: label for id, label in change.relabeled.items()} == {"a/10.png": "b"}


# --- what cannot be compared ----------------------------------------------------------------------


def test_the_same_data_are_nothing_to_compare(frame, read):
    with pytest.raises(dross.InvalidInput, match="same rows with the same labels"):
        read(frame, frame.sample(frac=1, random_state=0))


def test_other_data_are_refused(frame, read):
    after = frame.sample(frac=1, random_state=0).iloc[:-1].assign(a=lambda f: f["a"] + 1)
    with pytest.raises(dross.InvalidInput, match=r"after.csv and .* have no rows in common.*`key`"):
        read(frame, after)


def test_a_key_must_identify_rows(frame, read):
    after = frame.copy()
    after.loc[4, "key"] = "k5"
    with pytest.raises(dross.InvalidInput, match=r"'key' is 'k5' in 2 rows of .*after.csv"):
        read(frame, after, key="key")
    with pytest.raises(dross.InvalidInput, match="nothere"):
        read(frame, edit(frame), key="nothere")


def test_an_unknown_class_is_refused(frame, read):
    after = frame.copy()
    after.loc[4, "label"] = "maybe"
    with pytest.raises(dross.InvalidInput, match="maybe"):
        read(frame, after)


# --- the judgment --------------------------------------------------------------------------------


class Spy(GaussianNB):
    """Writes down the numbers of the rows that it is fitted on, their labels, and those asked."""

    fitted: list = []  # noqa: RUF012
    asked: list = []  # noqa: RUF012

    def fit(self, x, y):
        Spy.fitted.append(dict(zip(x[:, 0].round().astype(int).tolist(), y.tolist())))
        Spy.sizes.append(len(y))
        return super().fit(x, y)

    def predict_proba(self, x):
        Spy.asked.append(set(x[:, 0].round().astype(int).tolist()))
        return super().predict_proba(x)

    sizes: list = []  # noqa: RUF012


def test_what_the_models_learn(monkeypatch):
    """Before: the old rows. After: the change. The control: as many random changes."""
    monkeypatch.setattr(Estimators, "try_seeds", lambda *given: (True, []))
    monkeypatch.setattr(judge, "estimate_label_noise", lambda rows, *_, **__: know_noise(rows, 0.1))
    Spy.fitted, Spy.asked, Spy.sizes = [], [], []
    x, y, _ = overlapping(60)
    numbered = np.column_stack([np.arange(60), x]).astype(np.float32)
    data = prepare(numbered, y, 60)
    relabeled = {7: str(1 - y[7])}
    change = Change(removed=[0, 1, 2], relabeled=relabeled, edited={9: 58}, added=[59])
    judgment = judge_change(
        data,
        change,
        Recipe("linear", (numbered.shape[1],), 2),
        groups=np.arange(60),
        what="a change",
        label_kind="observed",
        seeds=2,
        assignments=1,
        blind=True,
        model=find_model(Spy(), CLASSIFICATION),
    )
    judgment.measure()
    assert len(Spy.fitted) == 2 * 5 * 3
    for start in range(0, len(Spy.fitted), 3):
        before, after, control = Spy.fitted[start : start + 3]
        asked = Spy.asked[start]
        assert not asked & (set(before) | set(after) | set(control))
        assert not asked & {9, 58, 59}  # edited and new rows are not measured
        held = set(range(58)) - set(before)
        assert asked == held - {9}
        new = {58, 59} & set(after)
        assert not new & set(before) and not new & set(control)
        assert (58 in after) == (9 in before)  # an edited row is held out with the old one
        assert set(after) == (set(before) - {0, 1, 2, 9}) | new
        differs = {id for id in set(after) & set(before) if after[id] != before[id]}
        assert differs == {7} & set(before)
        removed = len({0, 1, 2, 9} & set(before))
        assert Spy.sizes[start + 2] == len(before) - removed + len(new)
    assert set().union(*Spy.asked) == set(range(58)) - {9}


def test_a_test_set_is_what_counts(frame, tmp_path):
    """With one, every row of the version before is trained on and none is measured."""
    after = edit(frame)
    frame.to_csv(tmp_path / "before.csv", index=False)
    after.to_csv(tmp_path / "after.csv", index=False)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(90, 2))
    test = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "key": "t"})
    test.assign(label=np.where(x.sum(1) > 0, "yes", "no")).to_csv(tmp_path / "t.csv", index=False)
    with quick_cleaning():
        verdict = dross.compare(
            tmp_path / "before.csv",
            tmp_path / "after.csv",
            "label",
            test=tmp_path / "t.csv",
            out=tmp_path / "out",
            columns={"key": "ignore"},
            estimator=LogisticRegression(),
            seeds=2,
            progress=False,
        )
    assert verdict.rows == 90 and not verdict.nested
    assert (verdict.removed, verdict.relabeled, verdict.added, verdict.edited) == (2, 1, 1, 0)


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """A table with a fifth of the labels wrong, its correction, and a worse version of it."""
    folder = tmp_path_factory.mktemp("versions")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).round(4)
    right = np.where(x.sum(1) + 0.3 * rng.normal(size=400) > 0, "yes", "no")
    other = np.where(right == "yes", "no", "yes")
    wrong = rng.random(400) < 0.2
    given = np.where(wrong, other, right)
    base = pandas.DataFrame(x, columns=["a", "b", "c"])
    base.assign(label=given).to_csv(folder / "before.csv", index=False)
    base.assign(label=right).to_csv(folder / "corrected.csv", index=False)
    worse = np.where(~wrong & (rng.random(400) < 0.35), other, given)
    base.assign(label=worse).to_csv(folder / "worse.csv", index=False)
    return folder


def test_a_correction_improves_and_damage_is_worse(versions, run, monkeypatch):
    monkeypatch.chdir(versions)
    files = {path: path.read_bytes() for path in versions.glob("*.csv")}
    given = ["--label", "label", "--seeds", 2, "--labels", "annotated", "--fail-if-worse"]
    given += ["--estimator", "sklearn:LogisticRegression", "--quick"]
    with quick_cleaning():
        code, said = run("compare", "before.csv", "corrected.csv", *given, "--json", "--blind")
        assert code == 0
        found = json.loads(said[said.index("{") : said.rindex("}") + 1])
        assert found["verdict"] == "improved" and found["relabeled"] > 50
        code, said = run("compare", "before.csv", "corrected.csv", *given, "--overwrite")
        assert code == 0 and said.index("Inconclusive.") and "--blind" in said
        code, said = run("compare", "before.csv", "worse.csv", *given)
    assert code == 3 and "Worse." in said and "relabeled" in said
    assert {path: path.read_bytes() for path in versions.glob("*.csv")} == files
    summary = (versions / "runs/before-to-worse/summary.md").read_text()
    assert summary.startswith("**Worse.**") and "| error |" in summary
    page = (versions / "runs/before-to-worse/report.html").read_text()
    assert "before.csv → worse.csv" in page and "row " in page
    kept = json.loads((versions / "runs/before-to-worse/comparison.json").read_text())
    assert kept["verdict"]["verdict"] == "worse" and len(kept["change"]["relabeled"]) > 50


def test_a_folder_with_other_results_is_kept(versions, run, monkeypatch):
    monkeypatch.chdir(versions)
    (versions / "mine").mkdir()
    (versions / "mine/notes.txt").write_text("mine")
    given = ["--label", "label", "--seeds", 2, "--out", "mine"]
    code, said = run("compare", "before.csv", "worse.csv", *given)
    assert code == 1 and "was not made by dross" in said
    assert [path.name for path in (versions / "mine").iterdir()] == ["notes.txt"]


def test_data_from_memory(frame, tmp_path):
    with quick_cleaning():
        verdict = dross.compare(
            frame.drop(columns="key"),
            edit(frame).drop(columns="key"),
            "label",
            out=tmp_path / "out",
            estimator=LogisticRegression(),
            seeds=2,
            quick=True,
            progress=False,
        )
    assert verdict.rows == COUNT and verdict.removed == 2 and verdict.added == 1
    assert compare.COMPARISON in {path.name for path in (tmp_path / "out").iterdir()}
