"""The kinds of columns, and of labels."""

import numpy as np
import pandas
import pytest

from dross.cleaning.inputs import Request, prepare
from dross.cleaning.modality import Column
from dross.cleaning.tables import TableEncoder, describe_columns, infer_columns, parse_times
from dross.errors import InvalidInput


def test_given_kinds_take_precedence_over_inferred_ones():
    content = pandas.DataFrame({"code": ["1", "2"] * 20, "size": ["0.5", "1.5"] * 20})
    columns = infer_columns(content, {"code": "category"})
    assert [column.kind for column in columns] == ["category", "number"]
    assert describe_columns(columns) == ["Numbers: size.", "Categories: code."]
    columns = infer_columns(content, {"code": "text", "size": "ignore"})
    because = ["'code' is ignored: it is set to text.", "'size' is ignored: it is set to ignore."]
    assert describe_columns(columns) == because


def test_highly_skewed_numbers_are_learnt_on_a_logarithmic_scale():
    rng = np.random.default_rng(0)
    wealth, size = np.exp(3 * rng.normal(size=400)), rng.normal(size=400)
    wealth[:3] = 1e9, -1e9, np.nan
    content = pandas.DataFrame({"wealth": wealth.astype(str), "size": size.astype(str)})
    columns = infer_columns(content, {})
    encoder = TableEncoder(content, columns)
    assert encoder.skewed == ["wealth"]
    now, usual = encoder(content).numpy(), slice(3, None)
    assert np.isfinite(now).all() and now[usual, 0].std() > 0.5  # it can be told apart
    order = np.argsort(wealth[usual])
    assert (np.diff(now[usual, 0][order]) >= 0).all()  # and nothing changes places


def test_a_column_that_is_nearly_always_zero_keeps_the_zeros_apart():
    gain = np.where(np.arange(300) % 20 == 0, 5000.0 + np.arange(300), 0)
    gain[40] = 1e6
    content = pandas.DataFrame({"gain": gain.astype(str)})
    encoder = TableEncoder(content, [Column("gain", "number")])
    inputs = encoder(content).numpy()[:, 0]
    assert encoder.skewed == ["gain"]
    assert inputs[gain > 0].min() > inputs[gain == 0].max() + 1


@pytest.mark.parametrize("written", ["1,{:03}", "{},5", "$ {}.50", "{} %", "1.{:03},5", "-{},25€"])
def test_numbers_that_are_written_in_another_way_are_named(written):
    cells = pandas.Series([written.format(k) for k in range(100)], dtype=object)
    (column,) = infer_columns(pandas.DataFrame({"price": cells}), {})
    assert column.kind == "ignore" and f"written as '{cells[0]}'" in column.why
    dates = pandas.Series([f"{k % 28 + 1:02}.{k % 12 + 1:02}.2024" for k in range(100)])
    assert infer_columns(pandas.DataFrame({"when": dates}), {})[0].kind == "date"


