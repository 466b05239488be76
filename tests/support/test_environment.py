"""What `import dross` sets in the environment, and when it sets nothing."""

import json
import os
import subprocess
import sys

import pytest

NAMES = ("GOMP_SPINCOUNT", "TORCH_CUDNN_USE_HEURISTIC_MODE_B")
# Prints the variables at the moment when torch is first looked for.
SCRIPT = f"""
import json, os, sys

class WhenTorchIsImported:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(json.dumps([os.environ.get(name) for name in {NAMES}]))
            os._exit(sys.stdout.flush() or 0)

sys.meta_path.insert(0, WhenTorchIsImported())
import dross
"""


def variables_when_torch_is_imported(**given):
    """The values of NAMES in a new process that imports dross with `given` in its environment."""
    inherited = {k: v for k, v in os.environ.items() if k not in (*NAMES, "DROSS_SET_ENVIRONMENT")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=inherited | given,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["10000", "1"]),
        ({"DROSS_SET_ENVIRONMENT": "1"}, ["10000", "1"]),
        ({"GOMP_SPINCOUNT": "7"}, ["7", "1"]),
        ({"TORCH_CUDNN_USE_HEURISTIC_MODE_B": "0"}, ["10000", "0"]),
        ({"DROSS_SET_ENVIRONMENT": "0"}, [None, None]),
        ({"DROSS_SET_ENVIRONMENT": "0", "GOMP_SPINCOUNT": "7"}, ["7", None]),
    ],
)
def test_variables_are_set_before_torch_unless_the_user_says_otherwise(given, expected):
    assert variables_when_torch_is_imported(**given) == expected


def test_the_values_remain_set_after_the_import():
    code = f"import json, os, dross; print(json.dumps([os.environ.get(n) for n in {NAMES}]))"
    inherited = {k: v for k, v in os.environ.items() if k not in (*NAMES, "DROSS_SET_ENVIRONMENT")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["10000", "1"]
