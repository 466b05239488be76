"""The columns of a table: what each one is, and the numbers that a model learns from."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import InvalidInput
from ..support.option_names import name_option
from .numbers import check_size, parse_finite
from .source import ENCODER_VERSION, Frame, Series, Source, import_pandas

_NOT_LEARNT = ("text", "ignore")
KINDS = ("number", "category", "date", *_NOT_LEARNT)
_MAX_CATEGORIES = 60
_MAX_SHARE_OF_CATEGORIES = 0.05  # distinct texts per cell; in a long table more may be categories
_NEARLY_ALL = 0.95
_DATES_TRIED = 200  # parsing dates is slow: a few cells rule most columns out
_CATEGORY = "category: "  # before the name of an encoded column
_IDENTIFIERS = ("id", "index", "unnamed: 0", "row", "key")
_SKEWED, _HEAVY = 5, 50  # the third and the fourth moment that put a column on a logarithmic scale
_LARGEST_INPUT = 8  # deviations; one wild cell must not end the training


@dataclass(frozen=True)
class Column:
    """What one column of a table is."""

    name: str
    kind: str  # one of KINDS
    why: str = ""


def infer_columns(content: Frame, given: dict[str, str] | None = None) -> list[Column]:
    """Infer the kind of each column from its cells; the kinds in `given` take precedence."""
    given = given or {}
    return [
        _take_column(str(name), given[name]) if name in given else _infer_column(content[name])
        for name in content.columns
    ]


def _take_column(name: str, kind: str) -> Column:
    """A column of which the user has said what it is."""
    return Column(name, kind, f"it is set to {kind}" if kind in _NOT_LEARNT else "")


def _infer_column(column: Series) -> Column:
    name, cells = str(column.name), column.dropna()
    if len(cells) == 0:
        return Column(name, "ignore", "no cell has a value")
    distinct = cells.nunique()
    if distinct == 1 and len(cells) == len(column):
        return Column(name, "ignore", f"always '{cells.iloc[0]}'")
    numeric = parse_finite(cells).notna().mean()
    if numeric == 1.0 or (numeric >= _NEARLY_ALL and distinct > 10):
        if distinct == len(column) and name.strip().lower() in _IDENTIFIERS:
            return Column(name, "ignore", "a different number in every row: an identifier")
        odd = f"{1 - numeric:.1%} of its cells are not numbers and count as missing"
        return Column(name, "number", "" if numeric == 1.0 else odd)
    if _are_dates(cells.head(_DATES_TRIED)) and _are_dates(cells):
        return Column(name, "date")
    if distinct <= _MAX_CATEGORIES or distinct < _MAX_SHARE_OF_CATEGORIES * len(cells):
        return Column(name, "category")
    return Column(name, "ignore", f"{distinct:,} different texts: a name or an identifier")


def _to_dates(cells: Series) -> Series:
    """Cells as dates; NaT for all others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_pandas().to_datetime(cells, errors="coerce", format="mixed", utc=True)


def _are_dates(cells: Series) -> bool:
    return _to_dates(cells).notna().mean() >= _NEARLY_ALL


def describe_columns(columns: list[Column]) -> list[str]:
    """Sentences about what the columns were taken for, for the user to check."""
    lines = []
    for kind, words in (("number", "Numbers"), ("category", "Categories"), ("date", "Dates")):
        if names := [column.name for column in columns if column.kind == kind]:
            lines.append(f"{words}: {', '.join(names)}.")
    for column in columns:
        if column.kind in _NOT_LEARNT:
            lines.append(f"'{column.name}' is ignored: {column.why}.")
    for column in columns:
        if column.kind == "number" and column.why:
            lines.append(f"'{column.name}': {column.why}.")
    return lines


def check_cells(source: Source, columns: list[Column]) -> None:
    """Refuse numbers that are too large to learn from, naming row and column."""
    for column in columns:
        if column.kind == "number":
            numbers = parse_finite(source.content[column.name]).to_numpy()
            check_size(source.names, column.name, numbers)


