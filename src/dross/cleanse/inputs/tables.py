"""Tables: CSV, TSV and Parquet files, and the numbers that a model can learn from."""

import csv
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ...errors import BadInput
from ...support.name_hints import check_name
from .frames import Frame, Series, library
from .source import Source

KINDS = ("number", "category", "date", "text", "ignore")
_SEPARATORS = ",;\t|"
_MOST_CATEGORIES = 60
_NEARLY_ALL = 0.95
_MISSING = ["", "?", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "-"]


# --- reading --------------------------------------------------------------------------------------------------------------------------


def read_frame(path: Path, as_it_is: bool = False) -> tuple[Frame, list[str]]:
    """Everything as text, as it stands in the file, and what had to be guessed. as_it_is: nothing counts as missing, and Parquet keeps its types."""
    pandas = library()

    if not path.exists():
        raise BadInput(f"There is no file {path}.")
    if path.suffix.lower() in (".parquet", ".pq"):
        try:
            frame = pandas.read_parquet(path)
        except (OSError, ValueError) as error:
            raise BadInput(f"{path} cannot be read as Parquet: {error}") from None
        if as_it_is:
            return frame, []
        return frame.astype(object).where(frame.notna(), None).map(
            lambda v: None if v is None else str(v)
        ), []
    raw = path.read_bytes()
    if not raw.strip():
        raise BadInput(f"{path} is empty.")
    notes, encoding = [], "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        if b"\0" in raw[:1000]:
            raise BadInput(
                f"{path} is not a text file. Save it as CSV (UTF-8) or Parquet."
            ) from None
        encoding = "cp1252"
        text = raw.decode(encoding, errors="replace")
        notes.append(
            f"{path.name} is not UTF-8 (byte {error.start}); read as Windows-1252. Look at letters with accents."
        )
    separator = _separator(text[:65536])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error", pandas.errors.ParserWarning
            )  # rows that are longer than the header
            frame = pandas.read_csv(
                path,
                sep=separator,
                dtype=str,
                encoding=encoding,
                encoding_errors="replace",
                keep_default_na=False,
                na_values=[] if as_it_is else _MISSING,
                skipinitialspace=not as_it_is,
                index_col=False,
            )
    except (
        pandas.errors.ParserError,
        pandas.errors.ParserWarning,
        pandas.errors.EmptyDataError,
        csv.Error,
    ) as error:
        raise BadInput(
            f"{path} cannot be read as a table: {error}. Rows must have as many cells as the first line has names."
        ) from None
    frame.columns = frame.columns if as_it_is else [str(name).strip() for name in frame.columns]
    if separator != ",":
        notes.append(
            f"Columns are separated by {'a tab' if separator == chr(9) else repr(separator)}."
        )
    return frame, notes


def _separator(sample: str) -> str:
    lines = [line for line in sample.splitlines()[:50] if line.strip()]
    best, most = ",", 0.0
    for candidate in _SEPARATORS:
        counts = [line.count(candidate) for line in lines[: max(1, len(lines) - 1)]]
        even = min(counts) > 0 and max(counts) - min(counts) <= max(counts) * 0.5
        if counts and (score := float(np.median(counts)) * (2 if even else 1)) > most:
            best, most = candidate, score
    return best


def read(
    path: Path,
    label: str,
    *,
    task: str | None = None,
    text: str | None = None,
    columns: dict[str, str] | None = None,
) -> Source:
    """A source from a file. `text`: the column that is to be read as text; everything else is left aside then."""
    frame, notes = read_frame(path)
    return from_frame(
        frame, label, task=task, text=text, columns=columns, notes=notes, where=str(path)
    )


