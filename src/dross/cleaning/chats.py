"""Conversations: rows with `messages`, or with a prompt and a response."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet

from .._checks import check_count, check_name
from ..errors import InvalidInput, first_line
from .modality import Modality, RowEdits
from .tables import PARQUET, read_bytes

CHATS = Modality("chats", has_text=True, has_tokens=True)
JSONL = (".jsonl", ".ndjson")
MESSAGES = "messages"
_PROMPTS = ("prompt", "instruction", "question", "input")
_RESPONSES = ("response", "output", "answer", "completion")
_MORE = "input"  # beside an `instruction`: what it is about
_SOURCE = "source"
_ROLES = ("system", "user", "assistant", "tool")
_MAX_RUNS = 100
_MAX_EPOCHS = 1000
_MAX_BATCH_SIZE = 100_000
_MAX_TOKENS = 1 << 20
_LORA_RATE = 2e-4
_FULL_RATE = 2e-5
Message = dict[str, str]  # role and content


@dataclass(frozen=True)
class Chat:
    """One example: a conversation whose assistant's words are learnt."""

    row: int  # the number of its line or row in the file
    messages: tuple[Message, ...]
    origin: str = ""  # where the user got it from: the cell of the column `source`

    @property
    def text(self) -> str:
        """Everything that is said, with who says it."""
        return "\n\n".join(f"{m['role']}: {m['content']}" for m in self.messages)

    @property
    def response(self) -> str:
        """The last message of the assistant."""
        said = [m["content"] for m in self.messages if m["role"] == "assistant"]
        return said[-1] if said else ""


@dataclass(frozen=True)
class ChatColumns:
    """Which column holds what; None: to be guessed."""

    prompt: str | None = None
    response: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class ChatOptions:
    """How to fine-tune and score. With the data and the model, it decides the outcome."""

    model: str
    prompt: str | None = None
    response: str | None = None
    source: str | None = None
    template: str | None = None
    lora: int | None = None
    last_layers: int | None = None
    max_tokens: int | None = None
    repeats: int = 2
    lr: float | None = None
    epochs: int = 3
    batch_size: int = 8

    def __post_init__(self):
        why = "each goes through all examples again"
        check_count(self.repeats, "repeats", at_most=_MAX_RUNS, because=why)
        check_count(self.epochs, "epochs", at_most=_MAX_EPOCHS, because=why)
        check_count(
            self.batch_size, "batch_size", at_most=_MAX_BATCH_SIZE, because="a batch is one step"
        )
        for name in ("lora", "last_layers", "max_tokens"):
            value = getattr(self, name)
            if value is not None:
                check_count(value, name, at_most=_MAX_TOKENS, because="no model has that many")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise InvalidInput(f"lr must be above 0, not {self.lr}.")

    @property
    def columns(self) -> ChatColumns:
        """Which columns hold what."""
        return ChatColumns(self.prompt, self.response, self.source)

    @property
    def learning_rate(self) -> float:
        """As given, or what is usual for adapters and for whole models."""
        return self.lr or (_FULL_RATE if self.lora is None else _LORA_RATE)


@dataclass(frozen=True)
class ChatFile:
    """The usable rows of a file."""

    chats: list[Chat]
    row_word: str  # what the numbers of its rows count: line or row
    columns: ChatColumns  # as given, or as guessed; no prompt and response: `messages`
    notes: list[str] = field(default_factory=list)  # for the user: what was guessed or left out


def is_chat_file(path: Path) -> bool:
    """Whether the name of a file says that it holds conversations, whatever else is asked for."""
    return path.suffix.lower() in JSONL


def read_chats(path: Path, columns: ChatColumns) -> ChatFile:
    """Read a file of conversations.

    Arguments:
        path: A .jsonl, .ndjson or .parquet file.
        columns: What the user says about its columns.

    Raises:
        InvalidInput: the file cannot be read, a row is no conversation, or columns are not there.
    """
    rows = list(_read_rows(path))
    if not rows:
        raise InvalidInput(f"{path} has no rows.")
    known = _find_columns(path, {key: None for _, row in rows for key in row}, columns)
    word = "row" if path.suffix.lower() in PARQUET else "line"
    chats, empty = [], []
    for number, row in rows:
        chat = _read_row(f"{path}, {word} {number}", number, row, known)
        (chats if chat.response.strip() else empty).append(chat)
    notes = []
    if known.prompt is not None:
        notes.append(f"Prompts are in '{known.prompt}', responses in '{known.response}'.")
    if empty:
        notes.append(
            f"{len(empty):,} of {len(rows):,} rows have no response, the first in {word} {empty[0].row}: "
            "they are left out of everything but the export."
        )
    return ChatFile(chats, word, known, notes)


