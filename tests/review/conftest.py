"""Projects to review, and a page that many tests share."""

import pytest

from review.review_client import client_of
from review.review_project import make_project


@pytest.fixture(scope="package")
def shared_project(tmp_path_factory):
    """A project that tests only look at."""
    return make_project(tmp_path_factory.mktemp("projects") / "table", "table", 300)


@pytest.fixture(scope="package")
def page(shared_project):
    """A client of the page of `shared_project`."""
    with client_of(shared_project) as client:
        yield client


@pytest.fixture
def fresh(tmp_path):
    """A project of the test's own, with nothing decided."""
    return make_project(tmp_path / "fresh", "table", 60)