class TableEncoder:
    """Turns the columns of a table into numbers, float32 [N, inputs].

    Numbers are standardized; a missing one is replaced by the median and flagged. Highly skewed
    ones are put on a logarithmic scale first, since version 2. Categories are one-hot. A date
    becomes its day, month and weekday.
    """

    def __init__(self, content: Frame, columns: list[Column], version: int = ENCODER_VERSION):
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        self.columns = [column for column in columns if column.kind not in _NOT_LEARNT]
        if not self.columns:
            reasons = "; ".join(f"{column.name}: {column.why}" for column in columns)
            raise InvalidInput(
                f"No column is left to learn from ({reasons}). Say which are "
                f"numbers, categories or dates: {name_option('columns')}."
            )
        numbers = make_pipeline(
            SimpleImputer(strategy="median", add_indicator=True), StandardScaler()
        )
        categories = OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            min_frequency=2,
            max_categories=_MAX_CATEGORIES,
            sparse_output=False,
        )
        self._scales: dict[str, tuple[float, float]] = {}
        if version >= 2:
            self._scales = _find_scales(self._parse(content), self.columns)
        parsed = self._parse(content)
        numeric = [name for name in parsed.columns if not name.startswith(_CATEGORY)]
        textual = [name for name in parsed.columns if name.startswith(_CATEGORY)]
        self._transform = ColumnTransformer(
            [("numbers", numbers, numeric), ("categories", categories, textual)]
        )
        self._transform.fit(parsed)

    @property
    def skewed(self) -> list[str]:
        """The columns that are learnt on a logarithmic scale."""
        return list(self._scales)

    def __call__(self, content: Frame) -> torch.Tensor:
        """Encode rows; numbers far from the mean are cut off."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Found unknown categories")
            encoded = self._transform.transform(self._parse(content))
        inputs = np.asarray(encoded, dtype=np.float32)
        return torch.from_numpy(np.clip(inputs, -_LARGEST_INPUT, _LARGEST_INPUT))

    def _parse(self, content: Frame) -> Frame:
        """Columns of float64, and of str for categories; a date becomes three columns."""
        pandas = import_pandas()
        parsed: dict[str, Series] = {}
        for column in self.columns:
            name, cells = column.name, content[column.name]
            if column.kind == "number":
                numbers = parse_finite(cells)
                scale = self._scales.get(name)
                parsed[name] = numbers if scale is None else _compress(numbers, *scale)
            elif column.kind == "category":
                parsed[_CATEGORY + name] = cells.fillna("(missing)").astype(str)
            else:
                dates = _to_dates(cells)
                since = dates - pandas.Timestamp("2000-01-01", tz="UTC")
                parsed[f"{name} day"] = since.dt.total_seconds() / 86400
                parsed[f"{name} month"] = dates.dt.month.astype(float)
                parsed[f"{name} weekday"] = dates.dt.day_of_week.astype(float)
        return pandas.DataFrame(parsed)


def _find_scales(parsed: Frame, columns: list[Column]) -> dict[str, tuple[float, float]]:
    """{column: its median and a usual distance from it} of columns with far outliers."""
    scales: dict[str, tuple[float, float]] = {}
    for column in columns:
        if column.kind == "number":
            numbers = parsed[column.name].dropna().to_numpy(dtype=np.float64)
            deviation = np.std(numbers) if len(numbers) else 0.0
            if not 0 < deviation < np.inf:
                continue
            standard = (numbers - numbers.mean()) / deviation
            if abs(np.mean(standard**3)) > _SKEWED or np.mean(standard**4) > _HEAVY:
                median = float(np.median(numbers))
                distances = np.abs(numbers - median)
                scales[column.name] = (median, float(np.median(distances[distances > 0])))
    return scales


def _compress(numbers: Series, median: float, scale: float) -> Series:
    """Numbers on a logarithmic scale to both sides of their median."""
    distances = (numbers - median) / scale
    return np.sign(distances) * np.log1p(np.abs(distances))
