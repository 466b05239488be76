"""What the tests of pages share."""

import fsspec
import pytest

from tests.quick_cleaning import quick_cleaning


@pytest.fixture(autouse=True)
def _clean_quickly():
    with quick_cleaning():
        yield


@pytest.fixture(autouse=True)
def _empty_bucket():
    """Several pages copy a tape to memory://bucket, which all tests of a process share."""
    store = fsspec.filesystem("memory").store
    store.clear()
    yield
    store.clear()
