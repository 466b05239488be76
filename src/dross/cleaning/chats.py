"""Conversations: rows with `messages`, or with a prompt and a response."""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet

from .._checks import check_count, check_name
from ..errors import InvalidInput, first_line
from .files import JSON_LINES, Place, check_kind, read_bytes
from .formats import Reading, find_format, is_parquet, parse_json_lines
from .modality import Frame, Modality, RowEdits

CHATS = Modality("chats", has_text=True, has_tokens=True)
JSONL = (".jsonl", ".ndjson")
MESSAGES = "messages"
_PROMPTS = ("prompt", "instruction", "question", "input")
_RESPONSES = ("response", "output", "answer", "completion")
_MORE = "input"  # beside an `instruction`: what it is about
_SOURCE = "source"
_MAX_RUNS = 100
_MAX_EPOCHS = 1000
_MAX_BATCH_SIZE = 100_000
_MAX_TOKENS = 1 << 20
_LORA_RATE = 2e-4
_FULL_RATE = 2e-5
Message = dict[str, str]  # role and content


@dataclass(frozen=True)
class Chat:
    """One example: a conversation that a model is trained to continue as the assistant does."""

    row: int  # its number in the file
    row_word: str  # what the number counts: line or row
    messages: tuple[Message, ...]
    origin: str = ""  # where the user got it from: the cell of the column `source`

    @property
    def name(self) -> str:
        """Where it is in the file, for people: "line 17"."""
        return f"{self.row_word} {self.row}"

    @property
    def text(self) -> str:
        """All messages, each with its role."""
        return "\n\n".join(f"{m['role']}: {m['content']}" for m in self.messages)

    @property
    def response(self) -> str:
        """The last message of the assistant."""
        responses = [m["content"] for m in self.messages if m["role"] == "assistant"]
        return responses[-1] if responses else ""


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
        why = "each one adds passes over all examples"
        check_count(self.repeats, "`repeats`", at_most=_MAX_RUNS, because=why)
        check_count(self.epochs, "`epochs`", at_most=_MAX_EPOCHS, because=why)
        check_count(
            self.batch_size,
            "`batch_size`",
            at_most=_MAX_BATCH_SIZE,
            because="each step processes one batch",
        )
        for name in ("lora", "last_layers", "max_tokens"):
            value = getattr(self, name)
            if value is not None:
                check_count(
                    value, f"`{name}`", at_most=_MAX_TOKENS, because="no model has that many"
                )
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise InvalidInput(f"`lr` must be above 0, not {self.lr}.")

    @property
    def learning_rate(self) -> float:
        """As passed, or what is usual for adapters and for whole models."""
        return self.lr or (_FULL_RATE if self.lora is None else _LORA_RATE)


@dataclass(frozen=True)
class _Columns:
    """Which column contains what; no prompt and response: `messages`."""

    prompt: str | None
    response: str | None
    source: str | None


def suggest_chats(path: Place, names: list[str]) -> str:
    """The command to use if the column names of a table are those of chats; otherwise ""."""
    pairs = set(_PROMPTS) & set(names) and set(_RESPONSES) & set(names)
    if MESSAGES not in names and not pairs:
        return ""
    return f" If these are chats: dross clean-chats {path} --model PATH_OR_NAME."


def read_chats(
    path: Place,
    *,
    prompt: str | None = None,
    response: str | None = None,
    source: str | None = None,
) -> tuple[list[Chat], list[str]]:
    """Read a conversation file.

    Arguments:
        path: A .jsonl, .ndjson or .parquet file.
        prompt, response, source: Its columns, guessed by default.

    Returns:
        The rows that have a response; and notes for the user, on what was guessed or left out.

    Raises:
        InvalidInput: the file cannot be read, a row is no conversation, or columns are not there.
    """
    rows = list(_read_rows(path))
    if not rows:
        raise InvalidInput(f"{path} has no rows.")
    names = list(dict.fromkeys(key for _, row in rows for key in row))
    columns = _find_columns(path, names, _Columns(prompt, response, source))
    word = "row" if is_parquet(path) else "line"
    read = [_read_row(path, word, number, row, columns) for number, row in rows]
    chats = [chat for chat in read if chat.response.strip()]
    notes = []
    if columns.prompt is not None:
        notes.append(f"Prompts are in '{columns.prompt}', responses in '{columns.response}'.")
    if len(chats) < len(read):
        first = next(chat for chat in read if not chat.response.strip())
        notes.append(
            f"{len(read) - len(chats):,} of {len(read):,} rows have no response (the first is "
            f"{first.name}). They are left out of everything except the export."
        )
    return chats, notes


