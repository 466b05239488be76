"""Conversations as examples: read, written as tokens, compared with each other, and split."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch

from ..cleaning.chats import Chat, ChatOptions, read_chats
from ..cleaning.duplicates import Copies, CopyCounts, count_copies, find_copies, no_copies
from ..cleaning.inputs import Request
from ..cleaning.modality import MIN_INSTANCES, PARTS, Frame, Source, assemble
from ..cleaning.text import TEXT, TextEncoder
from ..data.seeds import mix_seeds
from ..errors import InvalidInput, first_line
from .model import Loaded

IGNORED = -100  # the label of a token that is not learned
DEFAULT_TOKENS = 1024  # where the model takes more
_SHARE_HELD_OUT = 0.2  # of the data, for each part that has no file
_FEWEST_HELD_OUT = 8  # examples in the validation part, and in the test part
_LETTERS = 80  # of a response, as the label of an example
Found = tuple[Copies, CopyCounts]


@dataclass(frozen=True)
class Encoded:
    """Conversations as examples for Trainer, with what each token looks like."""

    examples: list[dict[str, list[int]]]  # input_ids and labels
    texts: list[list[str]]  # of every token of every example
    places: list[int]  # of the conversations that are here; the others have nothing left to learn
    notes: list[str]

    def learned(self, place: int) -> list[int]:
        """The places of an example's tokens that are learned; the first token never is."""
        labels = self.examples[place]["labels"]
        return [k for k, label in enumerate(labels) if k and label != IGNORED]


@dataclass(frozen=True)
class Examples:
    """All examples that can be learned from, and the part that each is in."""

    chats: list[Chat]
    encoded: Encoded
    parts: dict[str, np.ndarray]  # the sorted places of each part
    notes: list[str]
    row_word: str  # what the numbers of rows count: line or row

    @property
    def digest(self) -> str:
        """Changes with the texts, their tokens and the split."""
        lines = [f"{chat.row}\n{chat.text}" for chat in self.chats]
        lines += [str(example) for example in self.encoded.examples]
        lines += [str(self.parts[part].tolist()) for part in PARTS]
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()

    def content(self, part: str) -> Frame:
        """What the examples of a part look like."""
        chats = [self.chats[place] for place in self.parts[part]]
        columns = {"text": [c.text for c in chats], "origin": [c.origin for c in chats]}
        return pandas.DataFrame(columns, dtype=object)

    def rows(self, part: str) -> list[int]:
        """Where the examples of a part are in the file."""
        return [self.chats[place].row for place in self.parts[part]]

    def names(self, part: str) -> list[str]:
        """The same for people: `line 17`."""
        return [f"{self.row_word} {row}" for row in self.rows(part)]

    def labels(self, part: str) -> list[str]:
        """The beginning of each response."""
        texts = [self.chats[place].response.strip() for place in self.parts[part]]
        return [text[:_LETTERS] + (" …" if len(text) > _LETTERS else "") for text in texts]


def open_examples(
    request: Request,
    options: ChatOptions,
    loaded: Loaded,
    device: torch.device,
    *,
    progress: bool,
) -> tuple[Examples, Found]:
    """Read, encode, look for copies, and split so that near duplicates are in one part.

    Arguments:
        request: The files.
        options: Which columns hold what, and how many tokens are used.
        loaded: The model and its tokenizer.
        device, progress: As for `find_copies`.

    Returns:
        The examples, and the copies among them with their counts; the same every time.

    Raises:
        InvalidInput: a file cannot be used, or there are too few examples.
    """
    paths = {"train": request.data, "validation": request.validation, "test": request.test}
    read = {
        part: read_chats(Path(path), options.columns)
        for part, path in paths.items()
        if path is not None
    }
    chats = [chat for file in read.values() for chat in file.chats]
    encoded = encode_chats(chats, loaded, options.max_tokens)
    chats = [chats[place] for place in encoded.places]
    sizes = {part: len(file.chats) for part, file in read.items()}
    belongs = np.repeat(list(sizes), list(sizes.values()))[encoded.places]
    by_file = {part: np.flatnonzero(belongs == part) for part in sizes}
    if len(by_file["train"]) < MIN_INSTANCES:
        raise InvalidInput(
            f"There are {len(by_file['train'])} examples to learn from. dross splits them into "
            f"training, validation and test parts and needs at least {MIN_INSTANCES}; a verdict "
            "worth having takes a few hundred."
        )
    notes = list(dict.fromkeys(note for file in read.values() for note in file.notes))
    notes += encoded.notes
    row_word = read["train"].row_word
    copies, counts = _find_copies(chats, by_file, row_word, device, progress)
    parts = _split(by_file, copies, request.seed)
    examples = Examples(chats, encoded, parts, notes, row_word)
    for part in PARTS[1:]:
        if len(parts[part]) < _FEWEST_HELD_OUT:
            raise InvalidInput(
                f"The {part} part has {len(parts[part])} examples, and needs at least "
                f"{_FEWEST_HELD_OUT}. Give more data, or a file of its own: --{part}."
            )
    copies = _move_copies(copies, by_file["train"], parts)
    moved = replace(count_copies(copies, classes=False), natural=counts.natural)
    return examples, (copies, moved)


