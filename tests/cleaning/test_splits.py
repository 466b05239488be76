"""Groups are held out together, and with a time column the newest rows are the test set."""

import numpy as np
import pandas
import pytest
from sklearn.neighbors import KNeighborsClassifier

import dross
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.label_noise import Rows, assign_folds
from dross.cleaning.splits import hold_out_groups, join_groups
from tests.quick_cleaning import quick_cleaning

PEOPLE = 60


def write(path, frame):
    frame.to_csv(path, index=False)
    return str(path)


@pytest.fixture
def patients():
    """Five rows of each patient: alike, and with a label that follows from nothing else.

    A model that knows a patient is nearly always right; for new patients it can only guess.
    """
    rng = np.random.default_rng(0)
    own = rng.normal(size=(PEOPLE, 8))
    label = rng.integers(0, 2, PEOPLE)
    who = np.repeat(np.arange(PEOPLE), 5)
    x = own[who] + 0.3 * rng.normal(size=(len(who), 8))  # too far apart to count as copies
    frame = pandas.DataFrame(x, columns=list("abcdefgh")).assign(patient=[f"p{id}" for id in who])
    return frame.assign(label=np.array(["ill", "well"])[label[who]]).sample(frac=1, random_state=1)


# --- groups ---------------------------------------------------------------------------------------


def test_groups_are_joined_by_one_or_the_other():
    copies = np.array([0, 1, 1, 3, 4, 5])
    named = np.array(["a", "a", "b", "b", "", ""], dtype=object)
    assert join_groups(copies, named).tolist() == [0, 0, 0, 0, 4, 5]
    assert join_groups(copies, None) is copies
    alone = np.array([""] * 6, dtype=object)
    assert join_groups(copies, alone).tolist() == copies.tolist()


def test_random_groups_are_held_out_whole():
    groups = np.repeat(np.arange(40), 3)
    held = hold_out_groups(groups, 0.2, np.random.default_rng(0))
    assert 0.15 <= held.mean() <= 0.25
    assert not set(groups[held]) & set(groups[~held])


def test_folds_do_not_cut_groups(patients, tmp_path):
    request = Request(write(tmp_path / "p.csv", patients), "label", group="patient")
    data = prepare(request)
    train = data.part("train")
    assert train.groups is not None
    assert next(one for one in data.columns if one.name == "patient").kind == "ignore"
    rows = Rows.of(
        data.x["train"].numpy(),
        data.y["train"].numpy(),
        2,
        groups=join_groups(np.arange(len(train)), train.groups),
    )
    fold = assign_folds(rows, 5, 0)
    for group in set(train.groups):
        assert len(set(fold[train.groups == group])) == 1


def test_a_random_split_is_wrong_by_a_known_amount(patients, tmp_path):
    """The error for new patients is about a half; that for known ones nearly 0."""
    path = write(tmp_path / "p.csv", patients)
    errors = {}
    for group in (None, "patient"):
        with quick_cleaning():
            project = dross.clean(
                path,
                "label",
                out=tmp_path / f"run-{group}",
                group=group,
                columns={} if group else {"patient": "ignore"},
                labels="annotated",
                repeats=1,
                epochs=5,
                lr=0.1,
                progress=False,
            )
            verdict = project.judge(
                remove=5, quick=True, progress=False, estimator=KNeighborsClassifier(1)
            )
        errors[group] = np.mean(verdict.metrics["error"].before)
    assert errors[None] < 0.1
    assert 0.35 < errors["patient"] < 0.65


def test_a_column_that_looks_like_a_group_is_named(patients, tmp_path):
    data = prepare(Request(write(tmp_path / "p.csv", patients), "label"))
    assert any("`group='patient'`" in note for note in data.notes)
    every = patients.assign(patient=range(len(patients)))
    data = prepare(Request(write(tmp_path / "q.csv", every), "label"))
    assert not any("group=" in note for note in data.notes)


