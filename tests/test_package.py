"""What importing pulls in, what is public, what the command line says."""

import importlib
import itertools
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from typer.testing import CliRunner

import dross
from dross import cli, errors
from dross.cleaning import judge
from tests.quick_cleaning import quick_cleaning

PUBLIC = [
    "CorruptFile",
    "Diverged",
    "DrossError",
    "DrossWarning",
    "InputChanged",
    "InvalidInput",
    "NotSupported",
    "Project",
    "Query",
    "Recorder",
    "Run",
    "Scores",
    "clean",
    "clean_chats",
    "compare",
    "expected_error",
    "export",
    "find_label_issues",
    "judge",
    "load",
    "losses",
    "mean_loss",
    "on_progress",
    "outputs",
    "query",
    "train",
]


def test_the_public_names_are_sorted_and_there():
    assert dross.__all__ == PUBLIC == sorted(PUBLIC, key=lambda name: (not name[0].isupper(), name))
    assert all(hasattr(dross, name) for name in PUBLIC)


def loaded_by(code):
    command = [sys.executable, "-c", f"import sys\n{code}\nprint('LOADED', *sys.modules)"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name.split(".")[0] for name in output.split("LOADED")[1].split()}


INSTALLED = "numpy sklearn scipy pandas pyarrow matplotlib starlette uvicorn jinja2 joblib PIL"


CLEANING = {"Project", "clean", "clean_chats", "compare", "export", "find_label_issues", "judge"}


def test_a_name_of_the_engine_imports_only_the_core():
    names = sorted(set(dross.__all__) - CLEANING)
    loaded = loaded_by(f"import dross; [getattr(dross, name) for name in {names}]")
    assert {"torch", "numpy", "safetensors"} <= loaded
    assert not {*INSTALLED.split()[1:], "rich", "typer"} & loaded


def test_importing_the_package_or_asking_for_help_does_not_import_torch():
    assert not {"torch", *INSTALLED.split(), "rich", "typer"} & loaded_by("import dross")
    help_only = "from dross import cli; cli.app(['--help'], standalone_mode=False)"
    assert not {"torch", *INSTALLED.split()} & loaded_by(help_only)


def test_names_are_imported_when_they_are_used():
    assert set(dross.__all__) <= set(dir(dross))
    assert dross.estimators is importlib.import_module("dross.estimators")
    assert dross.optim.register and dross.data.indexed and dross.tape.EveryStep
    for name in ("nothing", "__main__", "_HOME"):
        with pytest.raises(AttributeError, match=name):
            getattr(dross, name)


def test_every_module_has_a_docstring():
    for module in pkgutil.walk_packages(dross.__path__, "dross."):
        if not module.name.endswith("__main__"):  # which runs the command line
            assert importlib.import_module(module.name).__doc__, module.name


def test_every_error_is_a_dross_error_with_a_docstring_and_in_the_tree():
    found = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in found if issubclass(kind, Exception)]
    for kind in kinds:
        assert vars(kind)["__doc__"], kind
        if kind is not errors.DrossWarning:
            assert issubclass(kind, errors.DrossError) and kind.__name__ in (errors.__doc__ or "")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "demo"
    arguments = ["demo", "--out", str(folder), "--seeds", "4"]
    with quick_cleaning(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "_ASSIGNMENTS", 1)  # half of the time; every row is held out once
        return folder, CliRunner().invoke(cli.app, arguments, catch_exceptions=False)


def test_the_demo_tells_its_story(demo):
    folder, result = demo
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    touched, found = (int(said.split("The plan changes ")[1].split()[k]) for k in (0, 2))
    assert found >= 36 and found >= 0.6 * touched > 0  # of 45; by chance it would be 5 %
    assert "Improved. The model improved" in said and "dross review" in said
    assert (folder / "report.html").exists()
    lines = [line for line in result.output.splitlines() if str(folder) not in line]
    assert [line for line in lines if len(line) > 80] == []


def test_info_describes_a_recorded_run(demo):
    folder, _ = demo
    tape = folder / "runs" / "run-0"
    result = CliRunner().invoke(cli.app, ["info", str(tape)], catch_exceptions=False)
    with pytest.raises(errors.InvalidInput, match=r"Pass one of its recorded runs: .*run-0"):
        CliRunner().invoke(cli.app, ["info", str(folder)], catch_exceptions=False)
    for part in ("4,810 trainable parameters", "(complete)", "all intact"):
        assert part in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


@pytest.mark.parametrize(
    "arguments", [["info", "nowhere"], ["info", "."], ["judge", "."], ["review", "nowhere"]]
)
def test_an_error_is_a_message_not_a_traceback(arguments, tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    result = run_command(*arguments, folder=tmp_path)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.startswith("Error: ")


def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in run_command("--debug", "info", "nowhere", folder=tmp_path).stderr


def run_command(*arguments, folder):
    command = [sys.executable, "-m", "dross", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_version_and_help_are_printed():
    assert dross.__version__ in CliRunner().invoke(cli.app, ["--version"]).output
    commands = ("demo", "clean", "clean-chats", "review", "judge", "export", "info")
    for arguments in ([], *([name] for name in commands)):
        result = CliRunner().invoke(cli.app, [*arguments, "--help"])
        assert result.exit_code == 0 and len(result.output) > 200


# What was fixed in them: the first version that does not let somebody in through what dross reads.
HOLES = {
    "pyarrow": "14.0.1",  # CVE-2023-47248: code in a Parquet or Arrow file is run
    "pillow": "10.3",  # CVE-2023-4863 (WebP), CVE-2023-50447, CVE-2024-28219
    "torch": "2.6",  # CVE-2025-32434: torch.load runs code in spite of weights_only
    "joblib": "1.2",  # CVE-2022-21797: pre_dispatch is evaluated
    "jinja2": "3.1.6",  # CVE-2025-27516: a template leaves its sandbox
    "starlette": "0.49.1",  # CVE-2025-62727: a Range header keeps a server of files busy
    "ray": "2.52",  # CVE-2025-62593: a web page has the dashboard run code
}


def test_no_version_with_a_known_hole_is_allowed():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = itertools.chain(*project["optional-dependencies"].values())
    needed = {each.name: each for each in map(Requirement, [*project["dependencies"], *extras])}
    for name, fixed in HOLES.items():
        (lowest,) = (bound for bound in needed[name].specifier if bound.operator == ">=")
        assert Version(lowest.version) >= Version(fixed), name
