"""Messages about a missing package name a command that works, wherever dross came from."""

import tomllib
from pathlib import Path

import pytest

from dross import _extras

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["images", "text", "transformers", "lightning", "skorch"])
def test_the_command_names_the_packages_of_an_extra(extra):
    command = _extras.install_command(extra)
    assert command == "pip install " + " ".join(f"'{package}'" for package in EXTRAS[extra])


def test_an_extra_of_extras_is_spelled_out():
    own, *others = EXTRAS["finetuning"]
    assert own == "dross[transformers]"
    packages = [*EXTRAS["transformers"], *others]
    command = _extras.install_command("finetuning")
    assert command == "pip install " + " ".join(f"'{package}'" for package in packages)


def test_a_checkout_that_is_not_installed_is_named(monkeypatch):
    def missing(name):
        raise _extras.PackageNotFoundError(name)

    monkeypatch.setattr(_extras, "requires", missing)
    assert _extras.install_command("text") == "pip install '.[text]' in your dross checkout"


def test_nothing_tells_to_install_dross_from_an_index():
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*")]
    files += ROOT.glob("src/**/*.py")
    telling = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        if path.is_file()
        for line in path.read_text().splitlines()
        if "pip install" in line and ("install dross" in line or "dross[" in line)
    ]
    assert telling == []
