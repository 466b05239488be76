"""Messages name options, and missing packages with the command that installs them."""

import pytest
from typer.testing import CliRunner

import dross
from dross import cli
from dross._checks import check_installed
from dross.errors import InvalidInput


def test_a_message_names_an_option_in_one_way_for_python_and_the_command_line(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,2\n")
    with pytest.raises(InvalidInput, match="Pass its name as `label`"):
        dross.clean(path, out=tmp_path / "out")
    with pytest.raises(InvalidInput, match="Pass its name as `label`"):
        CliRunner().invoke(cli.app, ["clean", str(path)], catch_exceptions=False)


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