def _read_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number, row) of all rows that are not blank."""
    suffix = path.suffix.lower()
    if suffix in PARQUET:
        yield from enumerate(_read_parquet(path), 1)
        return
    if suffix not in JSONL:
        raise InvalidInput(
            f"{path.name} is not a file of conversations: its name must end with .jsonl, .ndjson "
            "or .parquet."
        )
    for number, line in enumerate(read_bytes(path).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                f"{path}, line {number} is not JSON ({first_line(error)})."
            ) from None
        if not isinstance(row, dict):
            raise InvalidInput(f"{path}, line {number} is not a JSON object, as every row must be.")
        yield number, row


def _read_parquet(path: Path) -> list[Mapping[str, Any]]:
    try:
        return parquet.ParquetFile(io.BytesIO(read_bytes(path))).read().to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read as Parquet ({first_line(error)}).") from None


def _find_columns(path: Path, names: Mapping[str, None], given: ChatColumns) -> ChatColumns:
    for name in (given.prompt, given.response, given.source):
        if name is not None:
            check_name("column", name, list(names))
    source = given.source or (_SOURCE if _SOURCE in names else None)
    if given.prompt is None and given.response is None and MESSAGES in names:
        return ChatColumns(None, None, source)
    prompt = given.prompt or next((name for name in _PROMPTS if name in names), None)
    response = given.response or next((name for name in _RESPONSES if name in names), None)
    if prompt is None or response is None:
        lacking = "prompts" if prompt is None else "responses"
        raise InvalidInput(
            f"{path} has the columns {', '.join(names) or 'none'}: none of them is '{MESSAGES}', "
            f"and none looks like the {lacking}. Name them: `prompt` and `response`."
        )
    return ChatColumns(prompt, response, source)


def _read_row(where: str, number: int, row: Mapping[str, Any], columns: ChatColumns) -> Chat:
    if columns.prompt is None:
        messages = _as_messages(row.get(MESSAGES), where, "user")
    else:
        prompt = _as_messages(row.get(columns.prompt), where, "user")
        more = row.get(_MORE) if columns.prompt == "instruction" else None
        if isinstance(more, str) and more.strip() and prompt:
            prompt[-1] = prompt[-1] | {"content": f"{prompt[-1]['content']}\n\n{more}"}
        messages = prompt + _as_messages(row.get(str(columns.response)), where, "assistant")
    origin = row.get(columns.source) if columns.source else None
    return Chat(number, tuple(messages), "" if origin is None else str(origin))


def _as_messages(value: Any, where: str, role: str) -> list[Message]:
    """A text said by `role`, or a list of messages as they are; nothing for a missing cell."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, Sequence):
        raise InvalidInput(
            f"{where}: a value of the type {type(value).__name__} is neither a text nor messages."
        )
    return [_as_message(message, where) for message in value]


def _as_message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
        raise InvalidInput(f"{where}: a message must be an object with 'role' and 'content'.")
    role, content = message["role"], message["content"]
    if role not in _ROLES:
        raise InvalidInput(f"{where}: {role!r} is not a role. Use one of {', '.join(_ROLES)}.")
    if content is not None and not isinstance(content, str):
        raise InvalidInput(
            f"{where}: the content of a message has the type {type(content).__name__}. dross "
            "fine-tunes on text alone; pictures and other parts are not supported."
        )
    return {"role": role, "content": content or ""}


def check_same_format(source: Path, to: Path) -> None:
    """Refuse, with InvalidInput, a copy in another format than the input's."""
    wanted = JSONL if source.suffix.lower() in JSONL else PARQUET
    if to.suffix.lower() not in wanted:
        raise InvalidInput(
            f"{to.name} must be a file like {source.name}: end its name with {' or '.join(wanted)}."
        )


def copy_chats(raw: bytes, source: Path, edits: RowEdits) -> tuple[bytes, int]:
    """The bytes of the copy, and how many rows it has.

    Lines of JSON are copied byte for byte; rows of Parquet with their types and metadata.

    Arguments:
        raw: The content of a file that `read_chats` has read.
        source: The path of the file.
        edits: Which rows to leave out.
    """
    if source.suffix.lower() in PARQUET:
        table = parquet.ParquetFile(io.BytesIO(raw)).read()
        rows = np.array([k not in edits.removed for k in range(1, len(table) + 1)], dtype=bool)
        sink = io.BytesIO()
        parquet.write_table(table.filter(arrow.array(rows)), sink)
        return sink.getvalue(), int(rows.sum())
    lines = [line for k, line in enumerate(raw.split(b"\n"), 1) if k not in edits.removed]
    return b"\n".join(lines), sum(bool(line.strip()) for line in lines)
