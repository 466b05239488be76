"""The copies that were found, as a project keeps them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import CorruptFile
from .source import PARTS, Frame, import_pandas

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
    """A table without rows: no copies were found, or an earlier version did not look for any."""
    pandas = import_pandas()
    table = pandas.DataFrame({name: pandas.Series(dtype=kind) for name, kind in _TYPES.items()})
    return Copies(table, pandas.DataFrame())


def join_content(copies: Copies) -> Frame:
    """One table for the file."""
    named = copies.table.add_prefix(_APART).reset_index(drop=True)
    content = copies.content.reset_index(drop=True).astype(object)
    return import_pandas().concat([content, named], axis=1)


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
