"""Formats of tables besides CSV and Parquet: Excel, JSON Lines, Arrow, and compressed files."""

import bz2
import datetime
import gzip
import io
import lzma
import zipfile
from functools import partial

import numpy as np
import openpyxl
import pandas
import pyarrow as arrow
import pytest

from dross.cleaning import files
from dross.cleaning.files import stem_of
from dross.cleaning.formats import FORMATS, Reading, copy_table, suffix_of_copy
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.modality import RowEdits
from dross.errors import InvalidInput

COUNT = 40
ROWS = pandas.DataFrame(
    {
        "size": np.arange(COUNT) / 4,
        "number": np.arange(COUNT),
        "when": pandas.date_range("2024-01-01", periods=COUNT),
        "note": ["=1+1", "07", None, "plain"] * (COUNT // 4),
        "kind": ["cat", "dog"] * (COUNT // 2),
    }
)


def write(path, frame=ROWS):
    path.write_bytes(FORMATS[path.suffix].write(frame))
    return path


def copied(path, suffix, edits, label="kind", sheet=None):
    return copy_table(path.read_bytes(), path, suffix, label, edits, Reading(sheet=sheet))


@pytest.mark.parametrize("suffix", [".xlsx", ".feather", ".jsonl", ".parquet"])
def test_a_table_is_read_as_it_was_written(tmp_path, suffix):
    path = write(tmp_path / f"t{suffix}")
    source = prepare(Request(str(path), "kind")).source
    first = 1 if suffix == ".jsonl" else 2
    assert source.rows.tolist() == list(range(first, first + COUNT))
    assert source.content["size"].astype(float).tolist() == ROWS["size"].tolist()
    assert source.content["note"].dropna().tolist()[:3] == ["=1+1", "07", "plain"]
    assert source.labels.tolist() == ROWS["kind"].tolist()
    raw, count = copied(path, suffix, RowEdits({first}, {first + 1: "cat"}))
    copy = FORMATS[suffix].load(raw, Reading())
    expected = FORMATS[suffix].load(path.read_bytes(), Reading()).iloc[1:].reset_index(drop=True)
    expected.loc[0, "kind"] = "cat"
    pandas.testing.assert_frame_equal(copy, expected)
    assert count == COUNT - 1


# --- Excel ----------------------------------------------------------------------------------------


def write_book(path, **sheets):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


NAMES = ["size", "kind"]
SHEET = [NAMES, *([k, "cat" if k % 2 else "dog"] for k in range(COUNT))]


def test_a_sheet_is_the_first_or_the_one_that_is_named(tmp_path):
    path = write_book(tmp_path / "t.xlsx", Data=SHEET, Old=[[*NAMES, "more"], [1, "cat", 2]])
    data = prepare(Request(str(path), "kind"))
    note = "The first sheet of t.xlsx, 'Data', is read; pass `sheet` to read another: 'Old'."
    assert note in data.notes and data.source.content["size"].tolist() == list(range(COUNT))
    with pytest.raises(InvalidInput, match="There are 1 labeled instances"):
        prepare(Request(str(path), "kind", sheet="Old"))
    with pytest.raises(InvalidInput, match=r"no sheet named 'old'.*Did you mean 'Old'\?"):
        prepare(Request(str(path), "kind", sheet="old"))
    copy = openpyxl.load_workbook(io.BytesIO(copied(path, ".xlsx", RowEdits(), sheet="Data")[0]))
    assert copy.sheetnames == ["Data"]


def test_rows_have_the_numbers_of_the_sheet(tmp_path):
    rows = [[], [], [None, *NAMES], [], *([None, *row] for row in SHEET[1:])]
    path = write_book(tmp_path / "t.xlsx", Data=rows)
    source = prepare(Request(str(path), "kind")).source
    assert source.rows.tolist() == list(range(5, 5 + COUNT)) and list(source.content) == ["size"]
    path = write_book(tmp_path / "titled.xlsx", Data=[["Sizes of pets"], *SHEET])
    with pytest.raises(
        InvalidInput, match=r"sheet 'Data': row 1 must contain.*Delete the rows above"
    ):
        prepare(Request(str(path), "kind"))


def test_cells_of_a_sheet(tmp_path):
    day = datetime.date(2024, 5, 1)
    rows = [[k, True, day, "NA" if k < 3 else str(k), 2 * k, "=B2"] for k in range(COUNT)]
    names = ["number", "flag", "day", "text", "kind", "formula"]
    path = write_book(tmp_path / "t.xlsx", Data=[names, *rows])
    frame, _ = FORMATS[".xlsx"].read(path.read_bytes(), path, Reading())
    assert frame["number"].dtype == "int64" and frame["day"].dtype.kind == "M"
    assert frame["flag"].tolist()[0] is True and frame["formula"].tolist()[0] is None
    data = prepare(Request(str(path), "kind", task="regression"))
    assert data.source.content["text"].isna().sum() == 3
    raw, _ = copied(path, ".xlsx", RowEdits(relabeled={2: "7"}))
    first = next(openpyxl.load_workbook(io.BytesIO(raw))["Data"].iter_rows(min_row=2))
    assert [cell.value for cell in first[:5]] == [0, True, datetime.datetime(2024, 5, 1), "NA", 7]


def test_what_a_sheet_cannot_hold_is_refused(tmp_path):
    noon = pandas.Timestamp("2024-01-01 12:00", tz="UTC")
    for value in ("x" * 40_000, 2**60 + 1, np.inf, noon, "a\x01", b"a"):
        with pytest.raises(InvalidInput, match="A sheet cannot contain"):
            FORMATS[".xlsx"].write(pandas.DataFrame({"x": [value]}, dtype=object))
    path = write_book(tmp_path / "t.xlsx", Data=SHEET)
    assert suffix_of_copy(path) == ".xlsx" and suffix_of_copy(tmp_path / "t.xls") == ".xlsx"


# --- JSON Lines -----------------------------------------------------------------------------------


def test_lines_stay_as_they_are_but_for_new_labels(tmp_path):
    lines = [
        '{"x": 1.0, "kind":"cat" , "y": "kind"}',
        "",
        '{"kind": "dog","x": 1e3, "n": null}',
        '{ "x": "\\u00e9", "kind": "cat"}',
        '{"kind": "x", "kind": "dog", "name": "Zoë"}',
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    raw, count = copied(path, ".jsonl", RowEdits({1}, {3: "cat", 5: "cat"}))
    changed = [
        *lines[1:2],
        lines[2].replace("dog", "cat"),
        lines[3],
        lines[4].replace("dog", "cat"),
    ]
    assert raw.decode() == "\n".join(changed) and count == 3
    path.write_text('{"kind": 1, "x": 2}\n{"kind": 2}\n')
    assert copied(path, ".jsonl", RowEdits(relabeled={1: "2"}))[0].startswith(b'{"kind": 2, "x"')


def test_nested_values_are_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"x": 1, "kind": "a"}\n{"x": [1], "kind": "a"}\n')
    with pytest.raises(InvalidInput, match=r"line 2: 'x' contains a list.*Leave out 'x'"):
        prepare(Request(str(path), "kind"))
    path.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    with pytest.raises(InvalidInput, match="If these are chats: dross clean-chats"):
        prepare(Request(str(path), None))


def test_names_of_columns_may_be_numbers_where_files_have_names(tmp_path):
    path = write(tmp_path / "t.feather", ROWS.rename(columns={"size": "2019"}))
    with pytest.raises(InvalidInput, match=r"no column named 'knd' in .*Did you mean 'kind'"):
        prepare(Request(str(path), "knd"))


# --- Arrow, compressed files ----------------------------------------------------------------------


def test_a_stream_of_arrow_stays_one(tmp_path):
    path = tmp_path / "t.arrow"
    table = arrow.Table.from_pandas(ROWS).replace_schema_metadata({"made": "here"})
    with arrow.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)
    raw, _ = copied(path, ".arrow", RowEdits({2}))
    copy = arrow.ipc.open_stream(raw).read_all()
    assert copy.equals(table.slice(1)) and copy.schema.metadata == table.schema.metadata


def test_a_damaged_arrow_file_is_refused(tmp_path):
    path = tmp_path / "t.arrow"
    names = arrow.array(["cat", "dog"] * 20)
    buffers = names.buffers()
    offsets = np.frombuffer(buffers[1], dtype=np.int32).copy()
    offsets[5] = 2**30
    damaged = [None, arrow.py_buffer(offsets), buffers[2]]
    wrong = arrow.Array.from_buffers(names.type, len(names), damaged)
    with arrow.ipc.new_stream(path, arrow.schema({"kind": names.type})) as stream:
        stream.write_batch(arrow.record_batch([wrong], ["kind"]))
    with pytest.raises(InvalidInput, match="cannot be read as an Arrow file"):
        prepare(Request(str(path), "kind"))


@pytest.mark.parametrize("name", ["t.csv.gz", "t.jsonl.bz2", "t.tsv.xz"])
def test_compressed_files(tmp_path, name):
    plain = write(tmp_path / name.rpartition(".")[0])
    path = tmp_path / name
    suffixes = "." + name.partition(".")[2]
    path.write_bytes(copied(plain, suffixes, RowEdits())[0])
    assert path.read_bytes() != plain.read_bytes() and stem_of(path) == "t"
    assert prepare(Request(str(path), "kind")).source.labels.tolist() == ROWS["kind"].tolist()
    assert copied(path, plain.suffix, RowEdits())[0] == plain.read_bytes()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InvalidInput, match=r"is compressed .* cannot be unpacked"):
        prepare(Request(str(path), "kind"))


