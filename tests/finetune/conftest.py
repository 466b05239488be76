"""A project of chats that many tests look at."""

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from typer.testing import CliRunner

from dross import cli
from tests.finetune.tiny import make_rows, save_model, write_rows

QUICK = ["--repeats", "1", "--epochs", "2", "--batch-size", "18", "--lr", "0.01"]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def made(tmp_path_factory, model):
    """(folder of the project, the input, what the command printed)."""
    place = tmp_path_factory.mktemp("chats")
    chats = write_rows(place / "chats.jsonl", make_rows())
    arguments = [
        "clean-chats",
        str(chats),
        "--model",
        str(model),
        "--out",
        str(place / "run"),
        *QUICK,
    ]
    result = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return place / "run", chats, result.output
