"""What recording through each trainer costs: the same trainer with and without it.

    python -m benchmarks.trainers [--rounds 5] [--epochs 10] [--keep default]

Both train the same model on the same data, in turns; the ratio is that of the fastest of each. The
models are as large as a laptop trains in seconds: what a step costs apart from its arithmetic
weighs more here than in real fine-tuning. What is done once, at the first step, costs as much as
some ten steps: --epochs 40 shows what is left of it.
"""

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dross

from .tables import make_parser, print_head, print_row

Train = Callable[[Path | None], object]  # with a tape, or without


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Random images with labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 1, 28, 28, generator=generator)
    return x, torch.randint(10, (1024,), generator=generator)


def network() -> nn.Sequential:
    """A convolutional network."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
    head = [nn.Flatten(), nn.Linear(32 * 49, 10)]
    pool = nn.MaxPool2d(2)
    return nn.Sequential(first, nn.ReLU(), pool, second, nn.ReLU(), nn.MaxPool2d(2), *head)


def make_transformers(keep: object, epochs: int) -> Train:
    """A language model of 1.9 million parameters, sentences of 16 to 64 words."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from dross.integrations.transformers import RecordingTrainer

    random = np.random.default_rng(0)
    lengths = random.integers(16, 65, 128)
    sentences = [{"input_ids": random.integers(1, 2000, n).tolist()} for n in lengths]

    def pad(items: list[dict]) -> dict:
        longest = max(len(item["input_ids"]) for item in items)
        rows = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in items]
        ids = torch.tensor(rows)
        labels = torch.where(ids > 0, ids, -100)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    def train(tape: Path | None) -> object:
        torch.manual_seed(0)
        sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=2000, **sizes, **heads))
        args = TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_train_epochs=epochs,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
        )
        given = {"train_dataset": sentences, "data_collator": pad}
        if tape is None:
            return Trainer(model, args, **given).train()
        return RecordingTrainer(model, args, **given, path=tape, keep=keep).train()

    return train


def make_lightning(keep: object, epochs: int) -> Train:
    """A convolutional network with automatic optimization."""
    import lightning

    from dross.integrations.lightning import DrossCallback

    x, y = images()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch, batch_idx):
            losses = F.cross_entropy(self.network(batch[0]), batch[1], reduction="none")
            return {"loss": losses.mean(), "losses": losses}

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def train(tape: Path | None) -> object:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        callbacks = [] if tape is None else [DrossCallback(path=tape, keep=keep)]
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        return trainer.fit(Module(), DataLoader(TensorDataset(x, y), 64, shuffle=True))

    return train


def make_accelerate(keep: object, epochs: int) -> Train:
    """A convolutional network in a loop of one's own."""
    from accelerate import Accelerator

    x, y = images()

    def train(tape: Path | None) -> object:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        loader = DataLoader(dross.data.indexed(TensorDataset(x, y)), 64, shuffle=True)
        accelerator = Accelerator(cpu=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        recorder = None
        if tape is not None:
            given = {"data": (x, y), "keep": keep, "expected_steps": 16 * epochs}
            recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tape, **given)
        for _ in range(epochs):
            for ids, images, labels in loader:
                if recorder is None:
                    accelerator.backward(F.cross_entropy(model(images), labels))
                else:
                    with recorder.observe(ids, images, labels) as watch:
                        loss = F.cross_entropy(model(images), labels)
                        watch(loss)
                        accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        return recorder and recorder.close()

    return train


def make_skorch(keep: object, epochs: int) -> Train:
    """A convolutional network as a scikit-learn estimator."""
    from skorch import NeuralNetClassifier

    from dross.integrations.skorch import DrossCallback

    x, y = images()

    def train(tape: Path | None) -> object:
        callbacks = [] if tape is None else [("dross", DrossCallback(path=tape, keep=keep))]
        options = {"criterion": nn.CrossEntropyLoss, "optimizer": torch.optim.AdamW, "lr": 1e-3}
        shown = {"batch_size": 64, "max_epochs": epochs, "train_split": None, "verbose": 0}
        return NeuralNetClassifier(network(), callbacks=callbacks, **options, **shown).fit(x, y)

    return train


MAKERS = {
    "transformers Trainer": make_transformers,
    "Lightning": make_lightning,
    "accelerate loop": make_accelerate,
    "skorch": make_skorch,
}
KEEPS = {"default": None, "checkpoints": dross.tape.Checkpoints(), "every": dross.tape.EveryStep()}


def measure(train: Train, rounds: int) -> tuple[float, float]:
    """The fastest run without and with a tape, in seconds; one of each warms up."""
    plain, recorded = [], []
    for _ in range(rounds + 1):
        for seconds, tape in ((plain, None), (recorded, Path(tempfile.mkdtemp()) / "tape")):
            start = time.perf_counter()
            train(tape)
            seconds.append(time.perf_counter() - start)
    return min(plain[1:]), min(recorded[1:])


def read_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--keep", choices=list(KEEPS), default="default")
    parser.add_argument("--only", choices=list(MAKERS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def main() -> None:
    """Print one row per trainer."""
    options = read_options()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    print_head("trainer", "plain, s", "recorded, s", "ratio")
    for name, make in MAKERS.items():
        if options.only in (None, name):
            train = make(KEEPS[options.keep], options.epochs)
            plain, recorded = measure(train, options.rounds)
            print_row(name, f"{plain:.2f}", f"{recorded:.2f}", f"{recorded / plain:.2f}")


if __name__ == "__main__":
    main()