def test_classes_that_differ_only_in_case_are_named(tmp_path):
    names = ["Low", "low", "high", "HIGH", "mid"] * 20
    pandas.DataFrame({"x": range(100), "y": names}).to_csv(tmp_path / "t.csv", index=False)
    notes = prepare(Request(str(tmp_path / "t.csv"), "y")).notes
    alike = "Classes whose names differ only in capitalization: 'HIGH' and 'high', 'Low' and 'low'."
    assert alike in notes


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        (["yes", "no"], None),
        (
            [0, 1],
            "The 2 distinct numbers in 'y' are treated as classes; pass `task='regression'` ",
        ),
        (np.arange(100) ** 2 / 7, "'y' is predicted as a number; pass `task='classification'` "),
    ],
)
def test_a_task_that_is_guessed_from_numbers_is_noted(tmp_path, labels, note):
    frame = pandas.DataFrame({"x": np.arange(100) % 7, "y": np.resize(labels, 100)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    guesses = [
        each for each in prepare(Request(str(tmp_path / "t.csv"), "y")).notes if "task=" in each
    ]
    assert guesses == ([] if note is None else [f"{note}to change this."])


def test_of_thousands_of_columns_the_first_are_named():
    frame = pandas.DataFrame({f"n{k}": ["1", "2", "4"] for k in range(3000)}, dtype=object)
    constant = pandas.DataFrame({f"c{k}": ["x"] * 3 for k in range(3000)}, dtype=object)
    lines = describe_columns(infer_columns(pandas.concat([frame, constant], axis=1), {}))
    assert len(lines) < 40 and max(map(len, lines)) < 400
    assert lines[0].startswith("Numbers: n0, n1, ") and lines[0].endswith(" and 2,970 more.")
    assert "2,970 more columns are ignored." in lines


def test_every_input_is_that_of_one_column():
    rng = np.random.default_rng(0)
    content = pandas.DataFrame(
        {
            "kind": rng.choice(
                list("abcdefgh"), 300, p=[0.4, 0.3, 0.2, 0.09, 0.003, 0.003, 0.002, 0.002]
            ),
            "size": np.where(np.arange(300) % 9 == 0, np.nan, rng.normal(size=300)),
            "when": pandas.date_range("2024-01-01", periods=300).astype(str),
            "other": rng.normal(size=300),
        }
    ).astype(object)
    encoder = TableEncoder(
        content,
        [
            Column(n, k)
            for n, k in (
                ("kind", "category"),
                ("size", "number"),
                ("when", "date"),
                ("other", "number"),
            )
        ],
    )
    x = encoder(content)
    owner = encoder.column_of_input
    assert len(owner) == x.shape[1] and set(owner) == {0, 1, 2, 3}
    assert (owner == 1).sum() == 2 and (owner == 2).sum() == 3  # a number and a flag; a date
    for place, column in enumerate(encoder.columns):
        changed = content.copy()
        changed[column.name] = content[column.name].iloc[::-1].to_numpy()
        moved = (encoder(changed) != x).any(0).numpy()
        assert moved.any() and (owner[moved] == place).all()


@pytest.mark.parametrize("kind", ["category", "number"])
def test_the_inputs_of_columns_of_one_kind(kind):
    content = pandas.DataFrame({"a": ["1", "2"] * 20, "b": ["3", "4", "5", "5"] * 10})
    encoder = TableEncoder(content, [Column("a", kind), Column("b", kind)])
    assert len(encoder.column_of_input) == encoder(content).shape[1]


def test_numbers_that_name_things_are_not_learned_as_amounts():
    rng = np.random.default_rng(0)
    content = pandas.DataFrame(
        {
            "Kundennummer": rng.permutation(100) + 40_000,
            "orderId": rng.permutation(100) * 7,
            "PLZ": np.resize([10115, 80331, 50667], 100),
            "zip_code": np.resize([94110, 10001], 100),
            "plant": np.resize(["001", "014", "120"], 100),
            "number_of_rooms": np.arange(100) % 9,
            "atomic number": np.arange(100) % 20,
            "bmi index": rng.permutation(100) / 3,
            "valid": rng.permutation(100),  # a word that ends in id
        }
    ).astype(str)
    kinds = {column.name: column.kind for column in infer_columns(content, {})}
    assert kinds == {
        "Kundennummer": "ignore",
        "orderId": "ignore",
        "PLZ": "category",
        "zip_code": "category",
        "plant": "category",
        "number_of_rooms": "number",
        "atomic number": "number",
        "bmi index": "number",
        "valid": "number",
    }
    said = " ".join(describe_columns(infer_columns(content, {})))
    assert "`columns={'PLZ': 'number'}`" in said and "numbers such as 001 are codes" in said
    as_number = infer_columns(content, {"PLZ": "number"})
    assert as_number[2].kind == "number"


@pytest.mark.parametrize("part", ["A-{:04}", "{:04}-12", "T{:04}", "{:02}-1999-7", "MAR-{:04}"])
def test_part_numbers_are_no_dates(part):
    cells = pandas.Series([part.format(k + 1) for k in range(100)], dtype=object)
    (column,) = infer_columns(pandas.DataFrame({"Teilenummer": cells}), {})
    assert column.kind == "ignore" and "like names or identifiers" in column.why
    if not part.startswith("MAR"):  # a month, without a name that says otherwise
        (column,) = infer_columns(pandas.DataFrame({"part": cells}), {})
        assert column.kind == "ignore"


@pytest.mark.parametrize(
    "date",
    [
        "2024-{m:02}-{d:02}",
        "{d}.{m}.2024",
        "{m}/{d}/24",
        "2024-{m:02}-{d:02}T10:00:00Z",
        "{d} March 2024",
    ],
)
def test_dates_are_dates(date):
    cells = [date.format(d=k % 28 + 1, m=k % 12 + 1) for k in range(100)]
    (column,) = infer_columns(pandas.DataFrame({"when": cells}, dtype=object), {})
    assert column.kind == "date"


@pytest.mark.parametrize(
    ("cells", "month"),
    [
        (["08.04.2024", "09.04.2024"], 4),  # with dots the day comes first
        (["25/04/2024", "08/04/2024"], 4),
        (["04/25/2024", "04/08/2024"], 4),
        (["2024-04-25", "2024-04-08"], 4),
    ],
)
def test_the_day_and_the_month_of_a_date_are_told_apart(cells, month):
    times = parse_times(pandas.Series(cells, dtype=object))
    days = pandas.Timestamp("2000-01-01") + pandas.to_timedelta(times, unit="D")
    assert set(days.month) == {month}


def read_label(tmp_path, cells, **options):
    frame = pandas.DataFrame({"x": np.arange(len(cells)), "tags": cells})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return prepare(Request(str(tmp_path / "t.csv"), "tags", **options))


@pytest.mark.parametrize("mark", [";", "|", ", "])
def test_several_labels_in_one_cell_are_refused(tmp_path, mark):
    cells = ["red", "green", f"red{mark}blue", f"green{mark}blue"] * 30
    with pytest.raises(InvalidInput, match="several labels in one cell, such as 'red"):
        read_label(tmp_path, cells)
    assert len(read_label(tmp_path, cells, task="classification").source.classes) == 4


@pytest.mark.parametrize(
    "cells", [["Ulm, BW", "Köln, NRW", "Bonn, NRW"], ["yes; sure", "no"], ["a|b", "c|d"]]
)
def test_marks_within_the_name_of_a_class_are_no_lists(tmp_path, cells):
    assert len(read_label(tmp_path, cells * 30).source.classes) == len(cells)
