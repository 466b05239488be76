"""Object storage.

A tape is recorded into a folder and copied to a bucket when it is complete. It can then be
queried from anywhere. Every URL that fsspec supports works. Here, `memory://` replaces the bucket,
so that the script runs anywhere.
"""

# %% Record
import fsspec
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import dross

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
train, validation = (x[:300], y[:300]), (x[300:500], y[300:500])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = dross.train(
    model,
    train,
    "cross_entropy",
    optimizer,
    epochs=4,
    batch_size=25,
    path="runs/mine",
    progress=False,
)
print(run)

# %% Copy
# The tools of the storage provider work, too. For S3 install `s3fs`, for Google Cloud `gcsfs`;
# credentials come from the configuration of fsspec.
system, path = fsspec.core.url_to_fs("memory://bucket/mine")
system.put("runs/mine/", path, recursive=True)
print(sorted(name.split("/")[-1] for name in system.ls(path, detail=False)))

# %% Compute scores from anywhere
# Opening a tape reads only the manifest. A segment is fetched when the retrace reaches it, and its
# SHA-256 is checked. Up to 1 GiB is kept in a temporary folder.
far = dross.load("memory://bucket/mine", model, train, "cross_entropy")
query = dross.mean_loss(validation)
same = np.array_equal(far.influence(query).values, run.influence(query).values)
print("the same scores as from the folder:", same)

# %% Damage is reported
# A truncated file is detected. `dross info URL` checks every file.
segment = next(name for name in system.ls(path, detail=False) if "segment" in name)
system.pipe(segment, system.cat(segment)[:100])
try:
    dross.load("memory://bucket/mine", model, train, "cross_entropy").influence(query)
except dross.CorruptFile as error:
    print(error)
