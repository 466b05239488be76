"""How probable it is that two rows of a table agree by chance.

In a table with few columns and few values, many rows are equal by chance. Copies are rows that are
so improbable that chance would not repeat them this often.
"""

from collections.abc import Mapping

import numpy as np

from ..support.progress import Advance

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
