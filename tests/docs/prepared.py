"""What the pages take for granted: people.csv, a cleaned project, and a small recorded run."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import dross


def write_people(path: Path, count: int = 240, seed: int = 0) -> None:
    """Made-up people, one in eight of whose labels is wrong."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, count),
            "hours": rng.normal(38, 9, count).round(),
            "education": rng.integers(6, 18, count),
            "job": rng.choice(["office", "trade", "care"], count),
        }
    )
    z = 0.06 * (frame["age"] - 48) + 0.08 * (frame["hours"] - 38) + 0.5 * (frame["education"] - 12)
    high = (z > 0) ^ (rng.random(count) < 0.125)
    frame.assign(income=np.where(high, "high", "low")).to_csv(path, index=False)


def pair_of_digits(first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some of scikit-learn's digits, as tensors."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[first:last] / 16, dtype=torch.float32)
    return x, torch.tensor(labels[first:last])


def prepare_names(folder: Path) -> dict[str, Any]:
    """The names that a page uses and does not define: data, a model, and a run of it."""
    (X, y), (X_val, y_val) = pair_of_digits(0, 160), pair_of_digits(160, 260)
    make = lambda: nn.Sequential(nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 10))
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"epochs": 2, "batch_size": 32, "progress": False, "overwrite": True}
    run = dross.train(
        model, (X, y), "cross_entropy", optimizer, path=folder / "runs" / "prepared", **options
    )
    model = make()
    return {
        "dross": dross,
        "torch": torch,
        "X": X,
        "y": y,
        "X_val": X_val,
        "y_val": y_val,
        "data": TensorDataset(X, y),
        "train_set": TensorDataset(X, y),
        "val_set": (X_val, y_val),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "run": run,
        "query": dross.mean_loss((X_val, y_val)),
    }


def names_of_clusters() -> dict[str, Any]:
    """For docs/scale.md: libraries that its short examples have imported."""
    import fsspec

    return {"fsspec": fsspec, "model": record_mine()}


def record_mine() -> nn.Module:
    """Record runs/mine in the current folder, as the page says that it is there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(*pair_of_digits(0, 160))
    options = {"epochs": 1, "batch_size": 32, "path": "runs/mine", "progress": False}
    dross.train(model, data, "cross_entropy", optimizer, **options)
    return model


def names_of_trainers() -> dict[str, Any]:
    """For docs/trainers.md: a model, data and options for each library."""
    import lightning
    import torch.nn.functional as F
    from accelerate import Accelerator
    from skorch import NeuralNetClassifier
    from torch.utils.data import DataLoader
    from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    X, y = pair_of_digits(0, 48)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 8}
    depth = {"num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 20}
    sentences = [{"input_ids": [k % 19 + 1, 2, 3], "labels": k % 2} for k in range(16)]
    network = Network()
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return {
        "F": F,
        "DataLoader": DataLoader,
        "lightning": lightning,
        "NeuralNetClassifier": NeuralNetClassifier,
        "accelerator": Accelerator(cpu=True),
        "model": BertForSequenceClassification(BertConfig(**sizes, **depth)),
        "args": TrainingArguments(
            output_dir="runs/out",
            num_train_epochs=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        "train": sentences,
        "validation": sentences[:8],
        "network": network,
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.1),
        "module": make_lightning_module(),
        "train_loader": DataLoader(TensorDataset(X, y), batch_size=16),
        "validation_loader": DataLoader(TensorDataset(X, y), batch_size=16),
        "options": dict.fromkeys(quiet, False) | {"max_epochs": 1, "accelerator": "cpu"},
        "Module": Network,
        "steps": 0,  # of a run that is continued: it was at its end
        "X": X.numpy(),
        "y": y.numpy(),
        "X_val": X.numpy(),
        "y_val": y.numpy(),
    }


class Network(nn.Module):
    """A small network that gives chances, as skorch wants them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10), nn.Softmax(-1))

    def forward(self, X):
        return self.layers(X)


def make_lightning_module() -> Any:
    """A module whose training_step returns the losses beside the loss."""
    import lightning

    class Digits(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = nn.Linear(64, 10)

        def training_step(self, batch, batch_idx):
            losses = nn.functional.cross_entropy(self.network(batch[0]), batch[1], reduction="none")
            return {"loss": losses.mean(), "losses": losses}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Digits()


PREPARED = {
    "docs/scale.md": names_of_clusters,
    "docs/trainers.md": names_of_trainers,
}
