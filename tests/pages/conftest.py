"""What the tests of pages share: a project of the pages grows fewer trees than a user's."""

import pytest

from dross.cleanse.opinions import other_models


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch):
    monkeypatch.setattr(other_models, "_TREES", 20)  # most of what a small project costs
