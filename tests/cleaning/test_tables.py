"""Tables that people have: odd names, odd cells, labels that are hard to tell apart."""

import numpy as np
import pandas
import pytest

from dross.cleaning import formats, tables
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.modality import join_parts
from dross.errors import InvalidInput

ROWS = 120


def numbers(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=ROWS)


def write_csv(path, header: str, *columns) -> str:
    lines = [header, *(",".join(map(str, cells)) for cells in zip(*columns))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def kinds(*names: str) -> list[str]:
    return [names[k % len(names)] for k in range(ROWS)]


def test_labels_that_differ_by_a_nul_are_two_classes(tmp_path):
    path = write_csv(tmp_path / "t.csv", "x,kind", numbers(), kinds("a", "a\0", "b"))
    prepared = prepare(Request(path, "kind"))
    assert prepared.source.classes == ["a", "a\0", "b"]
    assert prepared.part("train").labels.tolist() == kinds("a", "a\0", "b")
    assert np.bincount(prepared.y["train"]).tolist() == [ROWS // 3] * 3


def test_an_instance_in_two_parts_is_an_error(tmp_path, monkeypatch):
    def overlapping(sources):
        joined, parts = join_parts(sources)
        return joined, parts | {"test": parts["train"][:50]}

    monkeypatch.setattr("dross.cleaning.inputs.join_parts", overlapping)
    path = write_csv(tmp_path / "t.csv", "x,kind", numbers(), kinds("a", "b"))
    with pytest.raises(AssertionError, match="in more than one set"):
        prepare(Request(path, "kind"))


def test_row_names_are_lines_of_the_file(tmp_path):
    rows = [f"{x:.3f},{kind}\n" for x, kind in zip(numbers(), kinds("a", "b"))]
    rows[5] += "\n\n"
    rows[9] = '"0.25\n",b\n'
    text = "x,kind\n" + "".join(rows)
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    names = prepare(Request(str(tmp_path / "t.csv"), "kind")).source.names
    lines = text.split("\n")
    for place in (0, 5, 6, 9, 10, ROWS - 1):
        line = int(names[place].removeprefix("row "))
        assert lines[line - 1] == rows[place].split("\n")[0]


@pytest.mark.parametrize("wild", ["1e200", "-1e39", "inf", "1e400"])
def test_labels_too_large_for_float32_are_refused_by_row_and_column(tmp_path, wild):
    labels = [f"{value:.4f}" for value in numbers()]
    labels[16] = wild
    path = write_csv(tmp_path / "t.csv", "x,price", numbers(1), labels)
    refused = r"row 18: 'price' contains .*too large"
    if wild == "1e400" and pandas.__version__ < "3":  # which reads it as a text
        refused = "too many to be classes"
    with pytest.raises(InvalidInput, match=refused):
        prepare(Request(path, "price"))


def test_a_test_label_too_large_after_scaling_is_refused(tmp_path):
    small = [f"{1 + 1e-14 * k}" for k in range(ROWS)]
    train = write_csv(tmp_path / "t.csv", "x,price", numbers(1), small)
    test = write_csv(tmp_path / "v.csv", "x,price", numbers(2), ["1e30", *small[1:]])
    with pytest.raises(InvalidInput, match="test: row 2: 'price'"):
        prepare(Request(train, "price", task="regression", test=test))


def test_cells_too_large_for_float32_are_refused_by_row_and_column(tmp_path):
    cells = [f"{value:.4f}" for value in numbers()]
    cells[40] = "1e308"
    path = write_csv(tmp_path / "t.csv", "x,kind", cells, kinds("a", "b"))
    with pytest.raises(InvalidInput, match=r"row 42: 'x' contains 1e\+308, which is too large"):
        prepare(Request(path, "kind"))


def test_columns_of_one_name(tmp_path):
    path = write_csv(tmp_path / "t.csv", "x,x,,y", numbers(), numbers(1), numbers(2), kinds(*"ab"))
    prepared = prepare(Request(path, "y"))
    assert [column.name for column in prepared.columns] == ["x", "x.1", "Unnamed: 2"]
    assert "column 2 is now 'x.1'" in " ".join(prepared.notes)
    for header in ("y,x,z,y ", "y,x,z,y"):
        path = write_csv(
            tmp_path / "t.csv", header, kinds(*"ab"), numbers(), numbers(1), numbers(2)
        )
        with pytest.raises(InvalidInput, match=r"2 columns named 'y' \(columns 1, 4\)"):
            prepare(Request(path, "y"))
    assert tables.column_names(["x", "x", "x.1", "", "x"]) == [
        "x",
        "x.2",
        "x.1",
        "Unnamed: 3",
        "x.3",
    ]


def test_what_counts_as_missing_can_be_said(tmp_path):
    path = write_csv(tmp_path / "t.csv", "x,kind", numbers(), kinds("NA", "None", "-", "x"))
    with pytest.raises(InvalidInput, match="There are 30 labeled instances"):
        prepare(Request(path, "kind"))
    prepared = prepare(Request(path, "kind", na=["x"]))
    assert prepared.source.classes == ["-", "NA", "None"] and len(prepared.source) == 90
    assert "In 'kind', 'x' (30) is treated as missing" in " ".join(prepared.notes)
    frame, notes = tables.read_frame(tmp_path / "t.csv", reading=formats.Reading(), needed=["kind"])
    assert frame["kind"].notna().sum() == 30 and "`na`" in notes[-1]
    assert "'NA' (30), 'None' (30), '-' (30) are treated as missing" in notes[-1]


def test_a_separator_can_be_said(tmp_path):
    rows = [f"{x}^{kind}" for x, kind in zip(numbers(), kinds("a", "b"))]
    (tmp_path / "t.csv").write_text("\n".join(["x^kind", *rows]), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"one column.*`separator`"):
        prepare(Request(str(tmp_path / "t.csv"), "kind"))
    assert len(prepare(Request(str(tmp_path / "t.csv"), "kind", separator="^")).source) == ROWS


def test_a_separator_that_the_file_does_not_have_is_named(tmp_path):
    rows = "".join(f"{k},5;{k};{'ab'[k % 2]}\n" for k in range(40))
    (tmp_path / "t.csv").write_text(f"size;other;kind\n{rows}")
    with pytest.raises(InvalidInput, match=r"separated by ';'.*pass `separator=';'`"):
        prepare(Request(str(tmp_path / "t.csv"), "kind", separator=","))
    assert len(prepare(Request(str(tmp_path / "t.csv"), "kind", separator=";")).source) == 40


def test_numbers_are_those_that_other_programs_read(tmp_path):
    cells = [f"{k}_000" for k in range(ROWS)]
    path = write_csv(tmp_path / "t.csv", "x,z,kind", cells, numbers(), kinds("a", "b"))
    assert {column.name: column.kind for column in prepare(Request(path, "kind")).columns} == {
        "x": "ignore",
        "z": "number",
    }
    path = write_csv(tmp_path / "t.csv", "x,kind", numbers(), kinds("10", "9", "1_000", "nan!"))
    assert prepare(Request(path, "kind")).source.classes == ["9", "10", "1_000", "nan!"]


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv.zip", "t.csv.bz2"])
def test_text_is_read_whatever_its_name_ends_with(tmp_path, name):
    path = write_csv(tmp_path / name, "x,kind", numbers(), kinds("a", "b"))
    assert len(prepare(Request(path, "kind")).source) == ROWS


def test_the_named_index_of_a_parquet_file_is_a_column(tmp_path):
    frame = pandas.DataFrame(
        {"kind": kinds("a", "b")}, index=pandas.Index(numbers(), name="height")
    )
    frame.to_parquet(tmp_path / "t.parquet")
    prepared = prepare(Request(str(tmp_path / "t.parquet"), "kind"))
    assert [column.name for column in prepared.columns] == ["height"]
    frame = pandas.DataFrame({"x": numbers()}, index=pandas.Index(kinds("a", "b"), name="kind"))
    frame.to_parquet(tmp_path / "t.parquet")
    assert prepare(Request(str(tmp_path / "t.parquet"), "kind")).source.classes == ["a", "b"]


def test_parquet_columns_may_be_named_by_numbers(tmp_path):
    pandas.DataFrame({0: numbers(), 1: kinds("a", "b")}).to_parquet(tmp_path / "t.parquet")
    prepared = prepare(Request(str(tmp_path / "t.parquet"), "1"))
    assert [column.name for column in prepared.columns] == ["0"]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_what_is_no_file_is_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match="There is no file"):
        prepare(Request(str(tmp_path / name), "y"))
    with pytest.raises(InvalidInput, match="too long for a file name"):
        prepare(Request("x" * 5000 + name, "y"))
    (tmp_path / name).write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(InvalidInput):
        prepare(Request(str(tmp_path / name), "y"))


def test_devices_and_pipes_are_refused_at_once():
    with pytest.raises(InvalidInput, match="it is a device, not a regular file"):
        prepare(Request("/dev/zero", "y"))


@pytest.mark.parametrize("raw", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_file_of_a_byte_order_mark_alone_is_empty(tmp_path, raw):
    (tmp_path / "t.csv").write_bytes(raw)
    with pytest.raises(InvalidInput, match="is empty"):
        prepare(Request(str(tmp_path / "t.csv"), "y"))


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(InvalidInput, match="A seed must be a whole number from 0"):
        Request("t.csv", "y", seed=seed)
