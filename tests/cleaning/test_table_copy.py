"""Copies of tables: what is not edited is as it was."""

import csv
import io

import numpy as np
import pandas
import pytest

from dross.cleaning.formats import FORMATS, Reading, TableFormat, copy_table
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.modality import RowEdits
from dross.errors import InvalidInput


def copy_file(path, suffix: str, label: str, edits: RowEdits, separator: str | None = None):
    return copy_table(path.read_bytes(), path, suffix, label, edits, Reading(separator))


def copied(path, text: str, edits: RowEdits, suffix: str = ".csv", separator=None) -> str:
    path.write_text(text, encoding="utf-8")
    return copy_file(path, suffix, "y", edits, separator)[0].decode()


def test_duplicate_and_empty_names_stay(tmp_path):
    text = "x,x,,y\n1, 2,3,a\n\n4,5,NA,b\n7,8,1_000,a\n"
    edits = RowEdits({2}, {4: "a"})
    assert copied(tmp_path / "t.csv", text, edits) == "x,x,,y\n\n4,5,NA,a\n7,8,1_000,a\n"
    with pytest.raises(InvalidInput, match="same name"):
        copy_file(tmp_path / "t.csv", ".parquet", "y", edits)


def test_rows_are_found_by_their_lines(tmp_path):
    text = 'x,y\n\n1,"a\n"\n\n\n2,b\n3,c\n'
    assert copied(tmp_path / "t.csv", text, RowEdits({7})) == 'x,y\n\n1,"a\n"\n\n\n3,c\n'


def test_the_separator_that_was_given_is_used(tmp_path):
    changed = RowEdits(relabeled={2: "b"})
    done = copied(tmp_path / "t.csv", "x^y\n1,5^a\n", changed, ".tsv", "^")
    assert done == "x\ty\n1,5\tb\n"


def test_a_label_that_is_no_plain_number_is_refused_among_numbers(tmp_path):
    text = "x,y\n1,2.5\n2,3.5\n"
    assert copied(tmp_path / "t.csv", text, RowEdits(relabeled={2: "4"})) == ("x,y\n1,4\n2,3.5\n")
    with pytest.raises(InvalidInput, match="'1_000' is not a valid label"):
        copied(tmp_path / "t.csv", text, RowEdits(relabeled={2: "1_000"}))


@pytest.mark.parametrize("label", ["y", "key"])
def test_parquet_keeps_its_index_types_and_remarks(tmp_path, label):
    frame = pandas.DataFrame(
        {
            "y": pandas.array([1, 2, None, 2], dtype="Int64"),
            "when": pandas.to_datetime(["2020-01-01"] * 4, utc=True),
            "big": pandas.array([2**60 + 1, None, 3, 4], dtype="Int64"),
        },
        index=pandas.Index(["a", "b", "c", "d"], name="key"),
    )
    frame.attrs = {"made": "by hand"}
    frame.to_parquet(tmp_path / "t.parquet")
    new = {"y": "1", "key": "a"}[label]
    edits = RowEdits({2}, {3: new})
    raw, count = copy_file(tmp_path / "t.parquet", ".parquet", label, edits)
    copy = pandas.read_parquet(io.BytesIO(raw))
    expected = frame.iloc[1:].reset_index()
    expected.loc[0, label] = {"y": 1, "key": "a"}[label]
    pandas.testing.assert_frame_equal(copy, expected.set_index("key"))
    assert count == 3 and copy.attrs == frame.attrs
    as_text = copy_file(tmp_path / "t.parquet", ".csv", label, edits)[0].decode()
    assert as_text.splitlines()[0] == "key,y,when,big" and str(2**60 + 1) not in as_text


def test_parquet_with_numbers_for_names(tmp_path):
    pandas.DataFrame({0: np.arange(3), 1: [True, False, True]}).to_parquet(tmp_path / "t.parquet")
    edits = RowEdits(relabeled={2: "False"})
    raw, _ = copy_file(tmp_path / "t.parquet", ".parquet", "1", edits)
    copy = pandas.read_parquet(io.BytesIO(raw))
    assert copy[1].tolist() == [False, False, True] and copy[1].dtype == bool


class Orc(TableFormat):
    what = "an ORC file"
    marks_missing = True

    def read(self, raw, path, reading, *, verbatim=False):
        frame = self.load(raw, reading)
        frame.index = np.arange(2, 2 + len(frame))
        return frame, []

    def write(self, frame):
        return frame.reset_index(drop=True).to_orc(index=False)

    def load(self, raw, reading):
        return pandas.read_orc(io.BytesIO(raw))


