"""Checks of arguments, and how messages name them."""

import pytest
from typer.testing import CliRunner

import dross
from dross import cli
from dross._checks import check_file_name, check_name
from dross.errors import InvalidInput

# --- A misspelt name gets a hint ---


def test_a_known_name_is_returned():
    assert check_name("model", "mlp", ["linear", "mlp"]) == "mlp"


@pytest.mark.parametrize(
    ("name", "hint"), [("linaer", " Did you mean 'linear'?"), ("transformer", "")]
)
def test_an_unknown_name_is_refused_with_the_closest_and_all_names(name, hint):
    expected = f"There is no model named '{name}'.{hint} Valid names are: linear, mlp."
    with pytest.raises(InvalidInput) as caught:
        check_name("model", name, iter(["linear", "mlp"]))
    assert str(caught.value) == expected


# --- Messages name options ---


def test_a_message_names_an_option_in_one_way_for_python_and_the_command_line(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,2\n")
    with pytest.raises(InvalidInput, match="pass its name as `label`"):
        dross.clean(path, out=tmp_path / "out")
    with pytest.raises(InvalidInput, match="pass its name as `label`"):
        CliRunner().invoke(cli.app, ["clean", str(path)], catch_exceptions=False)


def test_too_few_to_verify_are_refused_before_anything_is_read(tmp_path):
    for wrong in (0, -3, 2.5, True):
        with pytest.raises(InvalidInput, match="`check` must be a whole number of at least 1"):
            dross.clean(tmp_path / "nothing.csv", "y", check=wrong, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- Names of files ---


def test_names_that_are_not_utf8_are_refused():
    check_file_name("Größe.csv")
    with pytest.raises(InvalidInput, match=r"caf\\xe9\.csv is not UTF-8"):
        check_file_name("caf\udce9.csv")


def test_names_that_no_file_system_holds_are_refused(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("a,y\n" + "1,yes\n2,no\n" * 20)
    name = "ö" * 200  # 400 bytes
    calls = [
        lambda: dross.clean(f"{name}.csv", "y"),
        lambda: dross.clean(table, "y", out=tmp_path / name),
        lambda: dross.clean(table, "y", test=name, out=tmp_path / "run"),
        lambda: dross.judge(name),
        lambda: dross.export(name, "copy.csv"),
        lambda: dross.Project.open(tmp_path / name),
        lambda: dross.train(None, None, None, None, path=name),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="too long for a file name"):
            call()


def test_misuse_of_the_python_api_is_an_error_of_dross(tmp_path):
    with pytest.raises(InvalidInput, match="Pass the data"):
        dross.clean(None)
    with pytest.raises(InvalidInput, match="seed must be a whole number, not 'x'"):
        dross.clean("t.csv", "y", seed="x", out=tmp_path / "run")
    for call in (dross.judge, dross.Project.open):
        with pytest.raises(InvalidInput, match="folder must be the path to a folder, not None"):
            call(None)
