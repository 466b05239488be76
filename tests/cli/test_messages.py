"""What the commands print: no names of classes, and options as they are typed."""

import io
import sys
import zipfile

import openpyxl
import pytest

import dross.cli  # noqa: F401
from dross.cleaning.inputs import Request, prepare
from dross.cli.output import name_options


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """The same in an empty folder, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    return run


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("Pass a smaller `lr`.", "Pass a smaller --lr."),
        ("`labels='observed'` changes this", "--labels observed changes this"),
        ("pass `overwrite=True`.", "pass --overwrite."),
        ("pass `text='my notes'`.", "pass --text 'my notes'."),
        ("`columns={'a b': 'text', 'c': 'date'}`", "--column 'a b=text' --column c=date"),
        ("pass `trust_code=['a:b', 'c:d']`", "pass --trust-code a:b --trust-code c:d"),
        ("`columns`, `n_jobs` and `make`", "--column, --jobs and --model"),
        ("Run `dross clean` on `messages`.", "Run `dross clean` on `messages`."),
        ("`lr=no literal`", "`lr=no literal`"),
    ],
)
def test_arguments_become_options(message, typed):
    assert name_options(message) == typed


def test_an_error_is_a_sentence_with_options(run, tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "1,a\n2,b\n" * 30)
    code, printed = run("clean", "t.csv", "--label", "y", "--lr", -1)
    assert code == 1 and printed == "Error: --lr must be above 0, not -1.0."
    code, printed = run("clean", "t.csv", "--label", "y", "--labels", "obsreved")
    assert printed.startswith("Error: There is no kind of labels named 'obsreved'.")


def test_a_missing_project(run, tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n")
    assert run("judge", "nowhere") == (
        1,
        "Error: There is no folder nowhere. Run dross clean first.",
    )
    (tmp_path / "runs" / "people").mkdir(parents=True)
    (tmp_path / "runs" / "people" / "project.json").write_text("{}")
    hint = "Pass one that dross clean created: runs/people."
    assert run("review", "t.csv")[1].endswith(
        f"not the folder that dross clean created from it. {hint}"
    )
    assert run("export", "runs", "a.csv")[1].endswith(
        f"not a folder created by dross clean. {hint}"
    )
    assert "There is no recorded run at nowhere" in run("info", "nowhere")[1]


# --- files that are not what they seem, and columns that are no labels ----------------------------

PEOPLE = "age,city,income\n" + "31,Rome,high\n42,Oslo,low\n" * 30
WORDS = ["the quick brown fox", "jumps over a dog", "nobody looks at it"]
REVIEWS = "review,stars\n" + "".join(
    f"{WORDS[k % 3]} {k},{'good' if k % 2 else 'bad'}\n" for k in range(90)
)
LABELS = "x,id,when,uuid\n" + "".join(
    f"{k % 7},{k},2020-{k // 28 + 1:02}-{k % 28 + 1:02},u{k * 7919:05x}\n" for k in range(90)
)
MANY = "x,code\n" + "".join(f"{k % 7},c{k % 1500}\n" for k in range(9000))


def pack_zip(**files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("_", "/") + ".xml", text)
    return packed.getvalue()


def write_book():
    book = openpyxl.Workbook()
    book.active.title = "Info"
    book.active.append(["read the other sheet"])
    for line in PEOPLE.splitlines():
        data = book["Data"] if "Data" in book.sheetnames else book.create_sheet("Data")
        data.append(line.split(","))
    packed = io.BytesIO()
    book.save(packed)
    return packed.getvalue()


ODD = {  # name of the file: its content, further options, what is said
    "a.csv": (PEOPLE, "", "pass its name as --label. a.csv has the columns age, city, income."),
    "b.csv": (PEOPLE, "--label INCOM", "named 'INCOM' in b.csv. Did you mean 'income'?"),
    "c.csv": (
        REVIEWS,
        "--label stars",
        "'review' contains text: to learn from it, pass --text review.",
    ),
    "d.csv": (REVIEWS, "--label review", "90 distinct text values, too many to be classes."),
    "e.csv": (PEOPLE.partition("\n")[2], "--label income", "seems to have no header"),
    "f.csv": ("0.5,a\n" + "1.5,a\n2.5,b\n" * 40, "--label a", "its first row is 0.5, a."),
    "J.csv": ("0.5,2\n" + "1.5,3\n2.5,4\n" * 40, "--label y", "its first row is 0.5, 2."),
    "g.csv": ("Report of 2024\n" + PEOPLE, "--label income", "line 1 has one, 'Report of 2024'"),
    "h.csv": (PEOPLE.replace(",", "^"), "--label income", "pass --separator."),
    "i.csv": ("", "--label income", "i.csv is empty."),
    "j.csv": ("a,b\n", "--label a", "j.csv has column names, but no rows."),
    "k.csv": ("x,y\n" + "1,\n" * 50, "--label y", "'y' is empty in every row of k.csv"),
    "l.csv": ("y\n" + "a\nb\n" * 50, "--label y", "The table has no column besides the label."),
    "m.csv": (LABELS, "--label id", "'id' numbers the rows from 0 to 89: it is an identifier"),
    "n.csv": (LABELS, "--label when", "'when' has 90 distinct dates"),
    "o.csv": (LABELS, "--label uuid", "'uuid' has 90 distinct values for 90 instances"),
    "p.csv": (MANY, "--label code", "'code' has 1,500 distinct values for 9,000 instances"),
    "q.csv": (
        "<!DOCTYPE html><p>Sign in",
        "",
        "q.csv is a web page (HTML), not a table. Check that",
    ),
    "r.xls": ("<html><table>", "", "Open it in a spreadsheet program and save it as CSV or Excel."),
    "s.xls": (PEOPLE, "", "s.xls is a text file, not an Excel workbook. Rename it to s.csv."),
    "t.csv": (
        write_book(),
        "",
        "t.csv is an Excel workbook, not a text file. Rename it to t.xlsx.",
    ),
    "u.xlsx": (write_book(), "--label income", "but the sheet 'Data' does. Pass --sheet Data."),
    "v.pdf": (b"%PDF-1.7\n\xe2\xe3", "", "v.pdf is a PDF document, not a table."),
    "w.zip": (pack_zip(a="", b=""), "", "is a ZIP archive, not a table. Unpack it and pass one of"),
    "x.docx": (pack_zip(word_document=""), "", "x.docx is a Word document, not a table."),
    "y.json": ('[{"a": 1}]', "", "y.json is a JSON array, not a table. Write one object per line"),
    "z.json": (
        '{"a": 1}\n',
        "",
        "z.json is a JSON Lines file, not a text file. Rename it to z.jsonl",
    ),
    "A.csv": (b"\x89PNG\r\n\x1a\n\0", "", "A.csv is an image, not a table."),
    "B.csv": (b"PAR1\0\0", "", "B.csv is a Parquet file, not a text file. Rename it to B.parquet."),
    "C.parquet": (PEOPLE, "", "C.parquet is a text file, not a Parquet file. Rename it to C.csv."),
    "D.csv": (b"\x80\x04\x95\0", "", "D.csv is a Python pickle, not a table. dross does not open"),
    "E.csv": (PEOPLE, "--label income --sheet Data", "which has no sheets. Leave out --sheet."),
    "F.csv": (PEOPLE, "--label income --test a.csv", "There is no file a.csv."),
    "H.csv": (
        PEOPLE,
        "--label income --features H.csv",
        "H.csv contains no features. Features must",
    ),
    "I.csv": (
        "x,до\n1,ж\n".encode("cp1251"),
        "--label y",
        "not UTF-8 and was read as Windows-1252",
    ),
    "G.csv": (PEOPLE, "--label income --device gpu", "There is no device 'gpu'."),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_inputs(run, tmp_path, name):
    content, options, said = ODD[name]
    raw = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(raw)
    code, printed = run("clean", name, *options.split())
    assert code == 1 and printed.startswith("Error: ") and said in printed
    assert (tmp_path / name).read_bytes() == raw and str(tmp_path) not in printed


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("s3://bucket/a.csv", "needs the package s3fs: pip install s3fs."),
        ("foo://bucket/a.csv", "Protocol not known: foo."),
        ("C:\\data\\a.csv", "There is no file C:\\data\\a.csv."),
        ("peple.csv", "There is no file peple.csv. Did you mean people.csv?"),
        (
            "folder",
            "folder contains no images, but it does contain 1 table, such as folder/a.csv. Pass one of "
            "them.",
        ),
    ],
)
def test_places_that_hold_no_input(run, tmp_path, monkeypatch, data, said):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    (tmp_path / "people.csv").write_text(PEOPLE)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.csv").write_text(PEOPLE)
    assert said in run("clean", data, "--label", "income")[1]


def test_a_test_file_without_the_label_is_named(run, tmp_path):
    (tmp_path / "people.csv").write_text(PEOPLE)
    (tmp_path / "test.csv").write_text("age,city\n1,Rome\n2,Oslo\n")
    _, printed = run("clean", "people.csv", "--label", "income", "--test", "test.csv")
    assert "There is no column named 'income' in test.csv." in printed


def test_a_declared_separator_is_used(tmp_path):
    (tmp_path / "t.csv").write_text("sep=;\n" + PEOPLE.replace(",", ";"))
    source = prepare(Request(str(tmp_path / "t.csv"), "income")).source
    assert source.rows.tolist() == list(range(3, 63)) and list(source.content) == ["age", "city"]
