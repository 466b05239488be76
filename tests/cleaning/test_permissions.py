"""Files and folders that another user may not read or write: each is a sentence."""

import importlib
import os
import tempfile
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import dross
from dross.cleaning.project import Project
from dross.errors import DrossError, InvalidInput
from dross.tape.reader import Tape
from tests.cleaning.made_inputs import QUICK
from tests.cleaning.test_hostile_project import powerless

# as root, Python's own modules may be hidden from everybody else
for module in ("dross.cleaning.export", "dross.cleaning.judge", "dross.cleaning.report"):
    importlib.import_module(module)

OPTIONS = QUICK | {"repeats": 1, "epochs": 2, "check": 2, "model": "linear"}


@contextmanager
def may_not(path, mode):
    """Inside, a file or folder has this mode, and we are not its owner's equal."""
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        with powerless():
            yield
    finally:
        path.chmod(before)


@pytest.fixture
def folder(little):
    """The parent of a project `run`, where everybody may write, with a folder `hidden`."""
    for place in (little, *little.parents):
        status = place.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o001:
            place.chmod(0o755)
    little.parent.chmod(0o777)
    (little.parent / "hidden").mkdir()
    return little.parent


@pytest.mark.parametrize("hidden", [0o000, 0o600])
def test_a_project_that_may_not_be_entered(folder, hidden):
    run = folder / "run"
    with may_not(run, hidden):
        with pytest.raises(InvalidInput, match="run cannot be reached: Permission denied"):
            Project.open(run)
        with pytest.raises(InvalidInput, match="run cannot be reached: Permission denied"):
            dross.clean(folder / "train.csv", "kind", out=run, **OPTIONS)
        with pytest.raises(InvalidInput, match="run-0 cannot be reached: Permission denied"):
            Tape(run / "runs" / "run-0")


@pytest.mark.parametrize("name", ["project.json", "instances.parquet", "decisions.sqlite"])
def test_a_file_of_a_project_that_may_not_be_read(folder, name):
    Project.open(folder / "run").decisions.record({1: ("keep", None)})
    with may_not(folder / "run" / name, 0o000), pytest.raises(DrossError, match=name):
        project = Project.open(folder / "run")
        project.current_decisions()
        project.check_files()


def test_an_input_that_may_not_be_read(folder):
    table = folder / "train.csv"
    with may_not(table, 0o000):
        with pytest.raises(DrossError, match=r"train\.csv cannot be read: Permission denied"):
            dross.clean(table, "kind", out=folder / "new", **OPTIONS)
        with pytest.raises(DrossError, match=r"train\.csv cannot be read: Permission denied"):
            dross.export(folder / "run", folder / "copy.csv", remove=3)
    moved = table.rename(folder / "hidden" / "train.csv")
    with (
        may_not(folder / "hidden", 0o000),
        pytest.raises(InvalidInput, match=r"train\.csv cannot be reached: Permission denied"),
    ):
        dross.clean(moved, "kind", out=folder / "new", **OPTIONS)


def test_a_copy_where_nobody_may_look(folder):
    with (
        may_not(folder / "hidden", 0o000),
        pytest.raises(InvalidInput, match=r"copy\.csv cannot be reached: Permission denied"),
    ):
        dross.export(folder / "run", folder / "hidden" / "copy.csv", remove=3)


def test_a_folder_that_may_not_be_written(folder):
    tape = folder / "run" / "runs" / "run-0"
    with may_not(folder / "run", 0o555):
        assert len(Project.open(folder / "run").table) == 120
        assert Project.open(folder / "run").current_decisions() == {}
        with pytest.raises(DrossError, match=r"decisions\.sqlite cannot be used"):
            Project.open(folder / "run").decisions.record({1: ("keep", None)})
        with pytest.raises(DrossError, match=r"dross\.lock cannot be locked: Permission denied"):
            dross.clean(folder / "train.csv", "kind", out=folder / "run", **OPTIONS)
        with pytest.raises(DrossError, match="cannot be locked: Permission denied"):
            dross.export(folder / "run", folder / "run" / "copy.csv", remove=3)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (torch.randn(20, 4), torch.arange(20) % 3)
    with (
        may_not(tape, 0o555),
        pytest.raises(DrossError, match=r"run-0 cannot be emptied: Permission denied"),
    ):
        dross.train(
            model,
            data,
            "cross_entropy",
            optimizer,
            path=tape,
            epochs=1,
            batch_size=5,
            overwrite=True,
        )


def test_no_folder_for_temporary_files(folder, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "nowhere"))
    x = np.random.default_rng(0).normal(size=(80, 3))
    with pytest.raises(DrossError, match=r"folder cannot be created.* Set TMPDIR"):
        dross.clean(x, x[:, 0] > 0, out=folder / "new", **OPTIONS)
    assert dross.clean(folder / "train.csv", "kind", out=folder / "new", **OPTIONS).classes
