"""The text of CSV files: encodings, separators, and which line a row is on."""

import pytest

from dross.cleaning.csv_text import check_separator, decode_text, guess_separator, parse_csv
from dross.errors import InvalidInput


def rows(table) -> list[list[str]]:
    return table.to_numpy().tolist()


def test_rows_are_numbered_by_the_lines_they_begin_on():
    text = '\n\na,b\n1,2\n\n  \n3,"two\nlines"\r\n\r\n5,6'
    table, _ = parse_csv(text, ",", "t.csv")
    assert table.columns.tolist() == ["a", "b"]
    assert rows(table) == [["1", "2"], ["3", "two\nlines"], ["5", "6"]]
    assert table.index.tolist() == [4, 7, 10]
    lines = text.splitlines()
    assert [lines[line - 1][0] for line in table.index] == ["1", "3", "5"]


def test_a_copy_has_the_same_rows_and_its_own_spaces():
    plain = "a, b\n 1, x\n   \n2,  y \n"
    assert rows(parse_csv(plain, ",", "t")[0]) == [["1", "x"], ["2", "y "]]
    exact, _ = parse_csv(plain, ",", "t", verbatim=True)
    assert exact.columns.tolist() == ["a", " b"]
    assert rows(exact) == [[" 1", " x"], ["2", "  y "]]
    quoted = 'a, b\n1, "x, y"\n'  # without skipping the space, this row would have three cells
    for verbatim in (False, True):
        assert rows(parse_csv(quoted, ",", "t", verbatim=verbatim)[0]) == [["1", "x, y"]]


def test_rows_that_are_too_long_or_too_short():
    with pytest.raises(
        InvalidInput, match=r"line 4 has 3 cells, but the first has 2 names.*separator"
    ):
        parse_csv("a,b\n1,2\n\n1,2,3\n", ",", "t.csv")
    table, short = parse_csv("a,b\n1\n1,2\n", ",", "t.csv")
    assert rows(table) == [["1", ""], ["1", "2"]] and short == [2]


def test_a_quote_that_is_never_closed_is_refused_by_its_line():
    with pytest.raises(InvalidInput, match="line 3 and never closed"):
        parse_csv('a,b\n1,2\n3,"4\n5,6\n', ",", "t.csv")


def test_cells_may_be_long():
    long = "x" * 200_000
    assert rows(parse_csv(f"a,b\n{long},1\n", ",", "t")[0]) == [[long, "1"]]


@pytest.mark.parametrize(
    "raw, told",
    [
        (b"\xef\xbb\xbf", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"", "is empty"),
        (b"a\0,b\n1,2\n", "not a text file"),
        (b"\xff\xfea", "begins like a file in utf-16-le, but is not valid"),
    ],
)
def test_what_is_no_text_is_refused(raw, told):
    with pytest.raises(InvalidInput, match=told):
        decode_text(raw, "t.csv")


def test_every_byte_of_a_windows_file_is_kept():
    raw = bytes(range(1, 256))
    text, encoding, notes = decode_text(raw, "t.csv")
    assert len(set(text)) == 255 and "\ufffd" not in text and "€" in text
    assert "not UTF-8" in notes[0] and encoding.encode(text) == raw


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-16-le"])
def test_unicode_is_recognized_and_written_again(codec):
    raw = "straße;y\r\n1;2\r\n".encode(codec)
    text, encoding, notes = decode_text(raw, "t.csv")
    assert text == "straße;y\r\n1;2\r\n" and notes == [] and encoding.encode(text) == raw


def test_separators_are_found():
    assert guess_separator("a;b;c\n1,5;2;3\n") == ";"
    assert guess_separator("a\tb\n1\t2\n") == "\t"
    assert guess_separator("a|b\n1|2\n") == "|"
    assert guess_separator("a,b\n1,2\n") == ","
    wordy = "id;text;kind\n" + "1;one, two, three, four, five, six;x\n" * 20
    assert guess_separator(wordy) == ";"
    assert guess_separator("a,b\n" + '1,"x;y;z;w"\n' * 20) == ","


def test_separators_that_are_given():
    assert check_separator("tab") == "\t" and check_separator("^") == "^"
    for wrong in ("", ",,", '"', "\n"):
        with pytest.raises(InvalidInput, match="one character"):
            check_separator(wrong)
