"""Projects to review, and a page that many tests share."""

from pathlib import Path

import pytest

from tests.review.review_client import client_of
from tests.review.review_project import make_project

CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


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


@pytest.fixture
def project(tmp_path):
    """A larger project of the test's own, with nothing decided."""
    return make_project(tmp_path / "p", "table", 120)


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    reason = "the browser tests need playwright: pip install playwright"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    if not CHROMIUM.exists():
        pytest.skip(f"the browser tests need {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_OPTIONS)
        yield chromium
        chromium.close()