BOMBS = {
    "t.csv.gz": gzip.compress,
    "t.csv.bz2": bz2.compress,
    "t.csv.xz": partial(lzma.compress, preset=0),
    "t.xlsx": lambda raw: zipped({"xl/workbook.xml": b"", "xl/worksheets/sheet1.xml": raw}),
}


def zipped(members):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name, raw in members.items():
            out.writestr(name, raw)
    return archive.getvalue()


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_with_a_huge_content_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BOMBS[name](bytes(70 << 20)))
    message = r"its content is larger than 67 MB, the limit for a file of"
    with pytest.raises(InvalidInput, match=message):
        prepare(Request(str(path), "kind"))


def test_a_content_for_which_there_is_too_little_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(write(tmp_path / "t.csv").read_bytes()))
    monkeypatch.setattr(files, "free_memory", lambda: 800)
    with pytest.raises(InvalidInput, match=r"larger than 100 bytes, .* with the memory currently"):
        prepare(Request(str(path), "kind"))


def test_a_compressed_copy_is_the_same_each_time(tmp_path):
    path = write(tmp_path / "t.csv")
    raw, _ = copied(path, ".csv.gz", RowEdits())
    assert gzip.decompress(raw) == path.read_bytes() and raw[4:8] == b"\0\0\0\0"  # no time in it
