"""Find the copies in a data set: within the training part, and between it and the others.

Those that are the same are found by their content. Those that are nearly the same are found on
the numbers that models learn: nearer than chance explains among the neighbours that the data have
(neighbours.py). In tables, rows must agree more than columns with few values do by chance
(chance.py).
"""

from dataclasses import dataclass

import numpy as np
import torch

from ..support.progress import progress_bar
from .duplicates_chance import log_chance, natural_groups, rows_to_ask
from .duplicates_groups import Copies, no_copies
from .duplicates_keys import (
    Columns,
    as_columns,
    has_many_words,
    number_keys,
    number_pictures,
    same_keys,
)
from .duplicates_neighbours import NEIGHBOURS, find_neighbours
from .source import PARTS, Frame, Source, import_pandas
from .split_dataset import PreparedData

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


def find_copies(
    data: PreparedData, *, device: torch.device, progress: bool
) -> tuple[Copies, dict[str, int]]:
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
    counts = count_copies(copies, classes=data.source.task == "classification")
    return copies, counts | {"natural": int(expected.sum())}


def count_copies(copies: Copies, *, classes: bool) -> dict[str, int]:
    """How many instances of each part have a copy, and how many groups of copies there are.

    Returns:
        validation, test: instances of these parts that are in the training part, too;
        train: training instances that have a copy in the training part;
        groups: of these; conflicting: of these again, where the labels differ and are classes.
    """
    table = copies.table
    within = table[table["part"] == "train"].groupby("group")["label"]
    several = within.size() > 1
    counts = {part: int((table["part"] == part).sum()) for part in PARTS[1:]}
    return counts | {
        "train": int(within.size()[several].sum()),
        "groups": int(several.sum()),
        "conflicting": int((within.nunique() > 1).sum()) if classes else 0,
    }


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
    if everything.data.source.kind == "text":
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
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

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
    table = import_pandas().DataFrame(
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
    differ &= everything.data.source.task == "classification"
    table["rank"] = np.select([is_in("test"), is_in("validation"), differ], [0, 1, 2], 3)
    table["least"] = by_group["distance"].transform("min")
    table["first"] = by_group["id"].transform("min")
    places = table.sort_values(["rank", "least", "first", "group"], kind="stable").index
    table = table.loc[places].drop(columns=["rank", "least", "first"])
    table["group"] = import_pandas().factorize(table["group"])[0]
    content = source.content.reset_index(drop=True).loc[places].reset_index(drop=True)
    return Copies(table.reset_index(drop=True), content)


def _number_same(data: PreparedData, content: Frame, keys: np.ndarray) -> np.ndarray:
    """int64 [members]: a number shared by those that are the same; pictures, pixel for pixel."""
    if data.root is None:
        return number_keys(map(str, keys))
    return number_pictures(data.root, content["path"].tolist())
