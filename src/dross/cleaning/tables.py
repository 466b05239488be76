"""Tables: their cells, the kinds of their columns, and their encoding for a model."""

import re
import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from .._checks import check_name
from .._text import say_count
from ..errors import InvalidInput
from .files import EXCEL, Place, read_bytes
from .formats import Reading, column_names, open_table
from .modality import Column, Frame, Modality, Series, Source
from .task import (
    CLASSIFICATION,
    REGRESSION,
    check_size,
    parse_finite,
    parse_numbers,
    read_number,
)
from .text import TEXT

TABLE = Modality("table")

_LISTED = 30  # columns that are named; there may be thousands
_MISSING = ("", "?", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "-")


# --- frames ---------------------------------------------------------------------------------------


def read_frame(path: Place, *, reading: Reading, needed: list[str]) -> tuple[Frame, list[str]]:
    """Read a table. Its index has the numbers of the rows.

    Numbers and dates of files that have types keep them; all other cells are text, or None.

    Arguments:
        path: A file in one of FORMATS, or a URL of one.
        reading: How to read it.
        needed: The names of columns that must be there, and only once.

    Returns:
        The table, and notes about what had to be guessed.
    """
    form, raw = open_table(read_bytes(path), path)
    if reading.sheet is not None and form.what != EXCEL:
        raise InvalidInput(f"{path} is {form.what}, which has no sheets. Leave out `sheet`.")
    frame, notes = form.read(raw, path, reading)
    missing = reading.missing or ()
    if not form.marks_missing:
        missing = _MISSING if reading.missing is None else ("", *reading.missing)
    original = [str(name).strip() for name in frame.columns]
    frame.columns = names = column_names(original)
    lacking = next((name for name in needed if name not in names), None)
    if lacking is not None and (why := form.explain_lack(raw, path, reading, names, lacking)):
        raise InvalidInput(why)
    if len(frame) == 0:
        raise InvalidInput(f"{path} has column names, but no rows.")
    if not form.marks_missing and _lacks_header(frame, original, lacking):
        shown = ", ".join(original[:6]) + (", ..." if len(original) > 6 else "")
        raise InvalidInput(
            f"{path} seems to have no header: its first row is {shown}. Insert a first row with the "
            "names of the columns, and pass one of these names as `label`."
        )
    is_guessed = any("is not UTF-8" in note for note in notes)
    encoding = ", which is not UTF-8 and was read as Windows-1252" if is_guessed else ""
    _check_needed(names, original, needed, f"{path}{encoding}")
    renamed = [
        f"column {place} is now '{name}'"
        for place, (before, name) in enumerate(zip(original, names), 1)
        if before != name
    ]
    if renamed:
        more = " ..." if len(renamed) > 3 else ""
        notes.append(
            "Columns with no name or a duplicate name were renamed: "
            f"{', '.join(renamed[:3])}{more}."
        )
    for name in needed:
        counts = Counter(cell for cell in as_text(frame[name]) if cell and cell in missing)
        if counts:
            shown = ", ".join(f"'{cell}' ({count:,})" for cell, count in counts.most_common(3))
            verb = "is" if len(counts) == 1 else "are"
            notes.append(
                f"In '{name}', {shown} {verb} treated as missing; pass `na` to change this."
            )
    columns = {name: _mark_missing(frame[name], missing) for name in names}
    return pandas.DataFrame(columns, index=frame.index), notes


def list_columns(path: Place, reading: Reading) -> list[str]:
    """The names of the columns of a file."""
    form, raw = open_table(read_bytes(path), path)
    return column_names(form.read(raw, path, reading)[0].columns)


def _check_needed(names: list[str], original: list[str], needed: list[str], where: str) -> None:
    """Refuse a table that lacks a column that is needed, or has two of its name.

    Arguments:
        names: The names that its columns are known by.
        original: These names as they are in the file.
        needed: The names of the columns.
        where: The file, for messages.
    """
    for name in needed:
        check_name("column", name, names, where=f" in {where}")
        places = [str(place) for place, other in enumerate(original, 1) if other == name]
        if len(places) > 1:
            raise InvalidInput(
                f"{where} has {len(places)} columns named '{name}' (columns {', '.join(places)}). "
                "Rename all but the one you want to use."
            )


