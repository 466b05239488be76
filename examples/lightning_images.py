"""Train an image classifier with Lightning, and find the images that harm it.

    pip install '.[lightning]'
    python examples/lightning_images.py

There are two changes: a callback is added, and training_step also returns the loss of each image.
One in ten of the handwritten digits has a wrong label. It takes less than half a minute on two
cores and prints

    <Run of Digits with AdamW on 600 instances: 190 steps>
    validation loss 0.35
    27 of the 30 most harmful images have a wrong label (10 % of all have)
"""

import logging
import tempfile
import warnings

import lightning
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dross.integrations.lightning import DrossCallback


# %% The module
# In addition to the loss, `training_step` returns the loss of each image.
class Digits(lightning.LightningModule):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 10),
        )

    def training_step(self, batch, batch_idx):
        """The loss, and beside it the loss of each image."""
        images, labels = batch
        losses = F.cross_entropy(self.network(images), labels, reduction="none")
        self.log("train_loss", losses.mean())
        return {"loss": losses.mean(), "losses": losses}

    def configure_optimizers(self):
        """AdamW with a rate that falls to zero."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 190)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


# %% The data
def load(wrong: int = 60) -> tuple[DataLoader, DataLoader, np.ndarray]:
    """600 images to learn from, 400 to be asked about, and which labels are wrong."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = torch.tensor(images[order] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(labels[order])
    flipped = np.random.default_rng(1).choice(600, wrong, replace=False)
    y_train = y[:600].clone()
    y_train[flipped] = (y_train[flipped] + 3) % 10
    train = DataLoader(TensorDataset(x[:600], y_train), batch_size=32, shuffle=True)
    validation = DataLoader(TensorDataset(x[600:1000], y[600:1000]), batch_size=200)
    return train, validation, flipped


# %% Train, record and query
# Adding the callback is the second change. `loss_of` creates a query from a loader.
def main() -> None:
    """Train, record and ask."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)  # a model as small as this one is quicker so
    train, validation, flipped = load()
    torch.manual_seed(0)
    callback = DrossCallback(path=tempfile.mkdtemp() + "/run")
    trainer = lightning.Trainer(
        max_epochs=10,
        accelerator="cpu",
        gradient_clip_val=1.0,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(), train)

    run, query = callback.recorded_run(), callback.loss_of(validation)
    print(run)
    print(f"validation loss {run.evaluate(query):.2f}")
    worst = run.influence(query).most_harmful(30)
    hits = len(np.intersect1d(worst, flipped))
    print(f"{hits} of the 30 most harmful images have a wrong label (10 % of all have)")


if __name__ == "__main__":
    main()
