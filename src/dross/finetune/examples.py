"""Conversations as examples: read, written as tokens, compared with each other, and split."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas

from ..cleaning.chats import Chat, ChatOptions, read_chats
from ..cleaning.checked_labels import group_copies
from ..cleaning.duplicates import Copies, CopyCounts, count_copies, find_copies, no_copies
from ..cleaning.files import find_place
from ..cleaning.inputs import Request
from ..cleaning.modality import MIN_INSTANCES, PARTS, Frame, Source, assemble
from ..cleaning.text import TEXT, TextEncoder
from ..data.seeds import mix_seeds
from ..errors import InvalidInput, first_line
from .model import Loaded

IGNORED = -100  # the label of a token that is not trained on
DEFAULT_TOKENS = 1024  # where the model takes more
_SHARE_HELD_OUT = 0.2  # of the data, for each part that has no file
_FEWEST_HELD_OUT = 8  # examples in the validation set, and in the test set
_LETTERS = 80  # of a response, as the label of an example
Tokens = dict[str, list[int]]  # input_ids and labels, as Trainer takes them


@dataclass(frozen=True)
class Example:
    """A conversation with its tokens."""

    chat: Chat
    tokens: Tokens
    texts: list[str]  # of each token

    @property
    def learned(self) -> list[int]:
        """The positions of the tokens that are trained on; the first token never is."""
        return [k for k, label in enumerate(self.tokens["labels"]) if k and label != IGNORED]


@dataclass(frozen=True)
class Examples:
    """All examples that can be trained on, the set that each is in, and the copies."""

    all: list[Example]
    parts: dict[str, np.ndarray]  # the sorted positions of each set
    copies: Copies
    counts: CopyCounts
    notes: list[str]

    def chats(self, part: str) -> list[Chat]:
        """The conversations of a set."""
        return [self.all[place].chat for place in self.parts[part]]

    @property
    def digest(self) -> str:
        """Changes with the texts, their tokens and the split."""
        lines = [f"{example.chat.row}\n{example.chat.text}" for example in self.all]
        lines += [str(example.tokens) for example in self.all]
        lines += [str(self.parts[part].tolist()) for part in PARTS]
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()

    def content(self, part: str) -> Frame:
        """The content of the examples of a set."""
        chats = self.chats(part)
        columns = {"text": [c.text for c in chats], "origin": [c.origin for c in chats]}
        return pandas.DataFrame(columns, dtype=object)

    def labels(self, part: str) -> list[str]:
        """The beginning of each response."""
        texts = [chat.response.strip() for chat in self.chats(part)]
        return [text[:_LETTERS] + (" …" if len(text) > _LETTERS else "") for text in texts]


def open_examples(
    request: Request,
    options: ChatOptions,
    loaded: Loaded,
    *,
    progress: bool,
) -> Examples:
    """Read, encode, look for copies, and split so that near duplicates are in one set.

    Arguments:
        request: The files.
        options: Which columns hold what, and how many tokens are used.
        loaded: The model and its tokenizer.
        progress: Whether to show progress bars.

    Raises:
        InvalidInput: a file cannot be used, or there are too few examples.
    """
    paths = {"train": request.data, "validation": request.validation, "test": request.test}
    chats = []
    origins = []  # the part that each file is for
    notes = []
    for part, path in paths.items():
        if path is not None:
            read, about = read_chats(
                find_place(path),
                prompt=options.prompt,
                response=options.response,
                source=options.source,
            )
            chats += read
            origins += [part] * len(read)
            notes += about
    examples, places, about = encode_chats(chats, loaded, options.max_tokens)
    notes = [*dict.fromkeys(notes), *about]
    kept = np.array(origins)[places]
    by_file = {part: np.flatnonzero(kept == part) for part in PARTS if paths[part] is not None}
    data = by_file["train"]
    if len(data) < MIN_INSTANCES:
        raise InvalidInput(
            f"There are {len(data)} examples to train on. dross splits them into training, "
            f"validation and test sets and needs at least {MIN_INSTANCES}; useful results require "
            "a few hundred."
        )
    copies, found = _find_copies([one.chat for one in examples], by_file, progress)
    parts = _split(by_file, copies, request.seed)
    for part in PARTS[1:]:
        if len(parts[part]) < _FEWEST_HELD_OUT:
            raise InvalidInput(
                f"The {part} set has {len(parts[part])} examples, but needs at least "
                f"{_FEWEST_HELD_OUT}. Provide more data, or a separate file with `{part}`."
            )
    copies = _move_copies(copies, data, parts)
    counts = replace(count_copies(copies, classes=False), natural=found.natural)
    return Examples(examples, parts, copies, counts, notes)


def _find_copies(
    chats: list[Chat], by_file: dict[str, np.ndarray], progress: bool
) -> tuple[Copies, CopyCounts]:
    """Copies among all conversations, by their words."""
    content = pandas.DataFrame({"text": [chat.text for chat in chats]}, dtype=object)
    labels = np.array([chat.response for chat in chats], dtype=object)
    rows = np.array([chat.row for chat in chats], dtype=np.int64)
    source = Source(TEXT, "response", content, labels, rows, chats[0].row_word)
    places = {part: by_file.get(part, np.zeros(0, dtype=np.int64)) for part in PARTS}
    try:
        encoder = TextEncoder(content)
    except InvalidInput:  # no word occurs twice: nothing is nearly the same
        return no_copies(), CopyCounts()
    vectors: Any = encoder(content)
    x = {part: vectors[ids] for part, ids in places.items()}
    return find_copies(assemble(source, places, x), progress=progress)


def _split(by_file: dict[str, np.ndarray], copies: Copies, seed: int) -> dict[str, np.ndarray]:
    """Sets with separate files as they are; the others are drawn, copies together."""
    data = by_file["train"]
    group = group_copies(copies, {"train": 0}, len(data))
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
    """The copies by the sets that their examples are in now; groups need a training example."""
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


def encode_chats(
    chats: Sequence[Chat], loaded: Loaded, max_tokens: int | None
) -> tuple[list[Example], list[int], list[str]]:
    """Write conversations with the model's chat template, and split them into tokens.

    Arguments:
        chats: The conversations.
        loaded: The model and its tokenizer.
        max_tokens: How many tokens of a text are used; by default 1,024. Never more than the
            model takes.

    Returns:
        The examples with something to train on, the position of each among the conversations, and
        notes for the user.

    Raises:
        InvalidInput: the template rejects a conversation, or does not output the assistant's
        messages.
    """
    limit = min(max_tokens or DEFAULT_TOKENS, loaded.context or (1 << 30))
    examples = []
    places = []
    cut = 0
    for place, chat in enumerate(chats):
        text, learned = _write(chat, loaded.tokenizer)
        encoding = loaded.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = encoding["input_ids"]
        spans = encoding["offset_mapping"]
        labels = [
            id if start < end and any(a <= start < b for a, b in learned) else IGNORED
            for id, (start, end) in zip(ids, spans, strict=True)
        ]
        cut += len(ids) > limit
        if all(label == IGNORED for label in labels[1:limit]):
            continue
        tokens = {"input_ids": ids[:limit], "labels": labels[:limit]}
        examples.append(Example(chat, tokens, _cut(text, [end for _, end in spans[:limit]])))
        places.append(place)
    note = f"{cut:,} of {len(chats):,} texts are longer than {limit:,} tokens and are truncated."
    if len(chats) > len(examples):
        note += (
            f" In {len(chats) - len(examples):,} of them, this removes the whole response: such texts "
            "are left out of everything except the export."
        )
    return examples, places, [note] if cut else []


def _write(chat: Chat, tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The text of a conversation, and the spans of the assistant's messages in it."""

    def render(messages: Sequence[dict[str, str]], *, prompt: bool = False) -> str:
        try:
            return tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompt
            )
        except Exception as error:  # a template raises what it likes
            raise InvalidInput(
                f"{chat.name}: the model's chat template rejects this conversation "
                f"({first_line(error)})."
            ) from None

    text = render(chat.messages)
    learned = []
    for k, message in enumerate(chat.messages):
        if message["role"] == "assistant":
            before = render(chat.messages[:k], prompt=True) if k else ""
            after = render(chat.messages[: k + 1])
            if text.startswith(before) and text.startswith(after):
                learned.append((len(before), len(after)))
    if not learned:  # a template that writes earlier turns differently: the last one is trained on
        start = text.rfind(chat.response)
        if start < 0:
            raise InvalidInput(
                f"{chat.name}: the chat template does not output the assistant's messages. Pass "
                "another template as `template`."
            )
        learned.append((start, len(text)))
    return text, learned


def _cut(text: str, ends: list[int]) -> list[str]:
    """The text of each token. A letter that several tokens make up belongs to the first."""
    pieces = []
    start = 0
    for end in ends:
        pieces.append(text[start : max(start, end)])
        start = max(start, end)
    return pieces
