"""Many GPUs.

A loop under DistributedDataParallel is recorded without changes to the training, and the ranks of a
job share the work of a retrace. This script runs on CPUs with gloo, so that you can try it
anywhere; with one GPU for each rank, use `nccl` and move the model and the batches to the GPU. It
has not been tested on several GPUs.
"""

# %% The job
# Every rank makes the same calls. The data, the model and the seed are the same on each.
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dross

dist.init_process_group("gloo", timeout=timedelta(minutes=5))
first = dist.get_rank() == 0
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
flipped = np.random.default_rng(1).choice(600, 60, replace=False)
y_train = y[:600].clone()
y_train[flipped] = (y_train[flipped] + 3) % 10
train_set, validation = TensorDataset(x[:600], y_train), (x[600:1000], y[600:1000])

# %% Record
# The recorder gets the wrapped model on every rank; the first rank writes. All ranks must be able
# to read the folder.
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sampler = DistributedSampler(train_set)
loader = DataLoader(dross.data.indexed(train_set), batch_size=16, sampler=sampler)
recorder = dross.Recorder(model, "cross_entropy", optimizer, path="runs/mine")
for epoch in range(5):
    sampler.set_epoch(epoch)
    for ids, inputs, targets in loader:
        with recorder.step(ids, inputs, targets, epoch=epoch) as losses:
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
run = recorder.run(train_set)
if first:
    print(run, "by", dist.get_world_size(), "ranks")

# %% Retrace together
# Each rank processes its part of every batch; sums are all-reduced, and at the end every rank has
# all scores. With `resume=folder`, an interrupted job continues, with any number of ranks.
scores = run.influence(dross.mean_loss(validation), group=dist.group.WORLD, resume="runs/progress")
if first:
    worst = scores.most_harmful(30)
    hits = len(np.intersect1d(worst, flipped))
    print(f"{hits} of the 30 most harmful have a wrong label (10 % of all have)")
dist.destroy_process_group()

# %% Retrace in one process
# A single process can retrace the tape as well, however it was recorded.
if first:
    alone = dross.load("runs/mine", network, train_set, "cross_entropy")
    difference = np.abs(alone.influence(dross.mean_loss(validation)).values - scores.values).max()
    print(
        f"largest difference to one process alone: {difference / np.abs(scores.values).max():.0e}"
    )
