"""Conversations as tokens: what the model reads, and which tokens it learns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..cleaning.chats import Chat
from ..errors import InvalidInput, first_line
from .model import Loaded

IGNORED = -100  # the label of a token that is not learned
DEFAULT_TOKENS = 1024  # where the model takes more


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
    examples, texts, places, cut = [], [], [], 0
    for place, chat in enumerate(chats):
        text, learned = _write(chat, loaded.tokenizer)
        ids, ends, labels = _tokenize(text, learned, loaded.tokenizer)
        cut += len(ids) > limit
        if all(label == IGNORED for label in labels[1:limit]):
            continue
        examples.append({"input_ids": ids[:limit], "labels": labels[:limit]})
        texts.append(_cut(text, ends[:limit]))
        places.append(place)
    return Encoded(examples, texts, places, _note(len(chats), len(places), cut, limit))


def _note(count: int, left: int, cut: int, limit: int) -> list[str]:
    if not cut:
        return []
    note = f"{cut:,} of {count:,} texts are longer than {limit:,} tokens and are cut there."
    if count > left:
        note += (
            f" In {count - left:,} of them, nothing of the answer is left: they are left out of "
            "everything but the export."
        )
    return [note]


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


def _tokenize(
    text: str, learned: list[tuple[int, int]], tokenizer: Any
) -> tuple[list[int], list[int], list[int]]:
    """The tokens of a text, where each ends, and their labels."""
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, spans = found["input_ids"], found["offset_mapping"]
    is_learnt = lambda start, end: any(a <= start < b for a, b in learned) and start < end
    labels = [id if is_learnt(*span) else IGNORED for id, span in zip(ids, spans)]
    return ids, [end for _, end in spans], labels


def _cut(text: str, ends: list[int]) -> list[str]:
    """The text of each token. A letter that several tokens make up belongs to the first."""
    pieces, start = [], 0
    for end in ends:
        pieces.append(text[start : max(start, end)])
        start = max(start, end)
    return pieces