def from_frame(
    frame: Frame,
    label: str,
    *,
    task: str | None = None,
    text: str | None = None,
    columns: dict[str, str] | None = None,
    notes: list[str] | None = None,
    where: str = "the table",
) -> Source:
    notes = list(notes or [])
    if label not in frame.columns and len(frame.columns) == 1:
        raise BadInput(
            f"{where} was read as one column named '{frame.columns[0][:60]}'. Is the separator something other than a comma, semicolon, tab or |?"
        )
    check_name("column", label, map(str, frame.columns))
    if text is not None:
        check_name("column", text, map(str, frame.columns))
    for name, kind in (columns or {}).items():
        check_name("column", name, map(str, frame.columns))
        check_name("kind of column", kind, KINDS)
    present = frame[label].notna().to_numpy()
    if not present.all():
        notes.append(f"{(~present).sum():,} rows have no '{label}' and are left out.")
    names = [
        f"row {k + 2}" for k in np.flatnonzero(present)
    ]  # as a spreadsheet counts them: the first line has the names
    frame = frame[present].reset_index(drop=True)
    labels = _labels(frame[label], label, task, notes)
    content = frame[[text]].rename(columns={text: "text"}) if text else frame.drop(columns=[label])
    if text:
        empty = content["text"].isna() | (content["text"].str.strip() == "")
        if empty.any():
            notes.append(f"{int(empty.sum()):,} texts are empty.")
    elif (twice := int(frame.duplicated().sum())) > 0:
        notes.append(
            f"{twice:,} rows are exact copies of an earlier row. They are kept; look at them on the page."
        )
    return Source("text" if text else "table", label, content, labels, names, notes)


def _labels(column: Series, name: str, task: str | None, notes: list[str]) -> np.ndarray:
    pandas = library()

    numbers = pandas.to_numeric(column, errors="coerce")
    if task is None:
        whole = bool(numbers.notna().all()) and bool((numbers == numbers.round()).all())
        many = column.nunique() > (20 if whole else 10)
        task = "regression" if bool(numbers.notna().all()) and many else "classification"
        kind = (
            "a number to be predicted (regression)"
            if task == "regression"
            else f"{column.nunique()} classes"
        )
        notes.append(f"'{name}' is taken for {kind}; --task says otherwise.")
    check_name("task", task, ("classification", "regression"))
    if task == "classification":
        return column.astype(str).str.strip().to_numpy(dtype=object)
    if not numbers.notna().all():
        wrong = column[numbers.isna()].iloc[0]
        raise BadInput(
            f"'{name}' is to be a number, but {int(numbers.isna().sum())} cells are not, such as '{wrong}'."
        )
    return numbers.to_numpy(dtype=np.float64)


# --- numbers --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    name: str
    kind: str  # one of KINDS
    why: str = ""


def infer(content: Frame, given: dict[str, str] | None = None) -> list[Column]:
    """What each column is, as far as its cells tell; `given` overrides."""
    return [
        Column(str(name), given[name], "given")
        if given and name in given
        else _inferred(content[name])
        for name in content.columns
    ]


def _inferred(column: Series) -> Column:
    name, cells = str(column.name), column.dropna()
    if len(cells) == 0:
        return Column(name, "ignore", "no cell has a value")
    distinct = cells.nunique()
    if distinct == 1 and len(cells) == len(column):
        return Column(name, "ignore", f"always '{cells.iloc[0]}'")
    numeric = _numbers(cells).notna().mean()
    if numeric == 1.0 or (numeric >= _NEARLY_ALL and distinct > 10):
        if distinct == len(column) and name.strip().lower() in (
            "id",
            "index",
            "unnamed: 0",
            "row",
            "key",
        ):
            return Column(name, "ignore", "a number of its own for every row: an identifier")
        odd = (
            ""
            if numeric == 1.0
            else f"{1 - numeric:.1%} of its cells are not numbers and count as missing"
        )
        return Column(name, "number", odd)
    if (
        _dates(cells.head(200)).notna().mean() >= _NEARLY_ALL
        and _dates(cells).notna().mean() >= _NEARLY_ALL
    ):
        return Column(name, "date")
    if distinct <= _MOST_CATEGORIES or distinct < 0.05 * len(cells):
        return Column(name, "category")
    return Column(name, "ignore", f"{distinct:,} different texts: a name or an identifier")


def _numbers(cells: Series) -> Series:
    pandas = library()

    return pandas.to_numeric(cells, errors="coerce").replace([np.inf, -np.inf], np.nan)


