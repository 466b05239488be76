"""Tapes whose states lie in one file per rank, and reading no more of them than a rank needs.

    "shards": 4                          in the manifest: four ranks wrote their shards, by rows
    "shards": [{file, bytes, sha256}]    in an entry: the files of the ranks after the first, whose
                                         part is in the entry's own file

A tape of one process is one whole shard. Whoever opens a tape puts the shards together, or takes
the numbers of its own shard out of them, whatever the number of ranks is then.
"""

import os
from collections.abc import Sequence

from torch import Tensor

from ..engine.state import Layout
from ..errors import InputChanged
from ..support.counts import say_count
from .shard_layout import ShardLayout

_STATE = "state."  # in a segment; the end of a tape has the bare names


def files_of(entry: dict) -> list[dict]:
    """The entry's own file and those of other ranks."""
    return [entry, *entry.get("shards", [])]


def explain_other_ranks(folder: str | os.PathLike, shards: int, ranks: int) -> InputChanged:
    """The error where other ranks would go on with a tape than those that began it."""
    return InputChanged(
        f"The tape at {folder} has shards of {say_count(shards, 'rank')}, and {ranks} would go on "
        f"with it. Start {shards}, or record the run again in another folder. Retracing takes any "
        "number of ranks."
    )


def written_layout(manifest: dict) -> ShardLayout:
    """How the states of a tape were cut when it was written."""
    whole = Layout.from_json(manifest["layout"], manifest["model"])
    return ShardLayout(whole, manifest.get("shards", 1), by_rows=True)


def is_cut(name: str) -> bool:
    """Whether a tensor of a tape's file is a vector over theta."""
    name = name.removeprefix(_STATE)
    return name == "theta" or name.startswith("slot.")


def join_shards(shards: Sequence[dict[str, Tensor]], manifest: dict) -> dict[str, Tensor]:
    """The tensors of an entry, put together from the files of all ranks, the first one's first.

    Raises:
        ValueError: where the files do not fit together.
    """
    layout = written_layout(manifest)
    if len(shards) != layout.ranks:
        raise ValueError(f"it has {len(shards)} shards, and the tape has {layout.ranks}")
    whole = dict(shards[0])
    for name in filter(is_cut, shards[0]):
        parts = [shard[name] for shard in shards]
        for rank, part in enumerate(parts):
            if part.shape != (*parts[0].shape[:-1], layout.length(rank)):
                raise ValueError(f"{name} of shard {rank} has shape {tuple(part.shape)}")
        whole[name] = layout.join(parts)
    return whole
