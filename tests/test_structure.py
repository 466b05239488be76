"""The shape of the package: six layers, no cycles, no folder for a single module."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dross

PACKAGE = Path(dross.__file__).parent
LAYERS = [  # a module imports from its own layer and from those below it
    {"__main__", "cli", "demo", "review"},
    {"integrations", "finetune", "optim"},
    {"cleaning", "estimators"},
    {"influence", "record"},
    {"replay", "tape", "distributed"},
    {"engine", "data"},
]
PRIVATE = {"_version", "errors"} | {path.stem for path in PACKAGE.glob("_[a-z]*.py")}
PUBLIC_NAMES = {"__init__"}  # names every home of a public name, and imports it when it is used


def test_no_folder_has_a_single_module():
    for folder in {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        folders = [path for path in folder.iterdir() if (path / "__init__.py").exists()]
        assert len(modules) + len(folders) > 1, folder


def test_every_entry_of_the_package_has_a_layer():
    entries = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert entries <= set().union(*LAYERS) | PRIVATE | PUBLIC_NAMES


def test_imports_follow_the_layers():
    """Imports inside of functions and for types alone count, too."""
    depth = {entry: k for k, layer in enumerate(LAYERS) for entry in layer}
    depth |= dict.fromkeys(PRIVATE, len(LAYERS))
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        importer = module_name(path)
        if (entry := entry_of(importer)) in PUBLIC_NAMES:
            continue
        for imported in imports_of(path, lazy=True):
            other = entry_of(imported)
            if other in PUBLIC_NAMES or entry == other:
                continue
            if entry not in depth or other not in depth or depth[other] < depth[entry]:
                wrong.append(f"{importer} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_imports_have_no_cycles():
    """Of what is imported when a module is loaded."""
    graph = {module_name(path): set(imports_of(path, lazy=False)) for path in PACKAGE.rglob("*.py")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def entry_of(module: str) -> str:
    """The folder or module directly in the package."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(path: Path, *, lazy: bool) -> Iterator[str]:
    """The modules of the package that a file imports; with lazy, those inside of functions too."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in _imports_in(ast.parse(path.read_text(encoding="utf-8")), lazy):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "dross")
            continue
        above = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*above, *(node.module or "").split(".")]).rstrip(".")
        if base.split(".")[0] == "dross":
            for alias in node.names:
                named = f"{base}.{alias.name}"
                yield named if _is_module(named) else base


def _imports_in(tree: ast.AST, lazy: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif lazy or not (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node)
        ):
            yield from _imports_in(node, lazy)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()
