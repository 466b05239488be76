"""A PyTorch loop.

Four more lines record your own training loop. Everything else stays the same: the sampler, the
schedule, the clipping, the optimizer.
"""

# %% The data
# The dataset has 600 handwritten digits for training, 60 of which have a wrong label, and 400 more
# for computing the query.
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dross

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
x, y = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order])
flipped = np.random.default_rng(1).choice(600, 60, replace=False)
y_train = y[:600].clone()
y_train[flipped] = (y_train[flipped] + 3) % 10
train_set, validation = TensorDataset(x[:600], y_train), (x[600:1000], y[600:1000])

# %% The loop
# `dross.data.indexed` adds the id of each instance to its batch. `recorder.step` computes one loss
# for each instance; you decide how they are combined. `recorder.clip_grad_norm_` clips as torch
# does, and records the clipping.
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8 * 19)
loader = DataLoader(dross.data.indexed(train_set), batch_size=32, shuffle=True)

recorder = dross.Recorder(
    model,
    "cross_entropy",
    optimizer,
    path="runs/mine",
    data=train_set,  # checks ids and inputs
)
for epoch in range(8):
    for ids, inputs, targets in loader:
        with recorder.step(ids, inputs, targets, epoch=epoch) as losses:
            losses.mean().backward()
            recorder.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
run = recorder.run(train_set)
print(run)

# %% Compute scores
# One backward pass over the run computes the score of every instance.
query = dross.mean_loss(validation)
scores = run.influence(query)
worst = scores.most_harmful(30)
print(f"validation loss {run.evaluate(query):.3f}")
print(f"{len(np.intersect1d(worst, flipped))} of the 30 most harmful have a wrong label")

# %% Find labels that look wrong
# A score estimates whether an instance harms the query. Use `margins` to find labels that look
# wrong: a model learns a wrong label late, so its logit stays below that of another class for most
# of the run. In longer runs of larger networks, margins find far more wrong labels than scores do.
suspects = np.argsort(run.margins())[:30]
print(f"{len(np.intersect1d(suspects, flipped))} of the 30 lowest margins have a wrong label")

# %% Verify the scores
# `verify` retrains without some of the instances, one at a time, and compares the true changes
# with the scores.
print(run.verify(scores).sentence)

# %% Retrain without the harmful instances
# The same run is repeated without these 30 instances, with the same initial weights and the same
# batches.
without = run.counterfactual([worst])
print(f"validation loss without these 30: {without.evaluate(query)[0]:.3f}")

# %% Later
# The tape is kept. You can open it again with a model of the same architecture. Scores can be
# saved, too.
again = dross.load("runs/mine", model, train_set, "cross_entropy")
assert np.array_equal(again.influence(query).values, scores.values)
print(scores.save("scores.safetensors"))