def _lacks_header(frame: Frame, original: list[str], lacking: str | None) -> bool:
    """Whether the names of the columns are cells: some are numbers, and one is a cell of its column.

    Where a column that is needed is not there, it is enough that all names are numbers.
    """
    texts = [k for k, name in enumerate(original) if read_number(name) is None]
    if len(texts) == len(original):
        return False
    if not texts:
        return lacking is not None
    return any((as_text(frame.iloc[:, k]) == original[k]).mean() > 0.01 for k in texts)


def _mark_missing(column: Series, missing: Sequence[str]) -> Series:
    """The column, typed if it contains numbers or dates, else as text; None for missing cells."""
    text = as_text(column)
    is_missing = text.isna() | text.isin(list(missing))
    return column.mask(is_missing) if column.dtype.kind in "iufM" else text.mask(is_missing, None)


def as_text(column: Series) -> Series:
    """Cells as text; None for those that are missing."""
    return column.astype(object).map(str).where(column.notna(), None)


def has_content(column: Series) -> np.ndarray:
    """Which cells have more in them than spaces, bool [N]."""
    return as_text(column).fillna("").str.strip().ne("").to_numpy(dtype=bool)


# --- columns --------------------------------------------------------------------------------------


_UNUSED = ("text", "ignore")
KINDS = ("number", "category", "date", *_UNUSED)
_MAX_CATEGORIES = 60
_MAX_SHARE_OF_CATEGORIES = 0.05  # distinct texts per cell; in a long table more may be categories
_NEARLY_ALL = 0.95
_DATES_TRIED = 200  # parsing dates is slow: a few cells rule most columns out
_STYLED_NUMBER = (
    r"\s*[+-]?[$€£¥]?\s?[+-]?\d{1,3}([., '\u00a0\u202f]?\d{3})*([.,]\d+)?\s?[%$€£¥]?\s*"
)
_WORDS_OF_PROSE = 4  # in a cell, on average
_CATEGORY = "category: "  # before the name of an encoded column
_ROW_NUMBERS = ("index", "unnamed: 0", "row", "key")  # whole names
_IDENTIFIER = re.compile(
    r"ids?|[ug]uid|no|nr|number|kennung|\w*nummer|\w+nr"
)  # last words of names
_POSTCODE = re.compile(r"plz|zip|zip ?code|post(al)? ?code|postleitzahl")
_LEADING_ZEROS = re.compile(r"0\d+")
_DATE = re.compile(
    r"\s*(?:(?:1[5-9]|2\d)\d\d[-/.]\d{1,2}(?:[-/.]\d{1,2})?(?:[T ].*)?"  # 2024-01-31
    r"|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2})(?:[T ,].*)?"  # 31.1.2024
    r"|(?=.*\d)(?:.*[\d\W_])?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[\d\W_].*)\s*",
    re.IGNORECASE,
)
_NUMBERS_OF_DATE = re.compile(r"^\s*(\d{1,2})([-/.])(\d{1,2})[-/.]\d{2,4}\b")
_SKEWED, _HEAVY = 5, 50  # the third and the fourth moment that put a column on a logarithmic scale
LARGEST_INPUT = 8  # deviations; one outlier must not end the training


def infer_columns(content: Frame, kinds: dict[str, str]) -> list[Column]:
    """The kinds of the columns, inferred from their cells where `kinds` has none."""
    columns = []
    for name in content.columns:
        if kind := kinds.get(name):
            why = f"it is set to {kind}" if kind in _UNUSED else ""
            columns.append(Column(name, kind, why))
        else:
            columns.append(_infer_column(name, content[name]))
    return columns


def _infer_column(name: str, column: Series) -> Column:
    cells = column.dropna()
    if len(cells) == 0:
        return Column(name, "ignore", "no cell has a value")
    distinct = cells.nunique()
    if distinct == 1 and len(cells) == len(column):
        return Column(name, "ignore", f"every cell is '{cells.iloc[0]}'")
    numbers = parse_finite(cells)
    numeric = numbers.notna().mean()
    if numeric == 1.0 and (code := _recognize_code(name, cells, numbers, distinct)):
        return code
    if numeric == 1.0 or (numeric >= _NEARLY_ALL and distinct > 10):
        why = f"{1 - numeric:.1%} of its cells are not numbers and are treated as missing"
        return Column(name, "number", "" if numeric == 1.0 else why)
    is_styled = _are_styled_numbers(cells)
    is_identifier = _IDENTIFIER.fullmatch(_last_word(name)) is not None
    if (
        not (is_styled or is_identifier)
        and _are_dates(cells.head(_DATES_TRIED))
        and _are_dates(cells)
    ):
        return Column(name, "date")
    if distinct <= _MAX_CATEGORIES or distinct < _MAX_SHARE_OF_CATEGORIES * len(cells):
        return Column(name, "category")
    if is_styled:
        example = f"'{cells.iloc[0]}'"
        why = f"its numbers are written as {example}; write digits and a decimal point only"
        return Column(name, "ignore", why)
    what = "" if is_prose(column) else ", like names or identifiers"
    return Column(name, "ignore", f"{distinct:,} distinct text values{what}")


