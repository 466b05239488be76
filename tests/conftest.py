"""Fixtures that tests of several folders use."""

import os
import sys
from pathlib import Path

import pytest
import torch

import dross
from dross.cli.app import main
from tests.oracles import Problem, orthogonalize
from tests.zoo import HAS_MUON


def pytest_collection_modifyitems(items):
    """Skip what is about Muon where torch has none."""
    for item in items:
        if "muon" in item.nodeid and not HAS_MUON:
            item.add_marker(pytest.mark.skip(reason="torch.optim.Muon needs torch 2.9"))


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)  # the problems are tiny; threads only get in each other's way


@pytest.fixture(autouse=True)
def _muon_without_rounding(request, monkeypatch):
    """Let torch's Muon and ours orthogonalize in float64. One test takes that back."""
    if "muon" in request.node.nodeid:
        monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", orthogonalize)
        monkeypatch.setattr("dross.engine.optim_custom.ORTHOGONALIZED_IN", torch.float64)


@pytest.fixture
def record(tmp_path):
    """Run a problem through dross.train. record(problem, keep=...) -> dross.Run"""
    counter = iter(range(1000))

    def recorded(problem: Problem, **options) -> dross.Run:
        model, optimizer = problem.start()
        options = {
            "path": tmp_path / f"tape-{next(counter)}",
            "batches": problem.batches,
            "epochs": problem.epochs,
            "penalty": problem.penalty,
            "seed": problem.seed,
            "lr": problem.rate,
            "progress": False,
        } | options
        if problem.clip_norm is not None:
            options["clip_norm"] = problem.clip_norm
        return dross.train(model, (problem.X, problem.Y), problem.loss, optimizer, **options)

    return recorded


@pytest.fixture
def shared_oracle():
    """The folder with one repetition of each cell of the paper's Table 1."""
    data = os.environ.get("DROSS_DATA")
    folder = Path(data).parent / "oracle" if data else None
    if folder is None or not folder.exists():
        pytest.skip(
            "the oracle files are not on this machine (DROSS_DATA names the data folder beside "
            "them)"
        )
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    """Gives a command; the exit code, and what was printed as one line."""

    def give(*words):
        monkeypatch.setattr(sys, "argv", ["dross", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, " ".join((printed.out + printed.err).split())

    return give
