"""Ray and Dask clusters.

Counterfactual runs and the seeds of a verdict are independent of each other. joblib distributes
them over processes on this machine, over Dask or over Ray; the results are bitwise identical.
`pip install '.[clusters]'` in a checkout installs Dask and Ray.
"""

# %% A recorded run
# Workers open the tape themselves, so it must be stored where they can read it. As always in
# Python, a script that starts worker processes needs an `if __name__ == "__main__":` guard, here in
# the last line.
import joblib
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import dross

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
train, query = (x[:400], y[:400]), dross.mean_loss((x[400:700], y[400:700]))


def record() -> dross.Run:
    """Train a small network and keep its tape."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"epochs": 6, "batch_size": 32, "path": "runs/mine", "progress": False}
    return dross.train(model, train, "cross_entropy", optimizer, **options)


# %% Distribute the work
# For a real cluster, connect to its scheduler with `Client("scheduler:8786")`. Use one thread for
# each worker, because random number generators and the mode of a model are shared by the whole
# process. For Ray, call `ray.init("auto")` and `ray.util.joblib.register_ray()`, and use
# `joblib.parallel_config("ray", n_jobs=64)`.
def main() -> None:
    """Leave 128 instances out, one at a time: here, then over the workers of a Dask cluster."""
    from distributed import Client, LocalCluster

    run = record()
    ids = np.arange(128)
    here = run.leave_one_out(query, ids, n_jobs=1, folder="runs/here")
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster), joblib.parallel_config("dask"):
            there = run.leave_one_out(query, ids, folder="runs/there")
    print(f"{len(there)} instances left out; the same bits as here: {np.array_equal(here, there)}")
    estimated = run.influence(query).values[ids]
    print(f"correlation with the scores: {np.corrcoef(estimated, there)[0, 1]:.3f}")


if __name__ == "__main__":
    main()

# %% What if a worker dies?
# Its jobs are assigned to other workers, and a warning is issued. With a `folder`, finished results
# are kept, and the same call continues after a crash, on any backend. Verdicts work in the same
# way: `with joblib.parallel_config("dask"): dross.judge("runs/people")`. See
# [Scale](../scale.md#sweeps-over-a-cluster) for the limits.
