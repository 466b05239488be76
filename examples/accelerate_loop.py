"""Your own loop with accelerate, recorded: which wrong labels make the model worse?

    pip install . accelerate
    python examples/accelerate_loop.py

Four lines are dross's; the rest is a loop as accelerate's documentation writes it, with gradient
accumulation, clipping and a schedule. One label in ten of the handwritten digits is wrong. It takes
a few seconds on two cores and prints

    <Run of Sequential with AdamW on 600 instances: 114 steps>
    validation loss 0.65
    27 of the 30 most harmful examples have a wrong label (10 % of all have)
"""

import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dross


def digits(wrong: int = 60) -> tuple[TensorDataset, TensorDataset, np.ndarray]:
    """600 images to learn from, 400 to be asked about, and which labels are wrong."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order])
    flipped = np.random.default_rng(1).choice(600, wrong, replace=False)
    y_train = y[:600].clone()
    y_train[flipped] = (y_train[flipped] + 3) % 10
    return TensorDataset(x[:600], y_train), TensorDataset(x[600:1000], y[600:1000]), flipped


def main() -> None:
    """Train, record and ask."""
    torch.set_num_threads(1)  # a model as small as this one is quicker so
    train_set, validation, flipped = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(
        dross.data.indexed(train_set), batch_size=16, shuffle=True
    )  # 1: (ids, x, y)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6 * 19)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    tape = tempfile.mkdtemp() + "/run"
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tape, data=train_set)  # 2
    for epoch in range(6):
        for ids, x, y in loader:
            with accelerator.accumulate(model), recorder.observe(ids, x, y, epoch=epoch) as watch:
                loss = F.cross_entropy(model(x), y)
                watch(loss)  # 3
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    with recorder.clipping(max_norm=1.0):  # 4
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

    run, query = recorder.run(), dross.mean_loss(validation)
    print(run)
    print(f"validation loss {run.evaluate(query):.2f}")
    worst = run.influence(query).most_harmful(30)
    hits = len(np.intersect1d(worst, flipped))
    print(f"{hits} of the 30 most harmful examples have a wrong label (10 % of all have)")


if __name__ == "__main__":
    main()