def _recognize_code(name: str, cells: Series, numbers: Series, distinct: int) -> Column | None:
    """A column whose numbers name things; None if they measure something."""
    if not (numbers == numbers.round()).all():
        return None
    change = f"To change this, pass `columns={{{name!r}: 'number'}}`"
    if name.strip().lower() in _ROW_NUMBERS and distinct == len(cells):
        return Column(name, "ignore", "a different number in every row, like an identifier")
    if _IDENTIFIER.fullmatch(_last_word(name)) and distinct > len(cells) / 2:
        why = f"its numbers identify rows, as its name suggests. {change}"
        return Column(name, "ignore", why)
    if _POSTCODE.fullmatch(" ".join(words_of(name))):
        return Column(name, "category", f"postcodes are codes, not amounts. {change}")
    texts = as_text(cells)
    if texts.str.fullmatch(_LEADING_ZEROS).any() and texts.str.len().nunique() == 1:
        example = texts[texts.str.startswith("0")].iloc[0]
        return Column(name, "category", f"numbers such as {example} are codes. {change}")
    return None


def words_of(name: str) -> list[str]:
    """The words of a column name in small letters: ["customer", "id"] of customerId."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return [word.lower() for word in re.split(r"[\W\d_]+", apart) if word]


def _last_word(name: str) -> str:
    return next(reversed(words_of(name)), "")


def _are_styled_numbers(cells: Series) -> bool:
    """Whether they are numbers with separators between digits, decimal commas, or units."""
    return as_text(cells).str.fullmatch(_STYLED_NUMBER).mean() >= _NEARLY_ALL


def is_prose(column: Series) -> bool:
    """Whether cells are texts that can be learned from as such: of several words, most different."""
    cells = as_text(column.dropna().head(_DATES_TRIED))
    words = cells.str.split().str.len()
    return len(cells) > 0 and words.mean() >= _WORDS_OF_PROSE and cells.nunique() > len(cells) / 2


def _to_dates(cells: Series) -> Series:
    """Cells as dates; NaT for all others."""
    if cells.dtype.kind in "iuf":  # pandas would count nanoseconds
        return pandas.Series(pandas.NaT, index=cells.index, dtype="datetime64[ns, UTC]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pandas.to_datetime(
            cells, errors="coerce", format="mixed", utc=True, dayfirst=_has_days_first(cells)
        )


def _has_days_first(cells: Series) -> bool:
    """Whether dates such as 08.04.2024 or 25/12/2024 begin with the day; 4/8/2024 alone does not."""
    if cells.dtype.kind == "M":
        return False
    parts = as_text(cells).str.extract(_NUMBERS_OF_DATE)
    first, mark, second = (parts[place] for place in range(3))
    return bool((mark == ".").any() or (first.astype(float) > 12).any()) and not bool(
        (second.astype(float) > 12).any()
    )


def days_since_2000(dates: Series) -> Series:
    """Dates as numbers; nan for those that are missing."""
    return (dates - pandas.Timestamp("2000-01-01", tz="UTC")).dt.total_seconds() / 86400


def parse_times(column: Series) -> np.ndarray:
    """Numbers as they are and dates in days, float64 [N]; nan for all other cells."""
    numbers = parse_finite(column)
    if numbers.notna().sum() >= _NEARLY_ALL * column.notna().sum():
        return numbers.to_numpy(dtype=np.float64)
    return days_since_2000(_to_dates(column)).to_numpy(dtype=np.float64)


def _are_dates(cells: Series) -> bool:
    if cells.dtype.kind == "M":
        return True
    # pandas takes part numbers such as A-1234 for dates
    looks = as_text(cells).str.fullmatch(_DATE).mean() >= _NEARLY_ALL
    return bool(looks) and _to_dates(cells).notna().mean() >= _NEARLY_ALL


def describe_columns(columns: list[Column]) -> list[str]:
    """Sentences about the kinds of the columns, for the user to check."""
    lines = []
    for kind, words in (("number", "Numbers"), ("category", "Categories"), ("date", "Dates")):
        if names := [column.name for column in columns if column.kind == kind]:
            lines.append(f"{words}: {list_names(names)}.")
    ignored = [column for column in columns if column.kind in _UNUSED]
    for column in ignored[:_LISTED]:
        is_text = column.kind == "ignore" and column.why.endswith("distinct text values")
        hint = f" To learn from them alone: `text={column.name!r}`." if is_text else ""
        lines.append(f"'{column.name}' is ignored: {column.why}.{hint}")
    if len(ignored) > _LISTED:
        lines.append(f"{len(ignored) - _LISTED:,} more columns are ignored.")
    odd = [column for column in columns if column.why and column.kind not in _UNUSED]
    lines += [f"'{column.name}': {column.why}." for column in odd[:_LISTED]]
    if len(odd) > _LISTED:
        lines.append(f"{len(odd) - _LISTED:,} more columns are like these.")
    return lines


def list_names(names: Sequence[str]) -> str:
    """The names of columns for a sentence: the first, and how many more there are."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def check_cells(content: Frame, names: Sequence[str], columns: list[Column]) -> None:
    """Refuse numbers that are too large to learn from, naming row and column."""
    for column in columns:
        if column.kind == "number":
            check_size(names, column.name, parse_finite(content[column.name]).to_numpy())


