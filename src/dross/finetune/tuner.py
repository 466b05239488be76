"""Fine-tune the model on some of the examples, again and again from the same start, and measure it.

Every fine-tuning takes the same number of steps, however many examples are left out: they
differ in the examples, not in the length of training.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from .._io import temporary_folder
from .._progress import Advance
from ..cleaning.chats import ChatOptions
from ..data.seeds import mix_seeds
from ..engine.device import manage_threads, set_threads_for
from ..errors import Diverged
from .examples import IGNORED, Examples, Tokens
from .model import Loaded

LOSS, ERROR = range(2)  # the measures of an example
_EPSILON = 1e-6  # of Adam: its update is a sign where gradients are near 0, and signs have no slope


class Tuner:
    """A model, and how it is fine-tuned.

    Arguments:
        loaded: The model. It is changed; every fine-tuning begins with the weights it has now.
        examples: What is trained on and what is measured; the number of training examples decides
            the number of steps.
        options: How to train.
        device: Where to train.
    """

    def __init__(
        self,
        loaded: Loaded,
        examples: Examples,
        options: ChatOptions,
        device: torch.device,
    ):
        self.loaded = loaded
        self.examples = [example.tokens for example in examples.all]
        self.parts = {part: ids.tolist() for part, ids in examples.parts.items()}
        self.options = options
        self.device = torch.device("cpu") if device.type == "mps" else device
        self.steps = math.ceil(len(self.parts["train"]) / options.batch_size) * options.epochs
        self.model = loaded.model.to(self.device)
        self._start = {name: p.detach().clone() for name, p in loaded.trained.items()}

    @property
    def parameters(self) -> int:
        """How many numbers fine-tuning updates."""
        return sum(p.numel() for p in self._start.values())

    def reset(self, seed: int) -> None:
        """Go back to the start; new adapters are drawn again."""
        with torch.no_grad():
            for name, parameter in self.loaded.trained.items():
                parameter.copy_(self._start[name])
        if self.options.lora is not None:
            torch.manual_seed(seed)
            for module in self.model.modules():
                if hasattr(module, "reset_lora_parameters"):
                    module.reset_lora_parameters("default", True)

    def train(self, ids: Sequence[int], seed: int, advance: Advance, steps: int = 0) -> None:
        """Fine-tune on these examples; `steps`: fewer than usual, to see how long one takes."""
        with self.trained(ids, seed, advance, steps=steps):
            pass

    @contextmanager
    def trained(
        self,
        ids: Sequence[int],
        seed: int,
        advance: Advance,
        *,
        tape: Path | None = None,
        steps: int = 0,
    ) -> Iterator[Any]:
        """Fine-tune; with a tape, the trainer answers about its run inside the block."""
        self.reset(seed)
        with self._threads(), temporary_folder() as place:
            arguments = {
                "args": self._arguments(str(place), seed, steps),
                "train_dataset": [self.examples[k] for k in ids],
                "data_collator": self.collate,
            }
            if tape is None:
                trainer = transformers.Trainer(self.model, **arguments)
            else:
                from ..integrations.transformers import RecordingTrainer

                trainer = RecordingTrainer(self.model, **arguments, path=tape, overwrite=True)
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.add_callback(_CountSteps(advance))
            trainer.train()
            if not all(torch.isfinite(p).all() for p in self.loaded.trained.values()):
                raise Diverged(
                    f"Fine-tuning diverged at learning rate {self.options.learning_rate:g}: the "
                    "weights are not finite. Pass a lower `lr`."
                )
            yield trainer

    def measure_without(self, removed: np.ndarray, seed: int, part: str) -> np.ndarray:
        """Fine-tune on the training set without some of it; `measure` of another set.

        removed: Positions in the training set, int64 [R].
        """
        kept = np.delete(self.parts["train"], removed).tolist()
        self.train(kept, seed, lambda steps: None)
        return self.measure(self.parts[part])

    def measure(self, ids: Sequence[int]) -> np.ndarray:
        """For each example the mean over the tokens that are trained on, float64 [2, examples].

        The loss, and the error: 1 - p(token).
        """
        size = self.options.batch_size
        measured = []
        self.model.eval()
        with self._threads(), torch.no_grad():
            for start in range(0, len(ids), size):
                batch = self.collate([self.examples[k] for k in ids[start : start + size]])
                batch = {name: value.to(self.device) for name, value in batch.items()}
                labels = batch.pop("labels")
                logits = self.model(**batch, use_cache=False).logits.float()
                measured.append(_measure(logits[:, :-1], labels[:, 1:]))
        return torch.cat(measured, dim=1).cpu().numpy()

    def collate(self, examples: Sequence[Tokens]) -> dict[str, Tensor]:
        """A batch, padded to its longest example."""
        longest = max(len(example["input_ids"]) for example in examples)
        fill = {"input_ids": self.loaded.tokenizer.pad_token_id, "labels": IGNORED}
        pad = lambda name, row: row + [fill[name]] * (longest - len(row))
        batch = {name: torch.tensor([pad(name, e[name]) for e in examples]) for name in fill}
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        batch["attention_mask"] = (torch.arange(longest)[None] < lengths[:, None]).long()
        return batch

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """Inside, a small model runs on one thread, and a larger one on all."""
        whole = sum(p.numel() for p in self.model.parameters())
        tokens = float(np.mean([len(example["input_ids"]) for example in self.examples]))
        with manage_threads():
            set_threads_for(2.0 * whole * tokens * self.options.batch_size)
            yield

    def _arguments(self, place: str, seed: int, steps: int) -> Any:
        on_gpu = self.device.type == "cuda"
        return transformers.TrainingArguments(
            output_dir=place,
            per_device_train_batch_size=self.options.batch_size,
            max_steps=steps or self.steps,
            learning_rate=self.options.learning_rate,
            lr_scheduler_type="linear",
            adam_epsilon=_EPSILON,
            seed=mix_seeds(seed, 0) % (1 << 31),
            bf16=on_gpu and torch.cuda.is_bf16_supported(),
            use_cpu=not on_gpu,
            dataloader_pin_memory=on_gpu,
            remove_unused_columns=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )


def _measure(logits: Tensor, labels: Tensor) -> Tensor:
    """logits [B, T, words] and labels [B, T] as `Tuner.measure` says, [2, B]."""
    flat = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    losses = flat.view(labels.shape).double()
    learned = labels != IGNORED
    measures = (losses, 1 - torch.exp(-losses))
    return torch.stack([(each * learned).sum(1) / learned.sum(1) for each in measures])


class _CountSteps(transformers.TrainerCallback):
    """Moves a progress bar."""

    def __init__(self, advance: Advance):
        self.advance = advance

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """One step is done."""
        self.advance(1)
