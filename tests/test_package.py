"""What importing pulls in, what is public, what the command line says, what the terminal shows."""

import importlib
import pkgutil
import pty
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import dross
from dross import cli, errors

PUBLIC = [
    "Budget",
    "Checkpoints",
    "ClipNorm",
    "ClipValue",
    "Counterfactual",
    "DrossError",
    "DrossWarning",
    "EveryStep",
    "LastEpochs",
    "Project",
    "Recorder",
    "Run",
    "Scores",
    "Verification",
    "bounds",
    "clean",
    "estimators",
    "export",
    "indexed",
    "judge",
    "losses",
    "mean_loss",
    "outputs",
    "query",
    "train",
]


def test_public_names():
    assert dross.__all__ == PUBLIC == sorted(PUBLIC, key=lambda name: (not name[0].isupper(), name))
    assert all(hasattr(dross, name) for name in PUBLIC)


def test_importing_pulls_in_only_the_core():
    code = "import sys, dross; print(*sys.modules)"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    heavy = {
        "sklearn",
        "scipy",
        "pandas",
        "pyarrow",
        "matplotlib",
        "rich",
        "typer",
        "starlette",
        "uvicorn",
        "jinja2",
        "joblib",
        "PIL",
    }
    assert not heavy & {name.split(".")[0] for name in loaded}


def test_every_module_has_something_to_say():
    for module in pkgutil.walk_packages(dross.__path__, "dross."):
        if not module.name.endswith("__main__"):
            assert importlib.import_module(module.name).__doc__, module.name


def test_every_error_is_a_dross_error_and_in_the_drawing():
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    for kind in kinds:
        if kind is not errors.DrossWarning:
            assert issubclass(kind, errors.DrossError) and kind.__name__ in (errors.__doc__ or "")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "demo"
    result = CliRunner().invoke(
        cli.app, ["demo", "--out", str(folder), "--seeds", "8"], catch_exceptions=False
    )
    return folder, result


def test_the_demo_tells_its_story(demo):
    folder, result = demo
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    removed, found = (int(said.split("Of the ")[1].split()[k]) for k in (0, 3))
    assert found >= 0.6 * removed > 0  # flipped labels; by chance it would be 5 %
    right = int(said.split("Of the 45 most probably mislabelled, ")[1].split()[0])
    assert right >= 36
    assert "Improved. The model improved" in said and "dross review" in said
    assert (folder / "report.html").exists()
    assert all(len(line) <= 80 for line in result.output.splitlines() if str(folder) not in line)


def test_info(demo, tmp_path):
    folder, _ = demo
    result = CliRunner().invoke(
        cli.app, ["info", str(folder / "runs" / "round-1" / "run-0")], catch_exceptions=False
    )
    with pytest.raises(errors.BadInput, match=r"its recorded runs are .*run-0"):
        CliRunner().invoke(cli.app, ["info", str(folder)], catch_exceptions=False)
    assert (
        "4,810 parameters" in result.output
        and "(complete)" in result.output
        and "all intact" in result.output
    )
    assert all(len(line) <= 80 for line in result.output.splitlines())


@pytest.mark.parametrize(
    "arguments", [["info", "nowhere"], ["info", "."], ["judge", "."], ["review", "nowhere"]]
)
def test_an_error_is_a_message_not_a_traceback(arguments, tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    command = [sys.executable, "-m", "dross"]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1 and "Traceback" not in result.stderr and "Tape" in result.stderr
    debug = subprocess.run(
        [*command, "--debug", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert "Traceback" in debug.stderr


def test_version_and_help():
    assert dross.__version__ in CliRunner().invoke(cli.app, ["--version"]).output
    for arguments in (
        ["--help"],
        *([name, "--help"] for name in ("demo", "info", "clean", "review", "judge", "export")),
    ):
        result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code == 0 and len(result.output) > 200


def test_progress_is_shown_on_a_terminal_and_silent_elsewhere():
    code = (
        "import time\nfrom dross.support.progress import bar\n"
        "with bar('retracing', 30) as advance:\n    for _ in range(30): time.sleep(0.02); advance(1)\n"
    )
    silent = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert silent.stderr == "" and silent.stdout == ""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=theirs, stdout=subprocess.DEVNULL
    )
    import os

    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    assert b"retracing" in shown and b"/30" in shown and b"steps/s" in shown
