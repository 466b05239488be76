"""What the tests of pages share."""

import fsspec
import pytest

from dross.cleanse.opinions import other_models


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch):
    monkeypatch.setattr(other_models, "_TREES", 20)  # most of what a small project costs


@pytest.fixture(autouse=True)
def _empty_bucket():
    """Several pages copy a tape to memory://bucket, which all tests of a process share."""
    store = fsspec.filesystem("memory").store
    store.clear()
    yield
    store.clear()
