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
    "Budget", "Checkpoints", "ClipNorm", "ClipValue", "Counterfactual", "DrossError", "DrossWarning", "EveryStep", "LastEpochs",
    "Recorder", "Run", "Scores", "Verification", "bounds", "estimators", "indexed", "losses", "mean_loss", "outputs", "query",
    "train",
]  # fmt: skip


def test_public_names():
    assert dross.__all__ == PUBLIC == sorted(PUBLIC, key=lambda name: (not name[0].isupper(), name))
    assert all(hasattr(dross, name) for name in PUBLIC)


def test_importing_pulls_in_only_the_core():
    code = "import sys, dross; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    heavy = {"sklearn", "scipy", "pandas", "pyarrow", "matplotlib", "rich", "typer", "starlette", "joblib", "PIL"}
    assert not heavy & {name.split(".")[0] for name in loaded}


def test_every_module_has_something_to_say():
    for module in pkgutil.walk_packages(dross.__path__, "dross."):
        if not module.name.endswith("__main__"):
            assert importlib.import_module(module.name).__doc__, module.name


def test_every_error_is_a_dross_error_and_in_the_drawing():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    for kind in kinds:
        if kind is not errors.DrossWarning:
            assert issubclass(kind, errors.DrossError) and kind.__name__ in (errors.__doc__ or "")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    tape = tmp_path_factory.mktemp("demo") / "tape"
    result = CliRunner().invoke(cli.app, ["demo", "--tape", str(tape), "--checked", "16"], catch_exceptions=False)
    return tape, result


def test_the_demo_tells_its_story(demo):
    _, result = demo
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    assert "ten most harmful" in said and "Can the scores be trusted?" in said and "removed" in said
    found = int(said.split("Of the 45 most harmful, ")[1].split()[0])
    assert found >= 20  # by chance it would be 2


def test_the_story_holds(tmp_path):
    from dross.demo import tell

    story = tell(tmp_path / "tape", checked=16, progress=False)
    assert story.verification.tau > 0.8
    assert story.test["most harmful"] < story.test["nothing"] - 0.03
    assert abs(story.test["random"] - story.test["nothing"]) < 0.03


def test_info(demo, tmp_path):
    tape, _ = demo
    result = CliRunner().invoke(cli.app, ["info", str(tape)], catch_exceptions=False)
    assert "2,410 parameters" in result.output and "(complete)" in result.output and "all intact" in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


@pytest.mark.parametrize("arguments", [["info", "nowhere"], ["info", "."], ["demo", "--tape", "pyproject.toml"]])
def test_an_error_is_a_message_not_a_traceback(arguments, tmp_path):
    (tmp_path / "pyproject.toml").write_text("")
    command = [sys.executable, "-m", "dross"]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1 and "Traceback" not in result.stderr and "Tape" in result.stderr
    debug = subprocess.run([*command, "--debug", *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert "Traceback" in debug.stderr


def test_version_and_help():
    assert dross.__version__ in CliRunner().invoke(cli.app, ["--version"]).output
    for arguments in (["--help"], ["demo", "--help"], ["info", "--help"]):
        result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code == 0 and len(result.output) > 200


def test_progress_is_shown_on_a_terminal_and_silent_elsewhere():
    code = (
        "import time\nfrom dross.progress import bar\n"
        "with bar('retracing', 30) as advance:\n    for _ in range(30): time.sleep(0.02); advance(1)\n"
    )
    silent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert silent.stderr == "" and silent.stdout == ""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, stdout=subprocess.DEVNULL)
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