def _find_copies(
    chats: list[Chat],
    by_file: dict[str, np.ndarray],
    row_word: str,
    device: torch.device,
    progress: bool,
) -> Found:
    """Copies among everything, by the words that are said."""
    content = pandas.DataFrame({"text": [chat.text for chat in chats]}, dtype=object)
    labels = np.array([chat.response for chat in chats], dtype=object)
    rows = np.array([chat.row for chat in chats], dtype=np.int64)
    source = Source(TEXT, "response", content, labels, rows, row_word)
    places = {part: by_file.get(part, np.zeros(0, dtype=np.int64)) for part in PARTS}
    try:
        encoder = TextEncoder(content)
    except InvalidInput:  # no word occurs twice: nothing is nearly the same
        return no_copies(), CopyCounts()
    vectors: Any = encoder(content)
    x = {part: vectors[ids] for part, ids in places.items()}
    return find_copies(assemble(source, places, x), device=device, progress=progress)


def _split(by_file: dict[str, np.ndarray], copies: Copies, seed: int) -> dict[str, np.ndarray]:
    """Parts with files of their own as they are; the others are drawn, copies together."""
    data = by_file["train"]
    group = np.arange(len(data))
    first: dict[int, int] = {}
    for row in copies.table.itertuples():
        if row.part == "train":
            group[row.id] = first.setdefault(row.group, row.id)
    order = np.random.default_rng(mix_seeds(seed, 1)).permutation(np.unique(group))
    members = [np.flatnonzero(group == name) for name in order]
    parts = dict(by_file)
    wanted = round(_SHARE_HELD_OUT * len(data))
    start = 0
    for part in PARTS[1:]:
        if part in by_file:
            continue
        drawn = [np.zeros(0, dtype=np.int64)]
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
    trained = table.groupby("group")["part"].transform(lambda parts: "train" in set(parts))
    kept = trained.to_numpy(bool)
    if not kept.any():
        return no_copies()
    table = table[kept].reset_index(drop=True)
    table["group"] = pandas.factorize(table["group"])[0]
    return Copies(table, copies.content[kept].reset_index(drop=True))


# --- tokens ---------------------------------------------------------------------------------------


def encode_chats(chats: Sequence[Chat], loaded: Loaded, max_tokens: int | None) -> Encoded:
    """Write conversations with the model's chat template, and split them into tokens.

    Arguments:
        chats: The conversations.
        loaded: The model and its tokenizer.
        max_tokens: How many tokens of a text are used; by default 1,024. Never more than the
            model takes.

    Raises:
        InvalidInput: the template refuses a conversation, or does not write what the assistant says.
    """
    limit = min(max_tokens or DEFAULT_TOKENS, loaded.context or (1 << 30))
    examples = []
    texts = []
    places = []
    cut = 0
    for place, chat in enumerate(chats):
        text, learned = _write(chat, loaded.tokenizer)
        tokens = loaded.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = tokens["input_ids"]
        spans = tokens["offset_mapping"]
        labels = [
            id if start < end and any(a <= start < b for a, b in learned) else IGNORED
            for id, (start, end) in zip(ids, spans, strict=True)
        ]
        cut += len(ids) > limit
        if all(label == IGNORED for label in labels[1:limit]):
            continue
        examples.append({"input_ids": ids[:limit], "labels": labels[:limit]})
        texts.append(_cut(text, [end for _, end in spans[:limit]]))
        places.append(place)
    note = f"{cut:,} of {len(chats):,} texts are longer than {limit:,} tokens and are cut there."
    if len(chats) > len(places):
        note += (
            f" In {len(chats) - len(places):,} of them, nothing of the answer is left: they are "
            "left out of everything but the export."
        )
    return Encoded(examples, texts, places, [note] if cut else [])


def _write(chat: Chat, tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The text of a conversation, and which stretches of it the assistant says."""
    messages = list(chat.messages)
    text = _render(chat, messages, tokenizer, prompt=False)
    learned = []
    for k, message in enumerate(messages):
        if message["role"] == "assistant":
            before = _render(chat, messages[:k], tokenizer, prompt=True) if k else ""
            after = _render(chat, messages[: k + 1], tokenizer, prompt=False)
            if text.startswith(before) and text.startswith(after):
                learned.append((len(before), len(after)))
    if not learned:  # a template that writes earlier turns differently: the last one is learned
        start = text.rfind(chat.response)
        if start < 0:
            raise InvalidInput(
                f"{chat.name}: the chat template does not write what the assistant says. Give "
                f"another with `template`."
            )
        learned.append((start, len(text)))
    return text, learned


def _render(chat: Chat, messages: list[dict[str, str]], tokenizer: Any, *, prompt: bool) -> str:
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    except Exception as error:  # a template raises what it likes
        raise InvalidInput(
            f"{chat.name}: the chat template of the model refuses this conversation "
            f"({first_line(error)})."
        ) from None


def _cut(text: str, ends: list[int]) -> list[str]:
    """The text of each token. A letter that several tokens make up belongs to the first."""
    pieces = []
    start = 0
    for end in ends:
        pieces.append(text[start : max(start, end)])
        start = max(start, end)
    return pieces