class TableEncoder:
    """Turns the columns of a table into numbers, float32 [N, inputs].

    Numbers are standardized; a missing one is replaced by the median and flagged. Highly skewed
    ones are put on a logarithmic scale to both sides of their median first. Categories are one-hot.
    A date becomes its day, month and weekday.
    """

    def __init__(self, content: Frame, columns: list[Column]):
        self.columns = [column for column in columns if column.kind not in _UNUSED]
        if not self.columns:
            raise InvalidInput(_explain_nothing_left(content, columns))
        numbers = make_pipeline(
            SimpleImputer(strategy="median", add_indicator=True), StandardScaler()
        )
        categories = OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            min_frequency=2,
            max_categories=_MAX_CATEGORIES,
            sparse_output=False,
        )
        parsed = self._parse(content)
        self._scales = _find_scales(parsed, self.columns)
        self._scale(parsed)
        numeric = [name for name in parsed.columns if not name.startswith(_CATEGORY)]
        textual = [name for name in parsed.columns if name.startswith(_CATEGORY)]
        self._transform = ColumnTransformer(
            [("numbers", numbers, numeric), ("categories", categories, textual)]
        )
        self._transform.fit(parsed)

    @property
    def skewed(self) -> list[str]:
        """The columns on a logarithmic scale."""
        return list(self._scales)

    @property
    def column_of_input(self) -> np.ndarray:
        """The column that each input comes from, int64 [inputs]: a position in `columns`."""
        (_, _, numeric), (_, _, textual) = self._transform.transformers_
        fitted = self._transform.named_transformers_
        names = list(numeric)
        if numeric:
            names += [numeric[k] for k in fitted["numbers"][0].indicator_.features_]
        if textual:
            known = fitted["categories"].categories_
            rare = fitted["categories"].infrequent_categories_
            for name, categories, merged in zip(textual, known, rare, strict=True):
                others = 0 if merged is None else len(merged) - 1  # they share one input
                names += [name] * (len(categories) - others)
        place = {name: k for k, column in enumerate(self.columns) for name in _parsed_names(column)}
        return np.array([place[name] for name in names])

    def __call__(self, content: Frame) -> torch.Tensor:
        """Encode rows; numbers far from the mean are cut off."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Found unknown categories")
            parsed = self._parse(content)
            self._scale(parsed)
            encoded = self._transform.transform(parsed)
        inputs = np.asarray(encoded, dtype=np.float32)
        return torch.from_numpy(np.clip(inputs, -LARGEST_INPUT, LARGEST_INPUT))

    def _parse(self, content: Frame) -> Frame:
        """Columns of float64, and of str for categories; a date becomes three columns."""
        parsed: dict[str, Series] = {}
        for column in self.columns:
            name = column.name
            cells = content[name]
            names = _parsed_names(column)
            if column.kind == "number":
                parsed[name] = parse_finite(cells)
            elif column.kind == "category":
                parsed[names[0]] = as_text(cells).fillna("(missing)")
            else:
                dates = _to_dates(cells)
                day, month, weekday = names
                parsed[day] = days_since_2000(dates)
                parsed[month] = dates.dt.month.astype(float)
                parsed[weekday] = dates.dt.day_of_week.astype(float)
        return pandas.DataFrame(parsed)

    def _scale(self, parsed: Frame) -> None:
        """Put the columns with far outliers on a logarithmic scale, in place."""
        for name, (median, scale) in self._scales.items():
            distances = (parsed[name] - median) / scale
            parsed[name] = np.sign(distances) * np.log1p(np.abs(distances))


def _parsed_names(column: Column) -> list[str]:
    """The names of what `TableEncoder` makes of a column."""
    if column.kind == "number":
        return [column.name]
    if column.kind == "category":
        return [_CATEGORY + column.name]
    return [f"{column.name} {part}" for part in ("day", "month", "weekday")]


def _explain_nothing_left(content: Frame, columns: list[Column]) -> str:
    """That no column can be learned from, and what to pass so that one can."""
    if not columns:
        return "The table has no column besides the label. Add columns to learn from."
    reasons = "; ".join(f"'{column.name}': {column.why}" for column in columns[:5])
    more = "; ..." if len(columns) > 5 else ""
    varying = [column.name for column in columns if content[column.name].nunique() > 1]
    texts = [column.name for column in columns if is_prose(content[column.name])]
    if texts:
        advice = f"'{texts[0]}' contains text: to learn from it, pass `text={texts[0]!r}`."
    elif not varying:
        advice = "Add columns with values that differ."
    else:
        example = {varying[0]: "category"}
        advice = f"To use one anyway, pass its kind, such as `columns={example!r}`."
    return f"No column is left to learn from ({reasons}{more}). {advice}"


def _find_scales(parsed: Frame, columns: list[Column]) -> dict[str, tuple[float, float]]:
    """{column: its median and the usual distance from it} of columns with far outliers."""
    scales = {}
    for name in [column.name for column in columns if column.kind == "number"]:
        numbers = parsed[name].dropna().to_numpy(dtype=np.float64)
        deviation = np.std(numbers) if len(numbers) else 0.0
        if not 0 < deviation < np.inf:
            continue
        standard = (numbers - numbers.mean()) / deviation
        if abs(np.mean(standard**3)) > _SKEWED or np.mean(standard**4) > _HEAVY:
            median = float(np.median(numbers))
            distances = np.abs(numbers - median)
            scales[name] = (median, float(np.median(distances[distances > 0])))
    return scales


# --- datasets ------------------------------------------------------------------------------------


_MAX_CLASSES = 10  # a column of numbers with more distinct values is treated as a regression ...
_SEVERAL = 0.05  # the share of cells with several labels from which on they are no accident
_MAX_WHOLE_NUMBER_CLASSES = 20  # ... unless they are whole numbers


def read_table(
    path: Place,
    label: str,
    *,
    task: str | None,
    text: str | None,
    columns: dict[str, str],
    reading: Reading,
    others: Sequence[str] = (),
) -> tuple[Source, Frame]:
    """Read a table, or one column of it as texts.

    Arguments:
        path: A file in one of FORMATS, or a URL of one.
        label: The column to predict.
        task: classification or regression; None: inferred from the labels.
        text: The column to read as text. All other columns are then left out.
        columns: The kinds of some columns. Here they are only checked.
        reading: How to read it.
        others: Other columns that must be there.

    Returns:
        The instances, and all columns of their rows.
    """
    needed = [label, *others] if text is None else [label, text, *others]
    frame, notes = read_frame(path, reading=reading, needed=needed)
    for name, kind in columns.items():
        check_name("column", name, frame.columns)
        check_name("kind of column", kind, KINDS)
    # a row without a label is left out: nothing can be learned from it. Ids count the rows that are
    # left; a copy (`copy_table`) has it as it was.
    present = has_content(frame[label])
    if not present.any():
        raise InvalidInput(f"'{label}' is empty in every row of {path}: there are no labels.")
    if not present.all():
        lacking = (f"row has no '{label}' and is", f"rows have no '{label}' and are")
        notes.append(f"{say_count(int((~present).sum()), *lacking)} left out.")
    frame = frame[present]
    rows = frame.index.to_numpy()
    frame = frame.reset_index(drop=True)
    labels = _parse_labels(frame[label], label, task, notes)
    notes += _describe_alike(labels)
    if text:
        content = pandas.DataFrame({"text": as_text(frame[text])})
        empty = int((~has_content(content["text"])).sum())
        if empty > 0:
            notes.append(f"{say_count(empty, 'text is', 'texts are')} empty.")
        return Source(TEXT, label, content, labels, rows, notes=notes), frame
    copies = int(frame.duplicated().sum())
    if copies > 0:
        copied = (
            "row is an exact copy of an earlier row. It is kept; check it",
            "rows are exact copies of earlier rows. They are kept; check them",
        )
        notes.append(f"{say_count(copies, *copied)} on the review page.")
    content = frame.drop(columns=[label])
    return Source(TABLE, label, content, labels, rows, notes=notes), frame


def _describe_alike(labels: np.ndarray) -> list[str]:
    """A note about classes whose names differ only in upper and lower case."""
    if labels.dtype.kind != "O":
        return []
    alike: dict[str, list[str]] = {}
    for name in sorted(set(labels)):
        alike.setdefault(name.casefold(), []).append(f"'{name}'")
    pairs = [" and ".join(names) for names in alike.values() if len(names) > 1]
    if not pairs:
        return []
    return [f"Classes whose names differ only in capitalization: {', '.join(pairs[:3])}."]


def _find_several_labels(column: Series) -> str | None:
    """The mark between labels, if cells hold several of them: "a;b" beside "b" and "a;c"."""
    cells = Counter(as_text(column).str.strip())
    for mark in (";", "|", ","):
        parts = {cell: [part.strip() for part in cell.split(mark)] for cell in cells}
        several = [cell for cell in cells if len(parts[cell]) > 1]
        if sum(cells[cell] for cell in several) < _SEVERAL * len(column):
            continue
        uses = Counter(part for own in parts.values() for part in own)
        if len(several) > 1 and all(uses[part] > 1 for cell in several for part in parts[cell]):
            return mark
    return None


def _check_labels(column: Series, name: str, task: str) -> None:
    """Refuse a column that is no label, unless the user has specified that it is one."""
    count = column.nunique()
    if task == REGRESSION.name:
        numbers = np.sort(parse_numbers(column).to_numpy())
        if count == len(column) and (np.diff(numbers) == 1).all():
            raise InvalidInput(
                f"'{name}' numbers the rows from {numbers[0]:g} to {numbers[-1]:g}: it is an "
                "identifier, not a label. To predict it anyway, pass `task='regression'`."
            )
    elif mark := _find_several_labels(column):
        example = as_text(column)[as_text(column).str.contains(mark, regex=False)].iloc[0]
        raise InvalidInput(
            f"'{name}' has several labels in one cell, such as '{example}', and dross learns one "
            "label per row. Create one yes/no column for each label, and clean the table once per "
            "column. If each such cell is one class, pass `task='classification'`."
        )
    elif count > _MAX_CATEGORIES and is_prose(column):
        raise InvalidInput(
            f"'{name}' has {count:,} distinct text values, too many to be classes. Pass the column "
            f"that contains the classes as `label`; to learn from '{name}', pass `text={name!r}`."
        )
    elif count > _MAX_CLASSES and _are_dates(column.head(_DATES_TRIED)) and _are_dates(column):
        raise InvalidInput(
            f"'{name}' has {count:,} distinct dates, too many to be classes. Pass another column "
            "as `label`."
        )


def _parse_labels(column: Series, name: str, task: str | None, notes: list[str]) -> np.ndarray:
    """Labels as [N] of str for classes, float64 for numbers; a task that is guessed is noted."""
    numbers = parse_numbers(column)
    all_numbers = bool(numbers.notna().all())
    if task is None:
        whole = bool((numbers == numbers.round()).all())
        most = _MAX_WHOLE_NUMBER_CLASSES if whole else _MAX_CLASSES
        count = column.nunique()
        task = REGRESSION.name if all_numbers and count > most else CLASSIFICATION.name
        if task == REGRESSION.name:
            notes.append(
                f"'{name}' is predicted as a number; pass `task='classification'` to change this."
            )
        elif all_numbers:
            notes.append(
                f"The {count} distinct numbers in '{name}' are treated as classes; pass "
                "`task='regression'` to change this."
            )
        _check_labels(column, name, task)
    check_name("task", task, (CLASSIFICATION.name, REGRESSION.name))
    if task == CLASSIFICATION.name:
        return as_text(column).str.strip().to_numpy(dtype=object)
    if not all_numbers:
        example = column[numbers.isna()].iloc[0]
        raise InvalidInput(
            f"'{name}' must be a number, but {int(numbers.isna().sum())} cells are not, such as "
            f"'{example}'. Correct them, or leave them empty."
        )
    return numbers.to_numpy(dtype=np.float64)
