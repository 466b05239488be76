"""Which `dross clean` is about chats, and which of its options are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..cleaning.chats import is_chat_file
from ..cleaning.tables import PARQUET
from ..cleaning.training import MODELS
from ..errors import InvalidInput

_OF_CHATS = (
    "prompt",
    "response",
    "source",
    "template",
    "lora",
    "last_layers",
    "max_tokens",
    "force",
)
_OF_BOTH = ("out", "validation", "test", "lr", "seed", "device", "overwrite")
_WITH_DEFAULTS = ("repeats", "epochs", "batch_size")
_OF_OUTPUT = ("quiet", "as_json")
_OF_OTHERS = (
    "label",
    "text",
    "images",
    "task",
    "column",
    "separator",
    "na",
    "features",
    "backbone",
    "validation_is_clean",
)


def is_about_chats(given: Mapping[str, Any]) -> bool:
    """Whether the data are conversations: JSONL always, Parquet with a language model."""
    path, model = Path(given["data"]), given["model"]
    if is_chat_file(path):
        return True
    names_model = model is not None and model not in MODELS and ":" not in model
    return path.suffix.lower() in PARQUET and given["label"] is None and names_model


def pick_chat_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """What `dross.clean_chats` is called with.

    Raises:
        InvalidInput: no model is named, or an option is about other data.
    """
    odd = [name for name in _OF_OTHERS if given[name]]
    if odd:
        raise InvalidInput(
            f"{_flag(odd[0])} is not for chats, and {given['data']} holds chats. Leave it out."
        )
    if given["model"] is None:
        raise InvalidInput(
            f"{given['data']} holds chats. Say which model to fine-tune on them: "
            "--model PATH_OR_NAME."
        )
    chosen = {name: given[name] for name in ("data", "model", *_OF_CHATS, *_OF_BOTH)}
    return chosen | {name: given[name] for name in _WITH_DEFAULTS if given[name] is not None}


def without_chat_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is left for `dross.clean`, if the data are not chats.

    Raises:
        InvalidInput: an option is about chats.
    """
    odd = [name for name in _OF_CHATS if given[name]]
    if odd:
        raise InvalidInput(
            f"{_flag(odd[0])} is for chats: a .jsonl file, or a .parquet file with --model "
            "PATH_OR_NAME and without --label."
        )
    return {name: value for name, value in given.items() if name not in (*_OF_CHATS, *_OF_OUTPUT)}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
