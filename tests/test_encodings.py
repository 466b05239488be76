"""Text files are UTF-8 on every machine, whatever its locale."""

import ast
from pathlib import Path

import dross

SOURCES = sorted(Path(dross.__file__).parent.rglob("*.py"))


def opens_text_without_encoding(call: ast.Call) -> bool:
    """Whether a call is open(), read_text() or the like, for text, and names no encoding."""
    function = call.func
    if isinstance(function, ast.Name):
        name, modes = function.id, call.args[1:2]
    elif isinstance(function, ast.Attribute):
        name, modes = function.attr, call.args[:1]
    else:
        return False
    given = {keyword.arg for keyword in call.keywords}
    if name == "write_text" and isinstance(function, ast.Name):
        return False  # ours, which writes UTF-8
    if name in ("read_text", "write_text", "NamedTemporaryFile", "TextIOWrapper"):
        return "encoding" not in given
    if name != "open" or not isinstance(function, ast.Name):
        return False
    mode = modes[0].value if modes and isinstance(modes[0], ast.Constant) else "r"
    return "b" not in str(mode) and "encoding" not in given


def test_every_text_file_is_opened_with_an_encoding():
    found = [
        f"{path.name}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and opens_text_without_encoding(node)
    ]
    assert not found


def test_the_check_finds_what_it_looks_for():
    wrong = ["open(p)", "open(p, 'w')", "p.read_text()", "p.write_text(t)"]
    right = ["open(p, 'rb')", "open(p, encoding='utf-8')", "write_text(p, t)", "tarfile.open(p)"]
    call = lambda text: ast.parse(text, mode="eval").body
    assert all(opens_text_without_encoding(call(text)) for text in wrong)
    assert not any(opens_text_without_encoding(call(text)) for text in right)