def _dates(cells: Series) -> Series:
    pandas = library()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pandas.to_datetime(cells, errors="coerce", format="mixed", utc=True)


class TableEncoder:
    """Numbers standardized, missing ones at the median with a flag; categories one-hot; dates as days, month and weekday."""

    def __init__(self, content: Frame, columns: list[Column]):
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        self.columns = [
            column for column in columns if column.kind in ("number", "category", "date")
        ]
        if not self.columns:
            told = "; ".join(f"{column.name}: {column.why}" for column in columns)
            raise BadInput(
                f"No column is left to learn from ({told}). Say what they are: --column name=number|category|date."
            )
        numbers = make_pipeline(
            SimpleImputer(strategy="median", add_indicator=True), StandardScaler()
        )
        categories = OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            min_frequency=2,
            max_categories=_MOST_CATEGORIES,
            sparse_output=False,
        )
        typed = self._typed(content)
        flat = [name for name in typed.columns if not name.startswith(_CATEGORY)]
        named = [name for name in typed.columns if name.startswith(_CATEGORY)]
        self._transform = ColumnTransformer(
            [("numbers", numbers, flat), ("categories", categories, named)]
        )
        self._transform.fit(typed)

    def __call__(self, content: Frame) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Found unknown categories")
            encoded = self._transform.transform(self._typed(content))
        return torch.from_numpy(
            np.clip(np.asarray(encoded, dtype=np.float32), -8, 8)
        )  # one wild cell must not end the training

    def _typed(self, content: Frame) -> Frame:
        pandas = library()

        made: dict[str, Series] = {}
        for column in self.columns:
            cells = content[column.name]
            if column.kind == "number":
                made[column.name] = _numbers(cells)
            elif column.kind == "category":
                made[_CATEGORY + column.name] = cells.fillna("(missing)").astype(str)
            else:
                dates = _dates(cells)
                made[f"{column.name} day"] = (
                    dates - pandas.Timestamp("2000-01-01", tz="UTC")
                ).dt.total_seconds() / 86400
                made[f"{column.name} month"], made[f"{column.name} weekday"] = (
                    dates.dt.month.astype(float),
                    dates.dt.day_of_week.astype(float),
                )
        return pandas.DataFrame(made)


_CATEGORY = "category: "


def unusual(content: Frame, rows: np.ndarray, columns: list[Column]) -> list[dict[str, str]]:
    """For each of these rows: which cells are unusual among all rows, in words."""
    found: list[dict[str, str]] = [{} for _ in rows]
    for column in columns:
        cells = content[column.name]
        if column.kind == "number":
            numbers = _numbers(cells)
            middle, spread = numbers.median(), numbers.std()
            if not spread > 0:
                continue
            for place, row in enumerate(rows):
                value = numbers.iloc[row]
                if abs(value - middle) > 3 * spread:
                    share = float(
                        (numbers >= value).mean() if value > middle else (numbers <= value).mean()
                    )
                    found[place][column.name] = (
                        f"unusually {'high' if value > middle else 'low'}: {max(share, 1 / len(cells)):.2%} of all are so {'high' if value > middle else 'low'}"
                    )
        elif column.kind == "category":
            shares = cells.value_counts(normalize=True)
            for place, row in enumerate(rows):
                value = cells.iloc[row]
                if value is not None and shares.get(value, 1.0) < 0.01:
                    found[place][column.name] = f"rare: {shares[value]:.2%} of all rows"
    return found


def described(columns: list[Column]) -> list[str]:
    """What was inferred, a line for each kind."""
    lines = []
    for kind, words in (("number", "Numbers"), ("category", "Categories"), ("date", "Dates")):
        if names := [column.name for column in columns if column.kind == kind]:
            lines.append(f"{words}: {', '.join(names)}.")
    lines += [
        f"'{column.name}' is left aside: {column.why}."
        for column in columns
        if column.kind in ("ignore", "text")
    ]
    lines += [
        f"'{column.name}': {column.why}."
        for column in columns
        if column.kind == "number" and column.why not in ("", "given")
    ]
    return lines
