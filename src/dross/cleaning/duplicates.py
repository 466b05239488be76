"""Duplicates in a data set: within the training part, and between it and the others."""

import base64
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from .._progress import Advance, progress_bar
from .._text import say_count
from ..errors import CorruptFile
from .explain import format_cell
from .images import load_picture
from .modality import PARTS, Frame, Modality, PreparedData, Source
from .tables import Column
from .task import CLASSIFICATION, parse_finite

# duplicates_groups ---


FILE = "copies.parquet"
_TYPES = {
    "group": "int64",
    "part": "object",
    "id": "int64",
    "source": "object",
    "label": "object",
    "same": "int64",
    "exact": "bool",
    "distance": "float64",
}  # of the columns of a table of copies
_APART = " "  # before their names in the file, where the content has columns of its own


@dataclass(frozen=True)
class Copies:
    """Groups of instances that are the same or nearly the same; each has a training instance.

    Example:
        leaked = project.copies.table.query("part == 'test'")
    """

    table: Frame
    """One row per instance that has a copy, group by group: those that are also in the test part
    first, then in the validation part, then those whose labels differ, then the others.

    group: its number; part: train, validation or test; id: its place in that part; source; label;
    same: a number shared by those that are the same, pixel for pixel or cell for cell; exact:
    whether another one is the same; distance: to the nearest of the group, as a share of what is
    usual between neighbours."""
    content: Frame
    """What each of them looks like, in the order of `table`."""

    def __len__(self) -> int:
        """How many groups there are."""
        return int(self.table["group"].nunique())

    def __repr__(self) -> str:
        return f"<Copies: {len(self.table):,} instances in {len(self):,} groups>"

    def ids(self, part: str = "train") -> list[int]:
        """The ids of the instances of a part that have copies, group by group."""
        return self.table["id"][self.table["part"] == part].tolist()

    @cached_property
    def _places(self) -> dict[int, int]:
        """{id of a training instance: its group}."""
        members = self.table[self.table["part"] == "train"]
        return dict(zip(members["id"].tolist(), members["group"].tolist()))

    @cached_property
    def _groups(self) -> dict[int, list[dict[str, Any]]]:
        groups: dict[int, list[dict[str, Any]]] = {}
        for place, row in enumerate(self.table.to_dict("records")):
            groups.setdefault(row["group"], []).append(row | {"place": place})
        return groups

    def group(self, number: int) -> list[dict[str, Any]]:
        """The rows of a group; `place` is where each is in `table` and in `content`."""
        return self._groups[number]

    def group_of(self, id: int) -> int | None:
        """The group of a training instance; None where it has no copy."""
        return self._places.get(id)

    def others(self, id: int) -> list[dict[str, Any]]:
        """The other rows of a training instance's group; `is_same`: the same as this instance."""
        number = self.group_of(id)
        rows = [] if number is None else self.group(number)
        is_it = lambda row: (row["part"], row["id"]) == ("train", id)
        own = {row["same"] for row in rows if is_it(row)}
        return [row | {"is_same": row["same"] in own} for row in rows if not is_it(row)]


def no_copies() -> Copies:
    """A table without rows: no copies were found."""
    table = pandas.DataFrame({name: pandas.Series(dtype=kind) for name, kind in _TYPES.items()})
    return Copies(table, pandas.DataFrame())


def join_content(copies: Copies) -> Frame:
    """One table for the file."""
    named = copies.table.add_prefix(_APART).reset_index(drop=True)
    content = copies.content.reset_index(drop=True).astype(object)
    return pandas.concat([content, named], axis=1)


def split_content(joined: Frame, counts: dict[str, int], path: Any) -> Copies:
    """The copies in a project's file.

    Raises:
        CorruptFile: the table is not one that dross writes.
    """
    names = [_APART + name for name in _TYPES]
    if not set(names) <= set(joined.columns):
        raise _explain_damage(path)
    table = joined[names].rename(columns=lambda name: name.removeprefix(_APART))
    if any(table[name].dtype != kind for name, kind in _TYPES.items() if kind != "object"):
        raise _explain_damage(path)
    texts = {name: table[name].map(str) for name, kind in _TYPES.items() if kind == "object"}
    table = table.assign(**texts)
    for part, id in zip(table["part"], table["id"]):
        if part not in PARTS or not 0 <= id < counts.get(part, 0):
            raise _explain_damage(path)
    return Copies(table, joined.drop(columns=names))


