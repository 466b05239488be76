"""docs/reliability.md: the tests that it names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_tests_that_exist():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| **")]
    assert len(rows) >= 12
    for row in rows:
        named = re.findall(r"`(tests/[\w/.]+)`", row[-1])
        assert named, f"{row[0]} has no test"
    named = re.findall(r"`((?:tests|src)/[\w/.]+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