def test_a_format_needs_one_entry(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, ".orc", Orc())
    path = tmp_path / "t.orc"
    frame = pandas.DataFrame({"x": np.arange(40.0), "y": ["a", "b"] * 20})
    path.write_bytes(FORMATS[".orc"].write(frame))
    prepared = prepare(Request(str(path), "y"))
    assert len(prepared.source) == 40 and prepared.source.names[0] == "row 2"
    edits = RowEdits({2}, {3: "a"})
    for suffix in FORMATS:
        raw, count = copy_file(path, suffix, "y", edits)
        copy = FORMATS[suffix].load(raw, Reading())
        assert count == 39 and copy["y"].tolist()[:3] == ["a", "a", "b"]


def test_a_carriage_return_stays_in_its_cell(tmp_path):
    streets = ["Mill Lane\rLeeds", "a\r\nb", "a\nb", "plain"]
    path = tmp_path / "t.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("street", "y"), *((street, "no") for street in streets)])
    raw, count = copy_table(path.read_bytes(), path, ".csv", "y", RowEdits(), Reading())
    rows = list(csv.reader(io.StringIO(raw.decode(), newline="")))
    assert count == 4 and [street for street, _ in rows[1:]] == streets


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_a_copy_is_written_as_its_original(tmp_path, codec, separator, end, last):
    lines = ["name,size,kind", "Zoë,1.50,cat", '"a, b",02, cat', "", "x,3,'dog'", '"y",+4,"dog"']
    lines = [line.replace(",", separator) for line in lines]

    def encode(lines):
        return (end.join(lines) + end * last).encode(codec)

    path = tmp_path / "t.csv"
    path.write_bytes(encode(lines))
    edits = RowEdits({2}, {3: "dog", 6: "cat"})
    raw, count = copy_table(path.read_bytes(), path, ".csv", "kind", edits, Reading())
    changed = [
        lines[0],
        lines[2].replace(" cat", " dog"),
        *lines[3:5],
        lines[5].replace("dog", "cat"),
    ]
    assert raw == encode(changed) and count == 3
    without_last, _ = copy_table(path.read_bytes(), path, ".csv", "kind", RowEdits({6}), Reading())
    assert without_last == encode(lines[:5])


def test_a_new_label_is_quoted_where_it_has_to_be(tmp_path):
    text = 'y,x\na,1\n"b",2\n'
    edits = RowEdits(relabeled={2: "c, d", 3: 'say "b"'})
    assert copied(tmp_path / "t.csv", text, edits) == 'y,x\n"c, d",1\n"say ""b""",2\n'
    with pytest.raises(InvalidInput, match="'đ' in a new label cannot be represented"):
        raw = "y,x\né,1\n".encode("cp1252")
        relabeled = RowEdits(relabeled={2: "đ"})
        copy_table(raw, tmp_path / "t.csv", ".csv", "y", relabeled, Reading())


def test_decimal_commas_are_read_and_kept(tmp_path):
    """They are numbers for the models, and stay commas in the copy, also in a new label."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(0, 2000, size=(60, 2)).round(2)
    write = lambda number: f"{number:,.2f}".translate(str.maketrans(".,", ",."))
    rows = [f"{write(a)};{k % 3},25;{write(b)}" for k, (a, b) in enumerate(numbers)]
    path = tmp_path / "t.csv"
    text = "\n".join(["preis;faktor;y", *rows, ""])
    path.write_text(text)
    data = prepare(Request(str(path), "y"))
    assert [column.kind for column in data.columns] == ["number", "number"]
    assert data.source.labels.tolist() == numbers[:, 1].tolist()
    assert "in: preis, faktor, y." in " ".join(data.notes)
    copy = copy_file(path, ".csv", "y", RowEdits({3}, {2: "12.5"}))[0].decode()
    lines = text.splitlines()
    assert copy.splitlines() == [lines[0], lines[1].rpartition(";")[0] + ";12,5", *lines[3:]]
    loaded = FORMATS[".csv"].load(copy.encode(), Reading())
    assert loaded["y"].iloc[0] == 12.5 and loaded["preis"].dtype == float


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a;y\n1,234;2\n5,678;3\n", "1,234"),  # thousands, for all that is known
        ("a;y\n1,234;2,5\n5,678;3,5\n", "1.234"),
        ("a;y\n1,5 kg;2\n2,5 kg;3\n", "1,5 kg"),
        ('a,y\n"1,5",2\n"2,5",3\n', "1,5"),
    ],
)
def test_commas_are_decimal_only_where_the_file_shows_it(tmp_path, text, read):
    path = tmp_path / "t.csv"
    path.write_text(text)
    frame, _ = FORMATS[".csv"].read(path.read_bytes(), path, Reading())
    assert frame["a"].iloc[0] == read
