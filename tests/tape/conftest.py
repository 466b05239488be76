"""Fixtures for the tests of the tape."""

import pytest


@pytest.fixture
def commit_every_segment(monkeypatch):
    """These problems are over before the first half second is."""
    monkeypatch.setattr("dross.tape.writer.seconds_between_commits", lambda took: 0.0)
