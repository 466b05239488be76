"""A loop of a user's own that a test kills: `python -m tests.tape.killed_loop FOLDER KEEP SECONDS`."""

import sys
import time

import torch
from torch import nn

import dross

KEEP = {
    "default": None,
    "every step": dross.tape.EveryStep(),
    "one segment": dross.tape.Checkpoints(every=100_000),
    "last epochs": dross.tape.LastEpochs(2),
    "a budget": dross.tape.Budget(100_000, steps=320),
}
STEPS = 320
STEPS_PER_EPOCH = 20


def train(folder, keep, seconds=0.0, **options):
    """The trained model. Each step takes so many seconds more and prints how many were taken."""
    torch.manual_seed(0)
    X = torch.randn(640, 20)
    Y = torch.randint(0, 3, (640,))
    layers = nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = torch.randperm(640).split(32) * (STEPS // STEPS_PER_EPOCH)
    options |= {"path": folder, "keep": keep}
    with dross.Recorder(model, "cross_entropy", optimizer, **options) as recorder:
        for t in range(recorder.steps, STEPS):
            ids = batches[t]
            with recorder.step(ids, X[ids], Y[ids], epoch=t // STEPS_PER_EPOCH) as losses:
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            if seconds:
                time.sleep(seconds)
                print(t + 1, flush=True)
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)  # as the tests have it: sums by more threads round differently
    train(sys.argv[1], KEEP[sys.argv[2]], float(sys.argv[3]))
