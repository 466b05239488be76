"""What one call of `dross.clean_chats` asks for, beside the data and the folder."""

from dataclasses import dataclass

from .._checks import check_count
from ..cleaning.chats import ChatColumns
from ..errors import InvalidInput

_MAX_RUNS, _MAX_EPOCHS, _MAX_BATCH_SIZE = 100, 1000, 100_000
_MAX_TOKENS = 1 << 20
LORA_RATE, FULL_RATE = 2e-4, 2e-5


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
        return self.lr or (FULL_RATE if self.lora is None else LORA_RATE)
