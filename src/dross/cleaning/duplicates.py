"""Duplicates in a dataset: within the training set, and between it and the others."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from .._io import digest_bytes
from .._progress import progress_bar
from .._text import say_count
from ..errors import CorruptFile
from .images import load_image
from .modality import PARTS, Frame, Modality, PreparedData, Source
from .tables import Column
from .task import CLASSIFICATION, parse_finite

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
_PREFIX = " "  # before their names in the file, where the content has its own columns


@dataclass(frozen=True)
class Copies:
    """Groups of instances that are the same or nearly the same; each has a training instance.

    Example:
        leaked = project.copies.table.query("part == 'test'")
    """

    table: Frame
    """One row per instance that has a copy, ordered by group: first the groups with an instance in
    the test set, then those with one in the validation set, then those whose labels differ, then
    the rest.

    group: the number of the group; part: train, validation or test; id: the position in that set;
    source; label; same: a number shared by instances that are identical, pixel for pixel or cell
    for cell; exact: whether an identical instance exists; distance: the distance to the nearest
    instance in the group, as a fraction of the typical distance between neighbors."""
    content: Frame
    """The content of each instance, in the same order as `table`."""

    def __len__(self) -> int:
        """How many groups there are."""
        return int(self.table["group"].nunique())

    def __repr__(self) -> str:
        return f"<Copies: {len(self.table):,} instances in {len(self):,} groups>"

    def ids(self, part: str = "train") -> list[int]:
        """The ids of the instances of a set that have copies, group by group."""
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
        """The rows of a group; `place` is the position of each in `table` and in `content`."""
        return self._groups[number]

    def group_of(self, id: int) -> int | None:
        """The group of a training instance; None if it has no copy."""
        return self._places.get(id)

    def others(self, id: int) -> list[dict[str, Any]]:
        """The other rows of a training instance's group; `is_same`: the same as this instance."""
        number = self.group_of(id)
        rows = [] if number is None else self.group(number)
        is_it = [(row["part"], row["id"]) == ("train", id) for row in rows]
        same = [row["same"] for row, it in zip(rows, is_it) if it]
        return [row | {"is_same": row["same"] in same} for row, it in zip(rows, is_it) if not it]


def no_copies() -> Copies:
    """A table without rows: no copies were found."""
    table = pandas.DataFrame({name: pandas.Series(dtype=kind) for name, kind in _TYPES.items()})
    return Copies(table, pandas.DataFrame())


def join_content(copies: Copies) -> Frame:
    """One table for the file."""
    named = copies.table.add_prefix(_PREFIX).reset_index(drop=True)
    content = copies.content.reset_index(drop=True).astype(object)
    return pandas.concat([content, named], axis=1)


def split_content(joined: Frame, counts: dict[str, int], path: Any) -> Copies:
    """The copies in a project's file.

    Raises:
        CorruptFile: the table is not one that dross writes.
    """
    names = [_PREFIX + name for name in _TYPES]
    if set(names) <= set(joined.columns):
        table = joined[names].rename(columns=lambda name: name.removeprefix(_PREFIX))
        kinds = [kind for kind in _TYPES.values() if kind != "object"]
        texts = {name: table[name].map(str) for name, kind in _TYPES.items() if kind == "object"}
        typed = table.drop(columns=list(texts))
        table = table.assign(**texts)
        limits = table["part"].map(lambda part: counts.get(part, 0) if part in PARTS else 0)
        if typed.dtypes.tolist() == kinds and table["id"].between(0, limits - 1).all():
            return Copies(table, joined.drop(columns=names))
    raise CorruptFile(
        f"{path} is not a table of duplicates written by dross. Run dross clean again; your "
        "decisions are kept."
    )


# --- finding them ---------------------------------------------------------------------------------


MOST_COMPARED = 50_000  # rows, each with each; of more, only exact copies are found
_CHANCE_PAIRS = 0.1  # that chance may make in a whole table; distances must be small, too
_MOST_PAIRS = 20_000  # of a table, the nearest first: more are no help to anyone
Columns = tuple[np.ndarray, np.ndarray]  # float64 [N, C], and which of them are numbers: bool [C]
_Pair = tuple[int, int, float]  # two places, and the distance as a share of the usual one


