"""The shape of the code: folders that can be overlooked, files that can be read in one sitting."""

import ast
from collections import Counter
from pathlib import Path

import dross

ROOT = Path(dross.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
ON_TOP = {"__init__.py", "__main__.py", "_version.py", "demo.py", "errors.py"}
MAX_MODULES, MAX_LINES, MAX_FUNCTION_LINES = 14, 400, 60


def test_only_a_few_modules_are_outside_of_folders():
    assert {path.name for path in ROOT.glob("*.py")} == ON_TOP and (ROOT / "py.typed").exists()


def test_folders_have_at_most_fourteen_modules():
    sizes = Counter(path.parent for path in SOURCES)
    assert not {str(folder): size for folder, size in sizes.items() if size > MAX_MODULES}


def test_files_have_at_most_four_hundred_lines():
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert not {name: length for name, length in lengths.items() if length > MAX_LINES}


def test_functions_have_at_most_sixty_lines_beside_their_docstring():
    long = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1 - docstring_lines(node)
                if length > MAX_FUNCTION_LINES:
                    long[f"{path}:{node.name}"] = length
    assert not long


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (first.end_lineno or 0) - first.lineno + 1 if is_text and ast.get_docstring(node) else 0


def test_nothing_is_kept_from_the_formatter():
    marker = "fmt: " + "skip"
    assert not [str(path) for path in SOURCES if marker in path.read_text(encoding="utf-8")]
