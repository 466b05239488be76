"""What the packages say of themselves: version, lower bounds, extras; and the engine alone."""

import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import dross

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OWN = {"test", "dev", "docs"}  # for those who work on dross


def read_pins(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in pairs}


def needed(*extras):
    texts = PROJECT["dependencies"] + [text for extra in extras for text in EXTRAS[extra]]
    found = [Requirement(text) for text in texts]
    return {canonicalize_name(each.name): each for each in found if each.name != "dross"}


def test_the_oldest_versions_are_the_lower_bounds():
    bounds = {
        name: Version(next(iter(each.specifier)).version)
        for name, each in needed(*(extra for extra in EXTRAS if extra not in OWN)).items()
        if [part.operator for part in each.specifier] == [">="]
    }
    assert bounds == read_pins("constraints-oldest.txt")


def test_the_tested_versions_are_allowed():
    pins = read_pins("constraints.txt")
    for name, each in needed(*EXTRAS).items():
        if name in pins:
            assert each.specifier.contains(pins[name]), name
    assert set(needed()) <= set(pins)


def test_the_citation_names_the_version():
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {dross.__version__}" in citation


def test_all_means_all():
    (everything,) = (Requirement(text) for text in EXTRAS["all"])
    assert everything.extras == set(EXTRAS) - {*OWN, "all"}


def test_the_engine_runs_with_few_packages():
    command = [sys.executable, str(Path(__file__).with_name("engine_alone.py")), "--block"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout.startswith("The engine alone"), ended.stderr
