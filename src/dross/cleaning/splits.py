"""Rows that belong together, and rows that are newer: which of them are held out at a time.

Models that know a customer predict the customer's other rows too well, and models that know the
future predict the past too well. With a group column all rows of a group are in the same fold; with
a time column the newest rows are the test set.
"""

import re
from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from .._text import say_count
from ..errors import InvalidInput
from .modality import Frame, Series, Source
from .tables import parse_times, words_of

NEWEST = 0.2  # the share of the rows that is the test set
_FEWEST_GROUPS = 10
_FEWEST_ROWS = 1.3  # of a group, on average
_WITHOUT_TIME = 0.05  # the share of rows without a time that is still believed
_GROUP = re.compile(
    r"account|author|client|customer|device|document|donor|family|household|machine|member|patient|"
    r"participant|person|sensor|session|shop|speaker|store|student|subject|user|vehicle|writer"
)


def check_groups(groups: np.ndarray, name: str) -> None:
    """Refuse, with InvalidInput, too few groups to hold some of them out."""
    count = len(np.unique(groups[groups != ""])) + int((groups == "").sum())
    if count < _FEWEST_GROUPS:
        raise InvalidInput(
            f"'{name}' has only {say_count(count, 'group')}, and dross holds out some of them at a "
            f"time. At least {_FEWEST_GROUPS} groups are needed; leave out `group`."
        )


def join_groups(groups: np.ndarray, named: np.ndarray | None) -> np.ndarray:
    """Groups of rows that share a group by one or the other, directly or by way of other rows.

    Arguments:
        groups: int64 [N].
        named: Other groups of the same rows, [N]; "" is no group. None changes nothing.

    Returns:
        int64 [N]: each group has the number of its first row.
    """
    if named is None:
        return groups
    count = len(groups)
    rows = np.arange(count)
    has_name = named != ""
    _, first = np.unique(groups, return_inverse=True)
    _, second = np.unique(named[has_name].astype(str), return_inverse=True)
    start = count + len(groups)
    ends = np.concatenate([count + first, start + second])
    starts = np.concatenate([rows, rows[has_name]])
    size = start + count
    edges = coo_array((np.ones(len(ends), dtype=np.int8), (starts, ends)), shape=(size, size))
    _, component = connected_components(edges, directed=False)
    _, place, joined = np.unique(component[:count], return_index=True, return_inverse=True)
    return place[joined]


def read_times(column: Series, name: str) -> np.ndarray:
    """When each row was made, float64 [N]: a number, or a date in days; nan where it is missing.

    Raises:
        InvalidInput: the cells are neither numbers nor dates.
    """
    times = parse_times(column)
    lacking = float(np.isnan(times).mean())
    if lacking > _WITHOUT_TIME:
        present = column.notna().to_numpy()
        unread = column[np.isnan(times) & present]
        example = f", such as '{unread.iloc[0]}'" if len(unread) else ""
        raise InvalidInput(
            f"{lacking:.0%} of the cells in '{name}' are neither dates nor numbers{example}. Pass "
            "the column that contains each row's date or time as `time`."
        )
    return times


def split_newest(source: Source, name: str) -> dict[str, Source]:
    """The older rows for training, and the newest fifth as the test set.

    Rows of the same time stay together; those without one are older.

    Raises:
        InvalidInput: nearly all rows have the same time.
    """
    assert source.times is not None
    times = np.nan_to_num(source.times, nan=-np.inf)
    order = np.sort(times)
    last = order[-max(1, round(NEWEST * len(order)))]
    newest = times >= last
    if newest.mean() > 2 * NEWEST:
        newest = times > last
    count = int(newest.sum())
    if not len(source) * NEWEST / 4 < count < len(source) * NEWEST * 2:
        raise InvalidInput(
            f"Too many rows have the same value in '{name}' to set the newest fifth aside. Leave "
            "out `time`, or pass a test file of newer rows as `test`."
        )
    known = set(source.labels[~newest]) if source.classes else set()
    unknown = sorted(set(source.labels[newest]) - known) if known else []
    kept = newest & ~np.isin(source.labels, unknown) if unknown else newest
    notes = [
        f"The newest {count:,} of {len(source):,} rows by '{name}' are the test set: models are "
        "trained on older rows and evaluated on newer ones. The labels of the test set are not "
        "examined."
    ]
    if unknown:
        unseen = int((newest & ~kept).sum())
        rows = say_count(unseen, "newest row has a class", "newest rows have classes")
        verb = "is" if unseen == 1 else "are"
        notes.append(f"{rows} that no older row has, and {verb} left out.")
    train = source.take(np.flatnonzero(~newest))
    return {
        "train": replace(train, notes=[*source.notes, *notes]),
        "test": source.take(np.flatnonzero(kept)),
    }


def warn_of_shared_groups(sources: dict[str, Source], name: str) -> list[str]:
    """A note where groups of the training set are in another set, too."""
    known = set(sources["train"].groups if sources["train"].groups is not None else ()) - {""}
    notes = []
    for part, source in sources.items():
        if part == "train" or source.groups is None:
            continue
        shared = int(np.isin(source.groups, list(known)).sum())
        if shared:
            notes.append(
                f"{shared:,} of {len(source):,} {part} rows share a value of '{name}' with training "
                "rows: the models have seen these groups, and predict them better than new ones."
            )
    return notes


def suggest_groups(content: Frame) -> str | None:
    """The column that looks like a group, if there is one: by its name, and as values repeat."""
    for name in content.columns:
        cells = content[name].dropna()
        if not len(cells) or not any(_GROUP.fullmatch(word) for word in words_of(name)):
            continue
        distinct = cells.nunique()
        if _FEWEST_GROUPS <= distinct <= len(cells) / _FEWEST_ROWS:
            return str(name)
    return None


def hold_out_groups(groups: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Which rows are held out, bool [N]: those of random groups, about this share of them."""
    _, place = np.unique(groups, return_inverse=True)
    order = rng.permutation(place.max() + 1)
    sizes = np.bincount(place)[order]
    chosen = order[: max(1, int(np.searchsorted(np.cumsum(sizes), share * len(groups))))]
    return np.isin(place, chosen)