def _explain_damage(path: Any) -> CorruptFile:
    return CorruptFile(
        f"{path} is not a table of copies that dross wrote. Run dross clean again; your "
        "decisions are kept."
    )


# duplicates_chance ---


MOST_COLUMNS = 32  # those with the most values; the others could only add to the evidence
_SAMPLED = 400  # rows, to estimate how many equal ones to expect
_CHANCE_SHARE = 0.05  # of the groups that are listed may be chance
_MOST_ROWS, _FEWEST_ROWS = 20_000, 2_000  # to measure how rare agreement is
_ROWS_OF_ALL = 40_000_000  # for all pairs together
_PRIOR = 10  # rows: fewer than this do not show that one column follows from another


def natural_groups(
    columns: np.ndarray, is_number: np.ndarray, groups: Mapping[int, tuple[int, int]], bar: Advance
) -> set[int]:
    """Which groups of equal rows are to be expected.

    N rows of probability P have N (N - 1) / 2 P^2 equal pairs on average: that is the mean of P
    over the rows that are there, times N (N - 1) / 2. Groups count as copies, the least probable
    first, as long as chance would make few such pairs in comparison.

    Arguments:
        columns, is_number: As for `log_chance`.
        groups: {name of a group: the places of two of its rows}.
        bar: Called with 1 for every group.
    """
    count, logs = len(columns), dict[int, float]()
    rows = rows_to_ask(len(groups))
    for name, (one, other) in groups.items():
        logs[name] = log_chance(columns, is_number, one, other, rows)
        bar(1)
    places = np.random.default_rng(0).choice(count, min(count, _SAMPLED), replace=False)
    usual = np.exp([log_chance(columns, is_number, place, place, rows) for place in places])
    rarest_first, copies = sorted(logs, key=lambda name: logs[name]), 0
    for number, name in enumerate(rarest_first, 1):
        rare = np.exp(logs[name])
        as_rare = (usual[usual <= rare].sum() + rare) / (len(usual) + 1)
        if count * (count - 1) / 2 * as_rare <= _CHANCE_SHARE * number:
            copies = number
    return set(rarest_first[copies:])


