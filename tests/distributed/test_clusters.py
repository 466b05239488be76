"""Sweeps over a real Ray and a real Dask cluster on this machine.

`make clusters` installs what they need and runs these tests.
"""

import contextlib

import cloudpickle
import joblib
import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

import dross
from dross.distributed.jobs import ResultStore
from tests.distributed import test_job_pool
from tests.distributed.test_job_pool import Doubling, run_sweep

# The clusters warn about sockets and processes that they leave to the end.
pytestmark = pytest.mark.filterwarnings("ignore")
cloudpickle.register_pickle_by_value(test_job_pool)  # their workers do not know this folder


@pytest.fixture(scope="module")
def dask():
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: make clusters")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield lambda: client.wait_for_workers(2, timeout=60) or joblib.parallel_config("dask")


@pytest.fixture(scope="module")
def ray():
    with pytest.MonkeyPatch.context() as patched:
        # this machine only: it listens on 127.0.0.1
        patched.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        library = pytest.importorskip("ray", reason="Ray is not installed: make clusters")
        from ray.util.joblib import register_ray

        library.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        register_ray()
        yield lambda: joblib.parallel_config("ray", n_jobs=2)
        library.shutdown()


@pytest.fixture(params=["dask", "ray"])
def cluster(request):
    """Makes a parallel_config of a cluster with two workers."""
    return request.getfixturevalue(request.param)


def test_a_cluster_gives_what_this_process_gives(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("dross.influence.counterfactual._MIN_GROUPS_IN_A_PIECE", 8)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 3)
    )
    data = (torch.randn(40, 5), torch.randint(0, 3, (40,)))
    run = dross.train(
        model,
        data,
        "cross_entropy",
        torch.optim.Adam(model.parameters()),
        path=tmp_path / "tape",
        epochs=3,
        batch_size=8,
        penalty=lambda parameters: 1e-3 * sum(p.square().sum() for p in parameters.values()),
        progress=False,
    )
    query, groups = dross.mean_loss(data), [[j] for j in range(20)]
    with cluster():
        there = run.counterfactual(groups)
        changes = run.leave_one_out(query, folder=tmp_path / "kept")
    here = run.counterfactual(groups, folder=tmp_path / "here", n_jobs=1)
    for ours, theirs in zip(here.chunks, there.chunks, strict=True):
        assert all(
            torch.equal(ours.tensors()[name], tensor) for name, tensor in theirs.tensors().items()
        )
    np.testing.assert_array_equal(
        changes, run.leave_one_out(query, folder=tmp_path / "loo", n_jobs=1)
    )
    assert len(list((tmp_path / "kept").glob("piece-*"))) == 5


def test_a_verdict_by_a_cluster_is_the_one_of_this_process(cluster, tmp_path):
    data = load_breast_cancer(as_frame=True)
    data.data.assign(diagnosis=np.array(["malignant", "benign"])[data.target]).to_csv(
        tmp_path / "cancer.csv", index=False
    )
    dross.clean(
        tmp_path / "cancer.csv",
        "diagnosis",
        out=tmp_path / "run",
        repeats=2,
        lr=0.02,
        epochs=4,
        progress=False,
    )
    ask = lambda: dross.judge(tmp_path / "run", remove=15, seeds=4, quick=True, progress=False)
    here = ask()
    with cluster():
        there = ask()
    assert there.metrics == here.metrics and there.per_class == here.per_class


@pytest.mark.parametrize("kills", ["own", "all"])
def test_workers_of_a_cluster_are_killed(cluster, kills, tmp_path):
    """Dask starts new workers and sends the pieces out again; Ray does when the call is repeated."""
    work, store = Doubling(tmp_path, kills), ResultStore(tmp_path / "kept", {})
    with cluster(), contextlib.suppress(Exception):
        run_sweep(work, store=store)
    assert (tmp_path / "died").exists()
    with cluster():
        assert run_sweep(work, store=store) == [0, 2, 4, 6, 8, 10]
    assert [work.times(k) for k in range(3)] == [1, 1, 1]
    assert len(list((tmp_path / "kept").glob("piece-*"))) == 6
