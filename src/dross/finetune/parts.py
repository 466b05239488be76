"""The examples of a job: read, encoded, compared with each other, and split into parts."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch

from ..cleaning.chats import Chat, ChatColumns, read_chats
from ..cleaning.duplicates import Copies, count_copies, find_copies, no_copies
from ..cleaning.modality import MIN_INSTANCES, PARTS, Frame, Source, assemble
from ..cleaning.text import TextEncoder
from ..data.seeds import mix_seeds
from ..errors import InvalidInput
from .encode import Encoded, encode_chats
from .model import Loaded

_SHARE_HELD_OUT = 0.2  # of the data, for each part that has no file
_FEWEST_HELD_OUT = 8  # examples in the validation part, and in the test part
_LETTERS = 80  # of a response, as the label of an example
Found = tuple[Copies, dict[str, int]]


@dataclass(frozen=True)
class Examples:
    """All examples that can be learned from, and the part that each is in."""

    chats: list[Chat]
    encoded: Encoded
    parts: dict[str, np.ndarray]  # the sorted places of each part
    columns: ChatColumns  # of the data
    notes: list[str]

    @property
    def digest(self) -> str:
        """Changes with the texts, their tokens and the split."""
        lines = [f"{chat.name}\n{chat.text}" for chat in self.chats]
        lines += [str(example) for example in self.encoded.examples]
        lines += [str(self.parts[part].tolist()) for part in PARTS]
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()

    def content(self, part: str) -> Frame:
        """What the examples of a part look like."""
        chats = [self.chats[place] for place in self.parts[part]]
        columns = {"text": [c.text for c in chats], "origin": [c.origin for c in chats]}
        return pandas.DataFrame(columns, dtype=object)

    def names(self, part: str) -> list[str]:
        """Where the examples of a part are: `line 17`."""
        return [self.chats[place].name for place in self.parts[part]]

    def labels(self, part: str) -> list[str]:
        """The beginning of each response."""
        said = [self.chats[place].response.strip() for place in self.parts[part]]
        return [text[:_LETTERS] + (" …" if len(text) > _LETTERS else "") for text in said]


def prepare_examples(
    files: Mapping[str, Path],
    columns: ChatColumns,
    loaded: Loaded,
    max_tokens: int | None,
    *,
    seed: int,
    device: torch.device,
    progress: bool,
) -> tuple[Examples, Found]:
    """Read, encode, look for copies, and split so that near duplicates are in one part.

    Arguments:
        files: The data as `train`, and files of the user's own for the other parts, if any.
        columns: Which columns hold what.
        loaded: The model and its tokenizer.
        max_tokens: As for `encode_chats`.
        seed: Of the split.
        device, progress: As for `find_copies`.

    Returns:
        The examples, and the copies among them with their counts.

    Raises:
        InvalidInput: a file cannot be used, or there are too few examples.
    """
    read = {part: read_chats(path, columns) for part, path in files.items()}
    chats = [chat for part in read for chat in _name_part(part, read[part].chats)]
    encoded = encode_chats(chats, loaded, max_tokens)
    chats = [chats[place] for place in encoded.places]
    sizes = {part: len(found.chats) for part, found in read.items()}
    belongs = np.repeat(list(sizes), list(sizes.values()))[encoded.places]
    given = {part: np.flatnonzero(belongs == part) for part in sizes}
    if len(given["train"]) < MIN_INSTANCES:
        raise InvalidInput(
            f"There are {len(given['train'])} examples to learn from. dross splits them into "
            f"training, validation and test parts and needs at least {MIN_INSTANCES}; a verdict "
            "worth having takes a few hundred."
        )
    said = [note for found in read.values() for note in found.notes]
    notes = list(dict.fromkeys(said)) + encoded.notes
    copies, counts = _find_copies(chats, given, device, progress)
    parts = _split(given, copies, seed)
    examples = Examples(chats, encoded, parts, read["train"].columns, notes)
    for part in PARTS[1:]:
        if len(parts[part]) < _FEWEST_HELD_OUT:
            raise InvalidInput(
                f"The {part} part has {len(parts[part])} examples, and needs at least "
                f"{_FEWEST_HELD_OUT}. Give more data, or a file of its own: --{part}."
            )
    copies = _move_copies(copies, given["train"], parts)
    return examples, (copies, counts | count_copies(copies, classes=False))


def _name_part(part: str, chats: list[Chat]) -> list[Chat]:
    """Rows of other files say which part they belong to."""
    if part == "train":
        return chats
    return [replace(chat, name=f"{part}: {chat.name}") for chat in chats]


def _find_copies(
    chats: list[Chat], given: dict[str, np.ndarray], device: torch.device, progress: bool
) -> Found:
    """Copies among everything, by the words that are said."""
    content = pandas.DataFrame({"text": [chat.text for chat in chats]}, dtype=object)
    labels = np.array([chat.response for chat in chats], dtype=object)
    source = Source("text", "response", content, labels, [chat.name for chat in chats])
    places = {part: given.get(part, np.zeros(0, dtype=np.int64)) for part in PARTS}
    try:
        encoder = TextEncoder(content)
    except InvalidInput:  # no word occurs twice: nothing is nearly the same
        return no_copies(), {"natural": 0}
    vectors: Any = encoder(content)
    x = {part: vectors[ids] for part, ids in places.items()}
    return find_copies(assemble(source, places, x), device=device, progress=progress)


def _split(given: dict[str, np.ndarray], copies: Copies, seed: int) -> dict[str, np.ndarray]:
    """Parts with files of their own as they are; the others are drawn, copies together."""
    data = given["train"]
    group = np.arange(len(data))
    first: dict[int, int] = {}
    for row in copies.table.itertuples():
        if row.part == "train":
            group[row.id] = first.setdefault(row.group, row.id)
    order = np.random.default_rng(mix_seeds(seed, 1)).permutation(np.unique(group))
    members = [np.flatnonzero(group == name) for name in order]
    parts, start = dict(given), 0
    for part in PARTS[1:]:
        if part in given:
            continue
        wanted, drawn = round(_SHARE_HELD_OUT * len(data)), [np.zeros(0, dtype=np.int64)]
        while sum(map(len, drawn)) < wanted:
            drawn.append(members[start])
            start += 1
        parts[part] = np.sort(data[np.concatenate(drawn)])
    parts["train"] = np.sort(data[np.concatenate(members[start:])])
    return {part: parts[part] for part in PARTS}


def _move_copies(copies: Copies, data: np.ndarray, parts: dict[str, np.ndarray]) -> Copies:
    """The copies by the parts that their examples are in now; groups need a training example."""
    if not len(copies):
        return copies
    place = {int(id): (part, k) for part in PARTS for k, id in enumerate(parts[part].tolist())}
    where = [
        place[int(data[row.id])] if row.part == "train" else (row.part, row.id)
        for row in copies.table.itertuples()
    ]
    table = copies.table.assign(
        part=np.array([part for part, _ in where], dtype=object), id=[k for _, k in where]
    )
    trained = table.groupby("group")["part"].transform(lambda found: "train" in set(found))
    kept = trained.to_numpy(bool)
    if not kept.any():
        return no_copies()
    table = table[kept].reset_index(drop=True)
    table["group"] = pandas.factorize(table["group"])[0]
    return Copies(table, copies.content[kept].reset_index(drop=True))