def rows_to_ask(pairs: int) -> int:
    """How many rows to compare each pair with, so that all `pairs` take only seconds."""
    return min(_MOST_ROWS, max(_FEWEST_ROWS, _ROWS_OF_ALL // max(pairs, 1)))


def log_chance(
    columns: np.ndarray, is_number: np.ndarray, one: int, other: int, most_rows: int = _MOST_ROWS
) -> float:
    """The log of the probability that a row agrees with `one` as closely as `other` does.

    Column by column: what share of the rows, of those that agree in an earlier column, agrees in
    this one? The earlier column that says the most is used. Columns that follow from each other
    count once, and the probability is too large rather than too small.

    Arguments:
        columns: float64 [N, C]; nan where a cell is missing. Categories are numbered.
        is_number: bool [C]. Numbers agree if they are as near or nearer; categories if equal.
        one, other: The places of two rows.
        most_rows: How many rows are asked.
    """
    asked = min(len(columns), most_rows)
    rows = columns[np.linspace(0, len(columns) - 1, asked).astype(int)]
    agrees = _agreement(rows, is_number, columns[one], columns[other])
    agrees = agrees[:, ~agrees.all(0)].astype(np.float32)
    copies = agrees.all(1).sum()  # they are what is asked about
    both = agrees.T @ agrees - copies  # [C, C]
    alone = (np.diag(both) + 1) / (len(rows) - copies + 1)  # no value is impossible
    log, earlier = 0.0, list[int]()
    for column in np.argsort(alone, kind="stable"):  # the rarest agreement first
        given = [
            (both[column, known] + _PRIOR * alone[column]) / (both[known, known] + _PRIOR)
            for known in earlier
        ]
        log += float(np.log(max([alone[column], *given])))
        earlier.append(column)
    return log


def _agreement(
    rows: np.ndarray, is_number: np.ndarray, one: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """bool [rows, C]: which cells agree with `one` as `other` does; all where `other` disagrees."""
    missing, apart = np.isnan(one), np.abs(one - other)
    with np.errstate(invalid="ignore"):
        near = np.abs(rows - one) <= apart
    near = np.where(missing, np.isnan(rows), near)
    no_evidence = np.where(is_number, np.isnan(other) != missing, one != other)
    no_evidence &= ~(missing & np.isnan(other))
    return near | no_evidence


# duplicates_keys ---


FEWEST_WORDS = 6  # shorter texts are equal by nature
Columns = tuple[np.ndarray, np.ndarray]  # float64 [N, C], and which of them are numbers: bool [C]
_WORDS = re.compile(r"\w+")


def same_keys(data: PreparedData, content: Frame, rows: Tensor) -> np.ndarray:
    """int64 [N]: a number for each instance; instances that are the same share it.

    Rows of a table are the same if all learnt columns are equal, texts if they differ only in white
    space, and all others if models learn the same numbers from them.
    """
    if data.source.modality.has_text:
        keys = [" ".join(str(text).split()) for text in content["text"].fillna("")]
    elif names := [column.name for column in _learnt(data.columns)]:
        cells = content[names].astype(object).where(content[names].notna(), None)
        keys = [repr(row) for row in cells.itertuples(index=False, name=None)]
    else:
        keys = [row.tobytes() for row in rows.numpy()]
    return number_keys(keys)


def number_keys(keys: Iterable[str | bytes]) -> np.ndarray:
    """int64 [N]: the same number for equal keys, in the order in which they come."""
    known: dict[bytes, int] = {}
    numbers = []
    for key in keys:
        raw = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
        numbers.append(known.setdefault(hashlib.sha256(raw).digest(), len(known)))
    return np.array(numbers, dtype=np.int64)


def number_pictures(root: Path, paths: Sequence[str]) -> np.ndarray:
    """int64 [N]: the same number for pictures with the same pixels, at their real size."""
    pixels = (np.asarray(load_picture(root / path)) for path in paths)
    return number_keys(f"{array.shape}".encode() + array.tobytes() for array in pixels)


def has_many_words(texts: Iterable[object]) -> np.ndarray:
    """bool [N]: whether a text is too long to be written twice by chance."""
    return np.array([len(set(_WORDS.findall(str(text)))) >= FEWEST_WORDS for text in texts])


def as_columns(data: PreparedData, content: Frame, rows: Tensor) -> Columns | None:
    """The columns of a table as numbers; None for pictures and texts.

    If there are many columns, those with the most values are taken.
    """
    if not data.source.modality.has_columns:
        return None
    if columns := _learnt(data.columns):
        read = [_read_column(content[column.name], column) for column in columns]
        is_number = np.array([column.kind != "category" for column in columns])
        table = np.stack(read, axis=1)
    elif data.x["train"].dim() == 2:
        table, is_number = rows.numpy().astype(np.float64), np.ones(rows.shape[1], bool)
    else:
        return None
    values = [len(np.unique(column)) for column in table.T]
    chosen = np.sort(np.argsort(values, kind="stable")[::-1][:MOST_COLUMNS])
    return table[:, chosen], is_number[chosen]


def _learnt(columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if column.kind in ("number", "category", "date")]


def _read_column(cells: Frame, column: Column) -> np.ndarray:
    """float64 [N]. Each category, each date, and a missing cell has a number of its own."""
    if column.kind == "number":
        return parse_finite(cells).to_numpy(dtype=np.float64)
    return number_keys(map(str, cells)).astype(np.float64)


# duplicates_neighbours ---


NEIGHBOURS = 20  # of each instance: the last of them says how near others usually are
_FEW_DIMENSIONS = 128  # of the random projection in which candidates are looked for
_BLOCK_BYTES = 256 << 20  # of distances, and of gathered rows
_FALSE_ALARMS = 0.01  # near pairs that chance may make in the whole data set, on average
_AT_MOST = 0.4  # of the usual distance: in many dimensions chance allows for more, a copy does not
_USUALLY = 1.5  # times the median distance: a larger one is unusual


@dataclass(frozen=True)
class Neighbours:
    """Of N instances the K nearest others, the nearest first."""

    places: Tensor  # int64 [N, K]
    distances: Tensor  # float32 [N, K]

    @property
    def usual(self) -> Tensor:
        """How far the last of the neighbours is: the scale of near and far around each, [N]."""
        return self.distances[:, -1]

    @property
    def dimension(self) -> float:
        """The number of dimensions m in which the neighbours lie.

        A ball of half the volume has 2^(-1/m) of the radius: the middle one of K neighbours is that
        much nearer than the last. And the nearest is nearer than the share t of the last one's
        distance with probability 1 - (1 - t^m)^(K-1). Either gives m by a median over all
        instances. Copies can only make it smaller, so the larger one is taken.
        """
        count = self.distances.shape[1]
        middle = self._fit_dimension(max(count // 2, 1), 0.5)
        return max(middle, self._fit_dimension(1, 1 - 0.5 ** (1 / max(count - 1, 1))))

    def _fit_dimension(self, rank: int, content: float) -> float:
        """m where the neighbour of this rank encloses, in the median, this share of the volume."""
        nearer = self.distances[:, rank - 1]
        known = (nearer > 0) & (nearer < self.usual)
        if 2 * int(known.sum()) < len(known):
            return 0.0 if float(nearer.median()) == 0 else math.inf  # or ties, as on a grid
        return math.log(content) / float((nearer[known] / self.usual[known]).log().median())

    @property
    def threshold(self) -> float:
        """The share of the usual distance below which two instances are nearly the same.

        Of an instance's K neighbours, spread evenly in m dimensions, one is nearer than the share t
        of the last one's distance with probability (K - 1) t^m at most. Over all N instances chance
        makes fewer than N (K - 1) t^m such pairs: t keeps that below `_FALSE_ALARMS`.
        """
        count, neighbours = self.distances.shape
        dimension = self.dimension
        if dimension == 0:
            return 0.0
        share = _FALSE_ALARMS / (count * max(neighbours - 1, 1))
        return min(share ** (1 / dimension), _AT_MOST)

    def near_pairs(self) -> list[tuple[int, int, float]]:
        """[(place, other place, distance as a share of the usual one), ...], each pair once.

        Two outliers are not copies of each other: a distance that is much larger than the median
        does not count as usual.
        """
        usual = self.usual.clamp_max(_USUALLY * float(self.usual.median()))
        usual = torch.minimum(usual[:, None], usual[self.places])
        shares = torch.where(usual > 0, self.distances / usual, torch.ones(()))
        rows, columns = torch.nonzero(shares < self.threshold, as_tuple=True)
        found: dict[tuple[int, int], float] = {}
        others = self.places[rows, columns]
        for one, other, share in zip(
            rows.tolist(), others.tolist(), shares[rows, columns].tolist()
        ):
            found[min(one, other), max(one, other)] = share
        return [(*pair, share) for pair, share in sorted(found.items())]


def find_neighbours(
    rows: Tensor, *, device: torch.device, progress: bool, count: int = NEIGHBOURS
) -> Neighbours:
    """Find the nearest neighbours of every row by Euclidean distance.

    Candidates come from a projection to a few dimensions, where there are many; their distances
    are those of the rows themselves.

    Arguments:
        rows: float32 [N, d].
        device: Where to compute.
        progress: Whether to show a progress bar.
        count: How many neighbours of each; fewer where there are not so many.
    """
    count, rows = min(count, len(rows) - 1), rows.to(device)
    small = _project(rows)
    squares = small.square().sum(1)
    places, distances = [], []
    at_once = max(1, _BLOCK_BYTES // (4 * len(rows)))
    with progress_bar("looking for copies", len(rows), show=progress, unit="instances") as bar:
        for start in range(0, len(rows), at_once):
            block = small[start : start + at_once]
            apart = squares[None] - 2 * block @ small.T  # [block, N], without a term per row
            own = torch.arange(len(block), device=device)
            apart[own, own + start] = math.inf
            found = torch.topk(apart, count, dim=1, largest=False).indices
            exact = _measure(rows, start, found)
            order = exact.argsort(dim=1)
            places.append(found.gather(1, order))
            distances.append(exact.gather(1, order))
            bar(len(block))
    return Neighbours(torch.cat(places).cpu(), torch.cat(distances).cpu())


def _project(rows: Tensor) -> Tensor:
    """The rows around their mean, in few dimensions, where distances are about the same."""
    mean = rows.mean(0)
    if rows.shape[1] <= 2 * _FEW_DIMENSIONS:
        return rows - mean
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(rows.shape[1], _FEW_DIMENSIONS, generator=generator)
    projection = (drawn / math.sqrt(_FEW_DIMENSIONS)).to(rows.device)
    blocks = rows.split(max(1, _BLOCK_BYTES // (4 * rows.shape[1])))
    return torch.cat([(block - mean) @ projection for block in blocks])


def _measure(rows: Tensor, start: int, found: Tensor) -> Tensor:
    """The distances [block, K] of rows from those that were found near them."""
    at_once = max(1, _BLOCK_BYTES // (8 * rows.shape[1] * found.shape[1]))
    return torch.cat(
        [
            (rows[start + k : start + k + len(part), None] - rows[part]).square().sum(2).sqrt()
            for k, part in zip(range(0, len(found), at_once), found.split(at_once))
        ]
    )


# duplicates ---


_CHANCE_PAIRS = 0.1  # that chance may make in a whole table; distances must be small, too
MOST_COMPARED = 50_000  # rows, each with each; of more, only exact copies are found
_MOST_PAIRS = 20_000  # of a table, the nearest first: more are no help to anybody
_Pair = tuple[int, int, float]  # two places, and the distance as a share of the usual one


@dataclass(frozen=True)
class _Instances:
    """All instances, the training part first."""

    data: PreparedData
    source: Source
    part: np.ndarray  # int64 [N]: the place of its part in PARTS
    id: np.ndarray  # int64 [N]: the place in its part
    rows: torch.Tensor  # float32 [N, d]: what models learn


@dataclass(frozen=True)
class CopyCounts:
    """How many instances of each part have a copy, and how many groups of copies there are."""

    validation: int = 0  # that are in the training part, too
    test: int = 0  # that are in the training part, too
    train: int = 0  # that have a copy in the training part
    groups: int = 0  # of these
    conflicting: int = 0  # groups whose labels differ and are classes
    natural: int = 0  # training instances that are equal by chance, and not listed


def find_copies(
    data: PreparedData, *, device: torch.device, progress: bool
) -> tuple[Copies, CopyCounts]:
    """Find groups of copies that have a member in the training part.

    Arguments:
        data: With the inputs that models learn.
        device: Where to compute distances.
        progress: Whether to show progress bars.

    Returns:
        The copies, and `count_copies` of them, with `natural`: how many training instances
        are equal to others as chance explains; they are not among the copies.
    """
    everything = _gather(data)
    keys = same_keys(data, everything.source.content, everything.rows)
    columns = as_columns(data, everything.source.content, everything.rows)
    natural = _find_natural(everything, keys, columns, progress)
    found = _near_pairs(everything, keys, device, progress)
    near = _keep_unnatural(found, keys, natural, columns, progress)
    copies = _make_groups(everything, keys, natural, near)
    expected = np.isin(keys, list(natural)) & (everything.part == 0)
    counts = count_copies(copies, classes=data.source.task is CLASSIFICATION)
    return copies, replace(counts, natural=int(expected.sum()))


def count_copies(copies: Copies, *, classes: bool) -> CopyCounts:
    """Count copies; `natural` is not known here."""
    table = copies.table
    within = table[table["part"] == "train"].groupby("group")["label"]
    several = within.size() > 1
    return CopyCounts(
        validation=int((table["part"] == "validation").sum()),
        test=int((table["part"] == "test").sum()),
        train=int(within.size()[several].sum()),
        groups=int(several.sum()),
        conflicting=int((within.nunique() > 1).sum()) if classes else 0,
    )


def _gather(data: PreparedData) -> _Instances:
    sizes = [len(data.parts[part]) for part in PARTS]
    return _Instances(
        data,
        data.source.take(np.concatenate([data.parts[part] for part in PARTS])),
        np.repeat(np.arange(len(PARTS)), sizes),
        np.concatenate([np.arange(size) for size in sizes]),
        torch.cat([data.x[part] for part in PARTS]).flatten(1).float(),
    )


def _repeated_keys(keys: np.ndarray) -> dict[int, tuple[int, int]]:
    """{key: the first two places} of keys that several instances have."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    several = starts[np.bincount(keys) > 1]
    return {int(keys[order[k]]): (int(order[k]), int(order[k + 1])) for k in several}


def _find_natural(
    everything: _Instances, keys: np.ndarray, columns: Columns | None, progress: bool
) -> set[int]:
    """The keys that several instances have without being copies: short texts, common rows."""
    repeated = _repeated_keys(keys)
    if everything.source.modality.has_text:
        firsts = [one for one, _ in repeated.values()]
        long = has_many_words(everything.source.content["text"].fillna("").iloc[firsts])
        return {key for key, is_long in zip(repeated, long) if not is_long}
    if columns is None or not repeated:
        return set()
    with progress_bar("comparing copies", len(repeated), show=progress, unit="groups") as bar:
        return natural_groups(*columns, repeated, bar)


def _keep_unnatural(
    pairs: list[_Pair], keys: np.ndarray, natural: set[int], columns: Columns | None, progress: bool
) -> list[_Pair]:
    """The pairs that agree so closely that chance makes none of them in the whole table."""
    pairs = [pair for pair in pairs if not natural & {keys[pair[0]], keys[pair[1]]}]
    if columns is None:
        return pairs
    nearest = sorted(pairs, key=lambda pair: pair[2])[:_MOST_PAIRS]
    count, rows = len(columns[0]), rows_to_ask(len(nearest))
    limit = np.log(_CHANCE_PAIRS / (count * (count - 1) / 2))
    kept = []
    with progress_bar("comparing copies", len(nearest), show=progress, unit="pairs") as bar:
        for one, other, share in nearest:
            if log_chance(*columns, one, other, rows) < limit:
                kept.append((one, other, share))
            bar(1)
    return kept


def _near_pairs(
    everything: _Instances, keys: np.ndarray, device: torch.device, progress: bool
) -> list[_Pair]:
    """Pairs that are nearly the same, among the first instances of all keys."""
    places = np.unique(keys, return_index=True)[1]
    places = places[everything.rows[places].abs().sum(1).numpy() > 0]  # else nothing is known
    if not 2 * NEIGHBOURS < len(places) <= MOST_COMPARED:
        return []
    found = find_neighbours(everything.rows[places], device=device, progress=progress)
    return [(int(places[a]), int(places[b]), share) for a, b, share in found.near_pairs()]


def _make_groups(
    everything: _Instances, keys: np.ndarray, natural: set[int], near: list[_Pair]
) -> Copies:
    """Join pairs to groups, and leave out those without a training instance."""
    firsts = np.unique(keys, return_index=True)[1]
    counts = np.where(np.isin(keys, list(natural)), 1, np.bincount(keys)[keys])
    nearest = np.where(counts > 1, 0.0, np.inf)
    for one, other, share in near:
        alike = np.isin(keys, [keys[one], keys[other]])
        nearest[alike] = np.minimum(nearest[alike], share)
    joined = np.flatnonzero(counts > 1)
    starts = [*firsts[keys[joined]], *(one for one, _, _ in near)]
    ends = [*joined, *(other for _, other, _ in near)]
    graph = coo_array((np.ones(len(ends)), (starts, ends)), shape=(len(keys),) * 2)
    group = connected_components(graph, directed=False)[1]
    trained = np.isin(group, group[(everything.part == 0) & np.isfinite(nearest)])
    members = np.flatnonzero(trained & np.isfinite(nearest))
    return _order(everything, members, group[members], nearest[members], keys[members])


def _order(
    everything: _Instances,
    members: np.ndarray,
    group: np.ndarray,
    nearest: np.ndarray,
    keys: np.ndarray,
) -> Copies:
    """The table: the groups in the order in which a person is to look at them."""
    if not len(members):
        return no_copies()
    source = everything.source.take(members)
    same = _number_same(everything.data, source.content, keys)
    table = pandas.DataFrame(
        {
            "group": group,
            "part": np.array(PARTS, object)[everything.part[members]],
            "id": everything.id[members],
            "source": source.names,
            "label": [str(label) for label in source.labels],
            "same": same,
            "exact": np.bincount(same)[same] > 1,
            "distance": nearest,
        }
    )
    by_group = table.groupby("group")
    is_in = lambda part: by_group["part"].transform(lambda parts: part in set(parts))
    differ = by_group["label"].transform("nunique") > 1
    differ &= everything.data.source.task is CLASSIFICATION
    table["rank"] = np.select([is_in("test"), is_in("validation"), differ], [0, 1, 2], 3)
    table["least"] = by_group["distance"].transform("min")
    table["first"] = by_group["id"].transform("min")
    places = table.sort_values(["rank", "least", "first", "group"], kind="stable").index
    table = table.loc[places].drop(columns=["rank", "least", "first"])
    table["group"] = pandas.factorize(table["group"])[0]
    content = source.content.reset_index(drop=True).loc[places].reset_index(drop=True)
    return Copies(table.reset_index(drop=True), content)


def _number_same(data: PreparedData, content: Frame, keys: np.ndarray) -> np.ndarray:
    """int64 [members]: a number shared by those that are the same; pictures, pixel for pixel."""
    if data.root is None:
        return number_keys(map(str, keys))
    return number_pictures(data.root, content["path"].tolist())


# duplicates_text ---


def describe_copies(found: CopyCounts, sizes: Mapping[str, int]) -> str:
    """What was found, in one paragraph; empty where there is nothing to say.

    sizes: how many instances each part has.
    """
    sentences = [_describe_leak(found, sizes), _describe_repeated(found)]
    if not any(sentences):
        return ""
    advice = "The list Copies in dross review shows them: remove what is there twice."
    return " ".join(sentence for sentence in [*sentences, advice] if sentence)


def _describe_leak(found: CopyCounts, sizes: Mapping[str, int]) -> str:
    """Those of the test and of the validation part."""
    counts = {"test": found.test, "validation": found.validation}
    parts = [part for part in counts if counts[part]]
    if not parts:
        return ""
    which = " and ".join(f"{counts[part]:,} of {sizes[part]:,} {part}" for part in parts)
    one = sum(counts.values()) == 1
    verdict = "the verdict" if "test" in parts else "what they measure"
    return (
        f"{which} instances {'is' if one else 'are'} also in the training part, the same or nearly "
        f"the same: {verdict} is too optimistic."
    )


def _describe_repeated(found: CopyCounts) -> str:
    """Those that the training part has twice."""
    if not found.train:
        return ""
    text = (
        f"{found.train:,} training instances are the same as another one, or nearly, in "
        f"{say_count(found.groups, 'group')}"
    )
    if not found.conflicting:
        return f"{text}."
    differ = f"in {found.conflicting:,} of them" if found.groups > 1 else "there"
    return f"{text}; {differ} the labels differ, so one is wrong."


def describe_natural(found: CopyCounts, modality: Modality) -> str:
    """What is equal by chance, and so is not listed; empty where nothing is."""
    if not found.natural:
        return ""
    why = "texts of a few words" if modality.has_text else "columns with few values"
    return (
        f"{found.natural:,} training instances are equal to others, as expected with {why}. "
        "They are not listed."
    )


def describe_group(copies: Copies, number: int, *, classes: bool) -> str:
    """What is wrong with the training instances of a group, and what to do about it.

    classes: whether labels are classes, of which an instance has one.
    """
    rows = copies.group(number)
    how, others = _likeness(rows), _other_parts(rows)
    conflict = _describe_conflict(rows, classes)
    if others:
        return (
            f"It is also in the {' and in the '.join(others)} part ({how}), so what is "
            f"measured there is too optimistic: remove it here or there.{conflict}"
        )
    return f"It is in the training part {len(rows)} times ({how}): keep one.{conflict}"


def head_group(copies: Copies, number: int, *, classes: bool) -> str:
    """Where the instances of a group are, briefly."""
    rows = copies.group(number)
    parts = " and in the ".join(["training", *_other_parts(rows)])
    twice = "" if _other_parts(rows) else f" {len(rows)} times"
    likeness, conflict = _likeness(rows).capitalize(), _describe_conflict(rows, classes)
    return f"{likeness}, in the {parts} part{twice}.{conflict}"


def _other_parts(rows: list[dict[str, Any]]) -> list[str]:
    present = {row["part"] for row in rows}
    return [part for part in ("test", "validation") if part in present]


def _describe_conflict(rows: list[dict[str, Any]], classes: bool) -> str:
    labels = sorted({row["label"] for row in rows})
    if not classes or len(labels) < 2:
        return ""
    return f" The labels differ ({', '.join(labels[:5])}): one is wrong."


def mark_copy(copies: Copies, id: int) -> dict[str, Any] | None:
    """What a list shows of a training instance that has copies: its group, and where they are."""
    others, number = copies.others(id), copies.group_of(id)
    if not others or number is None:
        return None
    first = min(others, key=lambda row: row["part"] == "train")
    more = "" if len(others) == 1 else f" and {len(others) - 1} more"
    words = f"{name_likeness(first['is_same'])} as {name_place(first)}{more}"
    return {"group": number, "leaks": first["part"] != "train", "words": words}


def name_place(row: dict[str, Any]) -> str:
    """Where an instance is: "row 17", or "row 17 of the test part"."""
    part, source = row["part"], str(row["source"])
    return source if part == "train" else f"{source} of the {part} part"


def name_likeness(same: bool) -> str:
    """How alike two instances are, in words."""
    return "the same" if same else "nearly the same"


def _likeness(rows: list[dict[str, Any]]) -> str:
    return name_likeness(len({row["same"] for row in rows}) == 1)


# duplicates_report ---


_GROUPS = 24
_MEMBERS = 4  # of each group
_CELLS = 8
_LETTERS = 300


def show_groups(
    copies: Copies, picture: Callable[[str, int], bytes | None], *, classes: bool
) -> list[dict[str, Any]]:
    """The first groups, as the template copies.html shows them.

    Arguments:
        copies: Of a project.
        picture: `Project.picture`.
        classes: Whether labels are classes.
    """
    numbers = list(dict.fromkeys(copies.table["group"].tolist()))[:_GROUPS]
    return [_show_group(copies, number, picture, classes) for number in numbers]


def _show_group(
    copies: Copies, number: int, picture: Callable[[str, int], bytes | None], classes: bool
) -> dict[str, Any]:
    rows = copies.group(number)
    shown = rows[: _MEMBERS - 1] + rows[-1:] if len(rows) > _MEMBERS else rows  # the last may leak
    content = copies.content.iloc[[row["place"] for row in shown]]
    pictures = [picture(row["part"], row["id"]) for row in shown]
    cells = [] if "text" in content or any(pictures) else _choose_cells(content)
    return {
        "about": head_group(copies, number, classes=classes),
        "more": len(rows) - len(shown),
        "members": [
            {
                "place": name_place(row),
                "part": row["part"],
                "label": row["label"],
                "picture": None if image is None else _inline(image),
                "text": str(item["text"] or "")[:_LETTERS] if "text" in content else None,
                "cells": [(name, _text(item[name]), differs) for name, differs in cells],
            }
            for row, image, (_, item) in zip(shown, pictures, content.iterrows())
        ],
    }


def _choose_cells(content: Frame) -> list[tuple[str, bool]]:
    """[(column, whether the members differ in it), ...]: first those in which they do."""
    texts = {name: {_text(value) for value in content[name]} for name in content.columns}
    differing = [name for name in texts if len(texts[name]) > 1]
    equal = [name for name in texts if len(texts[name]) == 1]
    return [(name, name in differing) for name in [*differing, *equal][:_CELLS]]


def _text(value: Any) -> str:
    return format_cell(value) or "missing"


def _inline(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