@dataclass(frozen=True)
class _Instances:
    """All instances, the training set first."""

    data: PreparedData
    source: Source
    part: np.ndarray  # int64 [N]: the position of its set in PARTS
    id: np.ndarray  # int64 [N]: the position in its set
    rows: Tensor  # float32 [N, d]: the inputs of models


@dataclass(frozen=True)
class CopyCounts:
    """How many instances of each set have a copy, and how many groups of copies there are."""

    validation: int = 0  # that are also in the training set
    test: int = 0  # that are also in the training set
    train: int = 0  # that have a copy in the training set
    groups: int = 0  # of these
    conflicting: int = 0  # groups whose labels differ and are classes
    natural: int = 0  # training instances that are equal by chance, and not listed


def find_copies(data: PreparedData, *, progress: bool) -> tuple[Copies, CopyCounts]:
    """Find groups of copies that have a member in the training set.

    Arguments:
        data: With the inputs of models.
        progress: Whether to show progress bars.

    Returns:
        The copies, and `count_copies` of them, with `natural`: how many training instances
        are equal to others as chance would explain; they are not among the copies.
    """
    sizes = [len(data.parts[part]) for part in PARTS]
    everything = _Instances(
        data,
        data.source.take(np.concatenate([data.parts[part] for part in PARTS])),
        np.repeat(np.arange(len(PARTS)), sizes),
        np.concatenate([np.arange(size) for size in sizes]),
        torch.cat([data.x[part] for part in PARTS]).flatten(1).float(),
    )
    keys = _same_keys(everything)
    columns = _as_columns(everything)
    natural = list(_find_natural(everything, keys, columns, progress))
    is_natural = np.isin(keys, natural)
    near = _near_pairs(everything, keys)
    near = [pair for pair in near if not is_natural[pair[0]] and not is_natural[pair[1]]]
    if columns is not None:
        near = _drop_expected(near, columns, progress)
    copies = _make_groups(everything, keys, is_natural, near)
    counts = count_copies(copies, classes=data.source.task is CLASSIFICATION)
    return copies, replace(counts, natural=int((is_natural & (everything.part == 0)).sum()))


def count_copies(copies: Copies, *, classes: bool) -> CopyCounts:
    """Count copies; `natural` is not known here."""
    table = copies.table
    within = table[table["part"] == "train"].groupby("group")["label"].agg(["size", "nunique"])
    several = within["size"] > 1
    return CopyCounts(
        validation=int((table["part"] == "validation").sum()),
        test=int((table["part"] == "test").sum()),
        train=int(within["size"][several].sum()),
        groups=int(several.sum()),
        conflicting=int((within["nunique"] > 1).sum()) if classes else 0,
    )


