"""Options are named as the user writes them, and missing packages with what installs them."""

import pytest
from typer.testing import CliRunner

import dross
from dross import cli
from dross._checks import check_installed, in_shell, name_option, name_options
from dross.errors import InvalidInput


def test_an_option_has_two_names():
    python = [name_option("out"), name_option("overwrite", True), name_option("task", "x")]
    assert python == ["out=...", "overwrite=True", "task='x'"]
    with in_shell():
        shell = [name_option("out"), name_option("overwrite", True), name_option("task", "x")]
        assert [name_option("estimator"), name_option("batch_size", 3)] == [
            "--estimator",
            "--batch-size 3",
        ]
        assert name_options("trust_code", ["a:b", "c:d"]) == "--trust-code a:b --trust-code c:d"
    assert shell == ["--out", "--overwrite", "--task x"]
    assert name_options("trust_code", ["a:b"]) == "trust_code=['a:b']"


def test_a_message_names_the_option_of_who_asked(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,2\n")
    with pytest.raises(InvalidInput, match="Pass label='NAME'"):
        dross.clean(path, out=tmp_path / "out")
    with pytest.raises(InvalidInput, match="Pass --label NAME"):
        CliRunner().invoke(cli.app, ["clean", str(path)], catch_exceptions=False)
    with pytest.raises(InvalidInput, match="Pass label='NAME'"):  # the command line has ended
        dross.clean(path, out=tmp_path / "out")


def test_too_few_to_verify_are_refused_before_anything_is_read(tmp_path):
    for wrong in (0, -3, 2.5, True):
        with pytest.raises(InvalidInput, match="check must be at least 1"):
            dross.clean(tmp_path / "nothing.csv", "y", check=wrong, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_named_with_the_command_that_installs_it():
    check_installed("This", "numpy")
    with pytest.raises(
        InvalidInput, match=r"A plot needs no_such_thing, which is .*install no_such_thing"
    ):
        check_installed("A plot", "numpy", "no_such_thing")
    with pytest.raises(InvalidInput, match="needs nothing, none, which are not installed"):
        check_installed("A plot", "nothing", "none")
