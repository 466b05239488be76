"""Read tables: CSV, TSV and Parquet files."""

import csv
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...errors import BadInput
from ...support.name_hints import check_name
from .columns import KINDS
from .source import Frame, Series, Source, import_pandas

_SEPARATORS = ",;\t|"
_SEPARATOR_SAMPLE = 65536  # characters
_MISSING = ["", "?", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "-"]
_MAX_CLASSES = 10  # a column of numbers with more distinct values is taken for a regression ...
_MAX_WHOLE_NUMBER_CLASSES = 20  # ... unless they are whole numbers


def read_frame(path: Path, *, verbatim: bool = False) -> tuple[Frame, list[str]]:
    """Read a table, every cell as text.

    Arguments:
        path: A CSV, TSV or Parquet file.
        verbatim: No cell counts as missing, names and cells keep their spaces, and Parquet keeps
            its types.

    Returns:
        The table, and notes about what had to be guessed.
    """
    if not path.exists():
        raise BadInput(f"There is no file {path}.")
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path, verbatim), []
    raw = path.read_bytes()
    if not raw.strip():
        raise BadInput(f"{path} is empty.")
    text, encoding, notes = _decode(raw, path)
    separator = _guess_separator(text[:_SEPARATOR_SAMPLE])
    frame = _read_csv(path, separator, encoding, verbatim)
    if separator != ",":
        shown = "a tab" if separator == "\t" else repr(separator)
        notes.append(f"Columns are separated by {shown}.")
    return frame, notes


def _read_parquet(path: Path, verbatim: bool) -> Frame:
    try:
        frame = import_pandas().read_parquet(path)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as Parquet: {error}") from None
    if verbatim:
        return frame
    present = frame.astype(object).where(frame.notna(), None)
    return present.map(lambda value: None if value is None else str(value))


def _decode(raw: bytes, path: Path) -> tuple[str, str, list[str]]:
    """The text of a file, its encoding, and a note if the encoding had to be guessed."""
    encoding = "utf-8-sig"
    try:
        return raw.decode(encoding), encoding, []
    except UnicodeDecodeError as error:
        if b"\0" in raw[:1000]:
            raise BadInput(
                f"{path} is not a text file. Save it as CSV (UTF-8) or Parquet."
            ) from None
        encoding = "cp1252"
        note = (
            f"{path.name} is not UTF-8 (byte {error.start}); read as Windows-1252. "
            "Look at letters with accents."
        )
        return raw.decode(encoding, errors="replace"), encoding, [note]


def _guess_separator(sample: str) -> str:
    """The separator that occurs most often in a line, preferably equally often in every line."""
    lines = [line for line in sample.splitlines()[:50] if line.strip()]
    whole = lines[: max(1, len(lines) - 1)]  # the sample may end within the last line
    best, best_score = ",", 0.0
    for candidate in _SEPARATORS:
        counts = [line.count(candidate) for line in whole]
        even = min(counts) > 0 and max(counts) - min(counts) <= max(counts) * 0.5
        score = float(np.median(counts)) * (2 if even else 1)
        if score > best_score:
            best, best_score = candidate, score
    return best


def _read_csv(path: Path, separator: str, encoding: str, verbatim: bool) -> Frame:
    pandas = import_pandas()
    errors = pandas.errors
    try:
        with warnings.catch_warnings():
            # pandas only warns of rows that are longer than the header
            warnings.simplefilter("error", errors.ParserWarning)
            frame = pandas.read_csv(
                path,
                sep=separator,
                dtype=str,
                encoding=encoding,
                encoding_errors="replace",
                keep_default_na=False,
                na_values=[] if verbatim else _MISSING,
                skipinitialspace=not verbatim,
                index_col=False,
            )
    except (errors.ParserError, errors.ParserWarning, errors.EmptyDataError, csv.Error) as error:
        raise BadInput(
            f"{path} cannot be read as a table: {error}. Rows must have as many cells as the first "
            "line has names."
        ) from None
    if not verbatim:
        frame.columns = [str(name).strip() for name in frame.columns]
    return frame


def row_names(rows: Iterable[int]) -> list[str]:
    """The names of rows as a spreadsheet counts them: its first line holds the column names."""
    return [f"row {k + 2}" for k in rows]


def read_table(
    path: Path,
    label: str,
    *,
    task: str | None = None,
    text: str | None = None,
    columns: dict[str, str] | None = None,
) -> Source:
    """Read a table, or one column of it as texts.

    Arguments:
        path: A CSV, TSV or Parquet file.
        label: The column to learn.
        task: classification or regression; inferred from the labels by default.
        text: The column to read as text. All other columns are then left out.
        columns: The kinds of some columns. Here they are only checked.
    """
    frame, notes = read_frame(path)
    _check_single_column(frame, label, path)
    columns = columns or {}
    for name in [label, *([] if text is None else [text]), *columns]:
        check_name("column", name, map(str, frame.columns))
    for kind in columns.values():
        check_name("kind of column", kind, KINDS)
    present = frame[label].notna().to_numpy()
    if not present.all():
        notes.append(f"{(~present).sum():,} rows have no '{label}' and are left out.")
    names = row_names(np.flatnonzero(present))
    frame = frame[present].reset_index(drop=True)
    labels = _parse_labels(frame[label], label, task, notes)
    if text:
        content = frame[[text]].rename(columns={text: "text"})
        empty = content["text"].isna() | (content["text"].str.strip() == "")
        if empty.any():
            notes.append(f"{int(empty.sum()):,} texts are empty.")
        return Source("text", label, content, labels, names, notes)
    copies = int(frame.duplicated().sum())
    if copies > 0:
        notes.append(
            f"{copies:,} rows are exact copies of an earlier row. They are kept; look at them on "
            "the page."
        )
    return Source("table", label, frame.drop(columns=[label]), labels, names, notes)


def _check_single_column(frame: Frame, label: str, path: Path) -> None:
    """Refuse a table that was probably read with the wrong separator."""
    if label not in frame.columns and len(frame.columns) == 1:
        raise BadInput(
            f"{path} was read as one column named '{frame.columns[0][:60]}'. Is the separator "
            "something other than a comma, semicolon, tab or |?"
        )


def _parse_labels(column: Series, name: str, task: str | None, notes: list[str]) -> np.ndarray:
    """Labels as [N] of str for classes, float64 for numbers; an inferred task is noted."""
    numbers = import_pandas().to_numeric(column, errors="coerce")
    if task is None:
        task = _infer_task(column, numbers)
        distinct = f"{column.nunique()} classes"
        meaning = "a number to be predicted (regression)" if task == "regression" else distinct
        notes.append(f"'{name}' is taken for {meaning}; --task says otherwise.")
    check_name("task", task, ("classification", "regression"))
    if task == "classification":
        return column.astype(str).str.strip().to_numpy(dtype=object)
    if not numbers.notna().all():
        example = column[numbers.isna()].iloc[0]
        raise BadInput(
            f"'{name}' is to be a number, but {int(numbers.isna().sum())} cells are not, such as "
            f"'{example}'."
        )
    return numbers.to_numpy(dtype=np.float64)


def _infer_task(column: Series, numbers: Series) -> str:
    if not numbers.notna().all():
        return "classification"
    whole = bool((numbers == numbers.round()).all())
    most = _MAX_WHOLE_NUMBER_CLASSES if whole else _MAX_CLASSES
    return "regression" if column.nunique() > most else "classification"
