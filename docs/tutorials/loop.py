"""A PyTorch loop.

Four lines make a loop of your own into a recorded one. Everything else stays: the sampler, the
schedule, the clip, the optimizer.
"""

# %% The data
# 600 handwritten digits to learn from, 60 of them with a wrong label, and 400 to be asked about.
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
# `dross.data.indexed` adds the number of each instance to its batch. `recorder.step` computes one loss
# for each instance; what you do with them is yours. `recorder.clip_grad_norm_` clips as torch
# does, and notes it.
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8 * 19)
loader = DataLoader(dross.data.indexed(train_set), batch_size=32, shuffle=True)

recorder = dross.Recorder(model, "cross_entropy", optimizer, path="runs/mine")
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

# %% Ask
# One sweep backwards gives every instance its score.
query = dross.mean_loss(validation)
scores = run.influence(query)
worst = scores.most_harmful(30)
print(f"validation loss {run.evaluate(query):.3f}")
print(f"{len(np.intersect1d(worst, flipped))} of the 30 most harmful have a wrong label")

# %% Is it true?
# `verify` trains again without some of them, one at a time, and compares.
print(run.verify(scores).sentence)

# %% What would the model be without them?
# The same run again without those 30: the same initial weights, the same batches.
without = run.counterfactual([worst])
print(f"validation loss without these 30: {without.evaluate(query)[0]:.3f}")

# %% Later
# The tape stays. Open it again with a model of the same shape; scores can be saved, too.
again = dross.load("runs/mine", model, train_set, "cross_entropy")
assert np.array_equal(again.influence(query).values, scores.values)
print(scores.save("scores.safetensors"))