def test_groups_of_a_test_file_that_models_know_are_counted(patients, tmp_path):
    known = set(patients["patient"][:50])
    half = patients[patients["patient"].isin(known)].iloc[:120]
    rest = patients.drop(index=half.index)
    path = write(tmp_path / "train.csv", half)
    test = write(tmp_path / "test.csv", rest)
    data = prepare(Request(path, "label", test=test, group="patient"))
    shared = int(rest["patient"].isin(set(half["patient"])).sum())
    assert shared
    expected = f"{shared} of {len(rest)} test rows share a value of 'patient'"
    assert any(expected in note for note in data.notes)


def test_few_groups_and_unknown_columns_are_refused(patients, tmp_path):
    few = write(tmp_path / "few.csv", patients.assign(patient=np.arange(len(patients)) % 3))
    with pytest.raises(dross.InvalidInput, match="'patient' has only 3 groups"):
        prepare(Request(few, "label", group="patient"))
    with pytest.raises(dross.InvalidInput, match="nobody"):
        prepare(Request(few, "label", group="nobody"))
    with pytest.raises(dross.InvalidInput, match="is the label"):
        prepare(Request(few, "label", group="label"))


# --- time -----------------------------------------------------------------------------------------


@pytest.fixture
def changing():
    """What was yes becomes no in the newest fifth."""
    rng = np.random.default_rng(0)
    count = 300
    x = rng.normal(size=(count, 3))
    day = np.arange(count)
    says = (x[:, 0] > 0) ^ (day >= 0.8 * count)
    dates = pandas.Timestamp("2024-01-01") + pandas.to_timedelta(day, unit="D")
    frame = pandas.DataFrame(x, columns=list("abc")).assign(made=dates.strftime("%d.%m.%Y"))
    return frame.assign(label=np.where(says, "yes", "no")).sample(frac=1, random_state=2)


def test_the_newest_rows_are_the_test_set(changing, tmp_path):
    data = prepare(Request(write(tmp_path / "c.csv", changing), "label", time="made"))
    test = pandas.to_datetime(data.part("test").content["made"], format="%d.%m.%Y")
    train = pandas.to_datetime(data.part("train").content["made"], format="%d.%m.%Y")
    assert len(test) == 60 and train.max() < test.min()
    assert any("newest 60 of 300 rows by 'made' are the test set" in note for note in data.notes)


def test_the_future_is_judged_and_not_the_past(changing, tmp_path):
    """Models of the past are nearly always wrong; a random split would say about a fifth."""
    path = write(tmp_path / "c.csv", changing)
    errors = {}
    for time in (None, "made"):
        with quick_cleaning():
            project = dross.clean(
                path,
                "label",
                out=tmp_path / f"run-{time}",
                time=time,
                columns={"made": "ignore"},
                repeats=1,
                epochs=5,
                lr=0.1,
                progress=False,
            )
            verdict = project.judge(
                remove=5, quick=True, progress=False, estimator=KNeighborsClassifier(9)
            )
        errors[time] = np.mean(verdict.metrics["error"].before)
    assert 0.15 < errors[None] < 0.35
    assert errors["made"] > 0.8


def test_the_copy_keeps_the_newest_rows(changing, tmp_path):
    path = write(tmp_path / "c.csv", changing)
    with quick_cleaning():
        project = dross.clean(
            path,
            "label",
            out=tmp_path / "run",
            time="made",
            repeats=1,
            epochs=3,
            lr=0.1,
            progress=False,
        )
    project.export(tmp_path / "cleaned.csv", remove=7)
    assert len(pandas.read_csv(tmp_path / "cleaned.csv")) == len(changing) - 7


def test_times_must_be_times_and_differ(changing, tmp_path):
    words = write(tmp_path / "words.csv", changing.assign(made="soon"))
    with pytest.raises(dross.InvalidInput, match="neither dates nor numbers, such as 'soon'"):
        prepare(Request(words, "label", time="made"))
    same = write(tmp_path / "same.csv", changing.assign(made=2024))
    with pytest.raises(dross.InvalidInput, match="Too many rows have the same value in 'made'"):
        prepare(Request(same, "label", time="made"))
    with pytest.raises(dross.InvalidInput, match="not both"):
        Request(same, "label", time="made", test=same)