def _read_rows(path: Place) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number, row) of all rows that are not blank."""
    if is_parquet(path):
        yield from enumerate(_read_parquet(path), 1)
        return
    if path.suffix.lower() not in JSONL:
        raise InvalidInput(
            f"{path.name} is not a conversation file: its name must end in .jsonl, .ndjson or "
            ".parquet."
        )
    raw = read_bytes(path)
    check_kind(raw, path, JSON_LINES)
    yield from parse_json_lines(raw, path)


def _read_parquet(path: Place) -> list[Mapping[str, Any]]:
    try:
        return parquet.ParquetFile(io.BytesIO(read_bytes(path))).read().to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read as Parquet ({first_line(error)}).") from None


def _find_columns(path: Place, names: list[str], chosen: _Columns) -> _Columns:
    """The columns that the user chose, and guesses for the others."""
    for name in (chosen.prompt, chosen.response, chosen.source):
        if name is not None:
            check_name("column", name, names)
    source = chosen.source or (_SOURCE if _SOURCE in names else None)
    if chosen.prompt is None and chosen.response is None and MESSAGES in names:
        return _Columns(None, None, source)
    prompt = chosen.prompt or next((name for name in _PROMPTS if name in names), None)
    response = chosen.response or next((name for name in _RESPONSES if name in names), None)
    if prompt is None or response is None:
        lacking = "prompts" if prompt is None else "responses"
        raise InvalidInput(
            f"{path} has neither a '{MESSAGES}' column nor one that appears to contain the "
            f"{lacking}. Its columns are: {', '.join(names) or 'none'}. Specify the columns with "
            "`prompt` and `response`."
        )
    return _Columns(prompt, response, source)


def _read_row(
    path: Place, word: str, number: int, row: Mapping[str, Any], columns: _Columns
) -> Chat:
    where = f"{path}, {word} {number}"
    if columns.prompt is None:
        messages = _as_messages(row.get(MESSAGES), where, "user")
    else:
        prompt = _as_messages(row.get(columns.prompt), where, "user")
        more = row.get(_MORE) if columns.prompt == "instruction" else None
        if isinstance(more, str) and more.strip() and prompt:
            prompt[-1] = prompt[-1] | {"content": f"{prompt[-1]['content']}\n\n{more}"}
        messages = prompt + _as_messages(row.get(str(columns.response)), where, "assistant")
    origin = row.get(columns.source) if columns.source else None
    return Chat(number, word, tuple(messages), "" if origin is None else str(origin))


class _Message(msgspec.Struct):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None


def _as_messages(value: Any, where: str, role: str) -> list[Message]:
    """A text as a message of `role`, a list of messages unchanged; nothing for a missing cell."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    try:
        messages = msgspec.convert(value, list[_Message])
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"{where}: {error}. Pass a string, or a list of messages, each an object with 'role' "
            "(system, user, assistant or tool) and 'content'. dross fine-tunes on text only; images "
            "and other content types are not supported."
        ) from None
    return [{"role": one.role, "content": one.content or ""} for one in messages]


def check_same_format(source: Place, to: Path) -> None:
    """Refuse, with InvalidInput, a copy in another format than the input's."""
    if is_parquet(source):
        same, ends = is_parquet(to), "its name must end in .parquet or .pq"
    else:
        same, ends = to.suffix.lower() in JSONL, f"its name must end in {' or '.join(JSONL)}"
    if not same:
        raise InvalidInput(f"{to.name} must be the same type of file as {source.name}: {ends}.")


def copy_chats(raw: bytes, source: Place, edits: RowEdits) -> tuple[bytes, int]:
    """The bytes of the copy, and how many rows it has.

    Lines of JSON are copied byte for byte; rows of Parquet with their types and metadata.

    Arguments:
        raw: The content of a file that `read_chats` has read.
        source: The path of the file.
        edits: Which rows to leave out.
    """
    if is_parquet(source):
        table = parquet.ParquetFile(io.BytesIO(raw)).read()
        rows = np.array([k not in edits.removed for k in range(1, len(table) + 1)], dtype=bool)
        sink = io.BytesIO()
        parquet.write_table(table.filter(arrow.array(rows)), sink)
        return sink.getvalue(), int(rows.sum())
    lines = [line for k, line in enumerate(raw.split(b"\n"), 1) if k not in edits.removed]
    return b"\n".join(lines), sum(bool(line.strip()) for line in lines)


def load_chats(raw: bytes, source: Place) -> list[dict[str, Any]] | Frame:
    """The rows of a copy as Python objects: lines of JSON as dicts, Parquet as a frame."""
    if is_parquet(source):
        return find_format(source).load(raw, Reading())
    return [json.loads(line) for line in raw.split(b"\n") if line.strip()]
