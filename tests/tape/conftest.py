"""Fixtures for the tests of the tape."""

import pytest


@pytest.fixture
def commit_every_segment(monkeypatch):
    """These problems are over before the first half second is, or last longer on a busy machine."""
    monkeypatch.setattr("dross.tape.writer.seconds_between_commits", lambda took: 0.0)
    monkeypatch.setattr("dross.tape.writer.seconds_between_copies", lambda took: 60.0)
