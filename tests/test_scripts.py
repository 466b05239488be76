"""The scripts of benchmarks and experiments can be imported: they use what the library has."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# other libraries, which the comparison installs for itself
PEERS = {"torchopt", "bergson", "captum", "dattri", "kronfluence", "pydvl", "trak"}
SCRIPTS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("benchmarks", "experiments")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_can_be_imported(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in PEERS:
            raise
        pytest.skip(f"{error.name} is not installed: a library that dross is compared with")
