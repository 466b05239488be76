"""examples/sklearn_pipeline.py, as a stranger runs it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "sklearn_pipeline.py"


def without_numbers(lines):
    return [re.sub(r"[\d.,]+", "#", line).strip() for line in lines]


@pytest.mark.slow
def test_the_example_runs_and_prints_what_it_says():
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    said = (ast.get_docstring(ast.parse(EXAMPLE.read_text())) or "").splitlines()
    # the plan may be another where numbers are rounded otherwise
    assert without_numbers(printed[1:]) == without_numbers(said[-3:])
    assert printed[0].startswith("the plan: ") and done.stderr == ""
    touched, wrong, found = map(int, re.findall(r"\d+", printed[1]))
    assert found > 0.8 * wrong and found > 0.8 * touched
    before, after = (float(line.split()[-1]) for line in printed[2:])
    assert after > before + 0.04