def _find_natural(
    everything: _Instances, keys: np.ndarray, columns: Columns | None, progress: bool
) -> set[int]:
    """The keys that several instances have without being copies: short texts, common rows."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    several = starts[np.bincount(keys) > 1]
    repeated = {int(keys[order[k]]): (int(order[k]), int(order[k + 1])) for k in several}
    if everything.source.modality.has_text:
        texts = everything.source.content["text"].fillna("")
        return {key for key, (one, _) in repeated.items() if not has_many_words(texts.iloc[one])}
    if columns is None or not repeated:
        return set()
    return natural_groups(columns, repeated, progress)


def _near_pairs(everything: _Instances, keys: np.ndarray) -> list[_Pair]:
    """Pairs that are nearly the same, among the first instances of all keys."""
    places = np.unique(keys, return_index=True)[1]
    places = places[everything.rows[places].abs().sum(1).numpy() > 0]  # else nothing is known
    if not 2 * NEIGHBORS < len(places) <= MOST_COMPARED:
        return []
    pairs = find_neighbors(everything.rows[places]).near_pairs()
    return [(int(places[one]), int(places[other]), share) for one, other, share in pairs]


def _drop_expected(pairs: list[_Pair], columns: Columns, progress: bool) -> list[_Pair]:
    """The pairs that agree so closely that chance makes none of them in the whole table."""
    nearest = sorted(pairs, key=lambda pair: pair[2])[:_MOST_PAIRS]
    count = len(columns[0])
    limit = np.log(_CHANCE_PAIRS / (count * (count - 1) / 2))
    rows = _rows_to_compare(len(nearest))
    kept = []
    with progress_bar("comparing copies", len(nearest), show=progress, unit="pairs") as bar:
        for pair in nearest:
            if log_chance(columns, pair[0], pair[1], rows) < limit:
                kept.append(pair)
            bar(1)
    return kept


def _make_groups(
    everything: _Instances, keys: np.ndarray, is_natural: np.ndarray, near: list[_Pair]
) -> Copies:
    """Join pairs to groups, and leave out those without a training instance."""
    firsts = np.unique(keys, return_index=True)[1]
    repeated = (np.bincount(keys)[keys] > 1) & ~is_natural
    shares = np.full(len(firsts), np.inf)  # by key
    for one, other, share in near:
        shares[keys[[one, other]]] = np.minimum(shares[keys[[one, other]]], share)
    nearest = np.where(repeated, 0.0, shares[keys])
    joined = np.flatnonzero(repeated)
    starts = [*firsts[keys[joined]], *(one for one, _, _ in near)]
    ends = [*joined, *(other for _, other, _ in near)]
    graph = coo_array((np.ones(len(ends)), (starts, ends)), shape=(len(keys),) * 2)
    group = connected_components(graph, directed=False)[1]
    trained = np.isin(group, group[(everything.part == 0) & np.isfinite(nearest)])
    members = np.flatnonzero(trained & np.isfinite(nearest))
    if not len(members):
        return no_copies()
    source = everything.source.take(members)
    same = keys[members]
    if everything.data.root is not None:
        same = _number_images(everything.data.root, source.content["path"].tolist())
    same = number_keys(same.tolist())
    table = pandas.DataFrame(
        {
            "group": group[members],
            "part": np.array(PARTS, object)[everything.part[members]],
            "id": everything.id[members],
            "source": source.names,
            "label": [str(label) for label in source.labels],
            "same": same,
            "exact": np.bincount(same)[same] > 1,
            "distance": nearest[members],
        }
    )
    places = _order(table, classes=source.task is CLASSIFICATION)
    table = table.iloc[places].reset_index(drop=True)
    table["group"] = pandas.factorize(table["group"])[0]
    return Copies(table, source.content.iloc[places].reset_index(drop=True))


def _order(table: Frame, *, classes: bool) -> np.ndarray:
    """The positions of the rows, in the order in which a person should look at the groups."""
    groups = table.groupby("group")
    is_in = lambda part: (table["part"] == part).groupby(table["group"]).transform("any")
    differ = (groups["label"].transform("nunique") > 1) & classes
    by = {
        "rank": np.select([is_in("test"), is_in("validation"), differ], [0, 1, 2], 3),
        "distance": groups["distance"].transform("min"),
        "id": groups["id"].transform("min"),
        "group": table["group"],
    }
    return pandas.DataFrame(by).sort_values(list(by), kind="stable").index.to_numpy()


# --- which are the same ---------------------------------------------------------------------------


FEWEST_WORDS = 6  # shorter texts are equal by nature
MOST_COLUMNS = 32  # those with the most values; the others could only add to the evidence
_WORDS = re.compile(r"\w+")


def _same_keys(everything: _Instances) -> np.ndarray:
    """int64 [N]: a number for each instance; instances that are the same share it.

    Rows of a table are the same if all input columns are equal, texts if they differ only in
    white space, and all others if they have the same inputs.
    """
    content = everything.source.content
    if everything.source.modality.has_text:
        return number_keys(" ".join(str(text).split()) for text in content["text"].fillna(""))
    if names := [column.name for column in _learned(everything.data)]:
        # column by column: as one frame, wide tables are slow
        columns = [content[name] for name in names]
        cells = [column.astype(object).where(column.notna(), None).tolist() for column in columns]
        return number_keys(map(repr, zip(*cells)))
    return number_keys(digest_bytes(row.tobytes()) for row in everything.rows.numpy())


def number_keys(keys: Iterable[Any]) -> np.ndarray:
    """int64 [N]: the same number for equal keys, in the order in which they come."""
    return pandas.factorize(pandas.Series(list(keys), dtype=object))[0].astype(np.int64)


def _number_images(root: Path, paths: list[str]) -> np.ndarray:
    """int64 [N]: the same number for images with the same pixels, at their real size."""
    pixels = (np.asarray(load_image(root / path)) for path in paths)
    return number_keys(
        digest_bytes(f"{image.shape}".encode() + image.tobytes()) for image in pixels
    )


def has_many_words(text: object) -> bool:
    """Whether a text is too long to be written twice by chance."""
    return len(set(_WORDS.findall(str(text)))) >= FEWEST_WORDS


def _as_columns(everything: _Instances) -> Columns | None:
    """The columns of a table as numbers; None for images and texts.

    Each category, each date, and a missing one of them has its own number. If there are many
    columns, those with the most values are taken.
    """
    if not everything.source.modality.has_columns:
        return None
    if columns := _learned(everything.data):
        cells = [(column.kind, everything.source.content[column.name]) for column in columns]
        read = [
            parse_finite(column) if kind == "number" else number_keys(map(str, column))
            for kind, column in cells
        ]
        is_number = np.array([column.kind != "category" for column in columns])
        table = np.stack(read, axis=1).astype(np.float64)
    elif everything.data.x["train"].dim() == 2:
        table = everything.rows.numpy().astype(np.float64)
        is_number = np.ones(table.shape[1], bool)
    else:
        return None
    values = [len(np.unique(column)) for column in table.T]
    chosen = np.sort(np.argsort(values, kind="stable")[::-1][:MOST_COLUMNS])
    return table[:, chosen], is_number[chosen]


def _learned(data: PreparedData) -> list[Column]:
    return [column for column in data.columns if column.kind in ("number", "category", "date")]


# --- which are nearly the same --------------------------------------------------------------------


NEIGHBORS = 20  # of each instance: the last of them says how near others usually are
_FEW_DIMENSIONS = 128  # of the random projection in which candidates are searched
_BLOCK_BYTES = 256 << 20  # of gathered rows
_FALSE_ALARMS = 0.01  # near pairs that chance may make in the whole dataset, on average
_AT_MOST = 0.4  # of the usual distance: in many dimensions chance allows for more, a copy does not
_USUALLY = 1.5  # times the median distance: a larger one is unusual


@dataclass(frozen=True)
class Neighbors:
    """Of N instances the K nearest others, the nearest first."""

    places: Tensor  # int64 [N, K]
    distances: Tensor  # float32 [N, K]

    @property
    def usual(self) -> Tensor:
        """How far the last of the neighbors is: the scale of near and far around each, [N]."""
        return self.distances[:, -1]

    @property
    def dimension(self) -> float:
        """The number of dimensions m in which the neighbors lie.

        A ball of half the volume has 2^(-1/m) of the radius: the middle one of K neighbors is that
        much nearer than the last. And the nearest is nearer than the share t of the last one's
        distance with probability 1 - (1 - t^m)^(K-1). Either gives m by a median over all
        instances. Copies can only make it smaller, so the larger one is taken.
        """
        count = self.distances.shape[1]
        middle = self._fit_dimension(max(count // 2, 1), 0.5)
        return max(middle, self._fit_dimension(1, 1 - 0.5 ** (1 / max(count - 1, 1))))

    def _fit_dimension(self, rank: int, content: float) -> float:
        """m where the neighbor of this rank encloses, in the median, this share of the volume."""
        nearer = self.distances[:, rank - 1]
        known = (nearer > 0) & (nearer < self.usual)
        if 2 * int(known.sum()) < len(known):
            return 0.0 if float(nearer.median()) == 0 else math.inf  # or ties, as on a grid
        return math.log(content) / float((nearer[known] / self.usual[known]).log().median())

    @property
    def threshold(self) -> float:
        """The share of the usual distance below which two instances are nearly the same.

        Of an instance's K neighbors, spread evenly in m dimensions, one is nearer than the share t
        of the last one's distance with probability (K - 1) t^m at most. Over all N instances chance
        makes fewer than N (K - 1) t^m such pairs: t keeps that below `_FALSE_ALARMS`.
        """
        count, neighbors = self.distances.shape
        dimension = self.dimension
        if dimension == 0:
            return 0.0
        share = _FALSE_ALARMS / (count * max(neighbors - 1, 1))
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
        ends = zip(rows.tolist(), self.places[rows, columns].tolist())
        pairs = {
            (min(one, other), max(one, other)): share
            for (one, other), share in zip(ends, shares[rows, columns].tolist())
        }
        return [(*pair, share) for pair, share in sorted(pairs.items())]


def find_neighbors(rows: Tensor, count: int = NEIGHBORS) -> Neighbors:
    """Find the nearest neighbors of every row by Euclidean distance.

    Where there are many dimensions, candidates come from a projection to fewer; their distances are
    those of the rows themselves.

    Arguments:
        rows: float32 [N, d].
        count: How many neighbors of each; fewer where there are not so many.
    """
    few = rows
    if rows.shape[1] > 2 * _FEW_DIMENSIONS:
        generator = torch.Generator().manual_seed(0)
        projection = torch.randn(rows.shape[1], _FEW_DIMENSIONS, generator=generator)
        few = rows @ (projection / math.sqrt(_FEW_DIMENSIONS))
    search = NearestNeighbors(n_neighbors=min(count, len(rows) - 1)).fit(few.numpy())
    places = torch.from_numpy(search.kneighbors(return_distance=False))
    at_once = max(1, _BLOCK_BYTES // (8 * rows.shape[1] * places.shape[1]))
    blocks = zip(rows.split(at_once), places.split(at_once))
    distances = torch.cat(
        [(block[:, None] - rows[near]).square().sum(2).sqrt() for block, near in blocks]
    )
    order = distances.argsort(dim=1)
    return Neighbors(places.gather(1, order), distances.gather(1, order))


# --- which are expected ---------------------------------------------------------------------------


_SAMPLED = 400  # rows, to estimate how many equal ones to expect
_CHANCE_SHARE = 0.05  # of the groups that are listed may be chance
_MOST_ROWS, _FEWEST_ROWS = 20_000, 2_000  # to measure how rare agreement is
_ROWS_OF_ALL = 40_000_000  # for all pairs together
_PRIOR = 10  # rows: fewer than this do not show that one column follows from another


def natural_groups(
    columns: Columns, groups: Mapping[int, tuple[int, int]], progress: bool
) -> set[int]:
    """Which groups of equal rows are expected.

    N rows of probability P have N (N - 1) / 2 P^2 equal pairs on average: that is the mean of P
    over the rows that are there, times N (N - 1) / 2. Groups count as copies, the least probable
    first, as long as chance would make few such pairs in comparison.

    Arguments:
        columns: As for `log_chance`.
        groups: {name of a group: the positions of two of its rows}.
        progress: Whether to show a progress bar.
    """
    count = len(columns[0])
    rows = _rows_to_compare(len(groups))
    logs: dict[int, float] = {}
    with progress_bar("comparing copies", len(groups), show=progress, unit="groups") as bar:
        for name, (one, other) in groups.items():
            logs[name] = log_chance(columns, one, other, rows)
            bar(1)
    places = np.random.default_rng(0).choice(count, min(count, _SAMPLED), replace=False)
    usual = np.exp([log_chance(columns, place, place, rows) for place in places])
    rarest_first = sorted(logs, key=lambda name: logs[name])
    copies = 0
    for number, name in enumerate(rarest_first, 1):
        rare = np.exp(logs[name])
        as_rare = (usual[usual <= rare].sum() + rare) / (len(usual) + 1)
        if count * (count - 1) / 2 * as_rare <= _CHANCE_SHARE * number:
            copies = number
    return set(rarest_first[copies:])


def _rows_to_compare(pairs: int) -> int:
    """How many rows to compare each pair with, so that all `pairs` take only seconds."""
    return min(_MOST_ROWS, max(_FEWEST_ROWS, _ROWS_OF_ALL // max(pairs, 1)))


def log_chance(columns: Columns, one: int, other: int, most_rows: int) -> float:
    """The log of the probability that a row agrees with `one` as closely as `other` does.

    Column by column: what share of the rows, of those that agree in an earlier column, agrees in
    this one? The most informative earlier column is used. Columns that follow from each other
    count once, and the probability is too large rather than too small.

    Arguments:
        columns: float64 [N, C] with nan where a cell is missing, categories numbered; and which of
            them are numbers. Numbers agree if they are as near or nearer, categories if equal.
        one, other: The positions of two rows.
        most_rows: How many rows to compare with.
    """
    cells, is_number = columns
    sample = cells[np.linspace(0, len(cells) - 1, min(len(cells), most_rows)).astype(int)]
    agrees = _agreement(sample, is_number, cells[one], cells[other])
    agrees = agrees[:, ~agrees.all(0)].astype(np.float32)
    copies = agrees.all(1).sum()  # they are what is asked about
    both = agrees.T @ agrees - copies  # [C, C]
    alone = (np.diag(both) + 1) / (len(sample) - copies + 1)  # no value is impossible
    log = 0.0
    earlier: list[int] = []
    for column in np.argsort(alone, kind="stable"):  # the rarest agreement first
        conditional = [
            (both[column, known] + _PRIOR * alone[column]) / (both[known, known] + _PRIOR)
            for known in earlier
        ]
        log += float(np.log(max([alone[column], *conditional])))
        earlier.append(column)
    return log


def _agreement(
    rows: np.ndarray, is_number: np.ndarray, one: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """bool [rows, C]: which cells agree with `one` as `other` does; all where `other` disagrees."""
    missing = np.isnan(one)
    apart = np.abs(one - other)
    with np.errstate(invalid="ignore"):
        near = np.abs(rows - one) <= apart
    near = np.where(missing, np.isnan(rows), near)
    no_evidence = np.where(is_number, np.isnan(other) != missing, one != other)
    no_evidence &= ~(missing & np.isnan(other))
    return near | no_evidence


# --- in words -------------------------------------------------------------------------------------


def describe_copies(counts: CopyCounts, sizes: Mapping[str, int]) -> str:
    """The copies that were found, in one paragraph; empty if there are none.

    sizes: how many instances each set has.
    """
    sentences = []
    leaked = {"test": counts.test, "validation": counts.validation}
    leaked = {part: count for part, count in leaked.items() if count}
    if leaked:
        which = " and ".join(f"{leaked[part]:,} of {sizes[part]:,} {part}" for part in leaked)
        are = "is" if sum(leaked.values()) == 1 else "are"
        result = "the verdict" if "test" in leaked else "results measured on them"
        sentences.append(
            f"{which} instances {are} also in the training set, as exact or near duplicates, which "
            f"makes {result} too optimistic."
        )
    if counts.train:
        conflict = ""
        if counts.conflicting:
            where = f"in {counts.conflicting:,} of them" if counts.groups > 1 else "there"
            conflict = f"; the labels differ {where}, so at least one of them is wrong"
        sentences.append(
            f"{counts.train:,} training instances are exact or near duplicates of other training "
            f"instances, in {say_count(counts.groups, 'group')}{conflict}."
        )
    if sentences:
        sentences.append("dross review lists them under Duplicates: remove the duplicates there.")
    return " ".join(sentences)


def describe_natural(counts: CopyCounts, modality: Modality) -> str:
    """The instances that are equal by chance and are not listed; empty if there are none."""
    if not counts.natural:
        return ""
    why = "texts of a few words" if modality.has_text else "columns with few values"
    return (
        f"{counts.natural:,} training instances are identical to others, which is expected for "
        f"{why}. They are not listed."
    )


def describe_group(copies: Copies, number: int, *, classes: bool) -> str:
    """Where the instances of a group are, what is wrong with that, and what to do about it.

    classes: whether labels are classes, of which an instance has one.
    """
    rows = copies.group(number)
    likeness = name_likeness(len({row["same"] for row in rows}) == 1).capitalize()
    present = {row["part"] for row in rows}
    others = [part for part in ("test", "validation") if part in present]
    if others:
        where = " and ".join(f"the {part} set" for part in ("training", *others))
        advice = "this makes results too optimistic. Keep it in one of them only."
    else:
        where = f"the training set {len(rows)} times"
        advice = "keep one."
    labels = sorted({row["label"] for row in rows})
    conflict = ""
    if classes and len(labels) > 1:
        conflict = f" The labels differ ({', '.join(labels[:5])}), so at least one is wrong."
    return f"{likeness}, in {where}: {advice}{conflict}"


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
    """Where an instance is: "row 17", or "row 17 in the test set"."""
    part, source = row["part"], str(row["source"])
    return source if part == "train" else f"{source} in the {part} set"


def name_likeness(same: bool) -> str:
    """How alike two instances are, in words."""
    return "the same" if same else "nearly the same"
