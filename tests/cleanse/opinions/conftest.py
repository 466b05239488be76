"""What models think is tested with as many trees as people get."""

import pytest

from dross.cleanse.opinions import other_models

_USUAL = other_models._TREES


@pytest.fixture(autouse=True)
def all_trees(monkeypatch):
    monkeypatch.setattr(other_models, "_TREES", _USUAL)
