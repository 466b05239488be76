"""What `import dross` sets in the environment, and when it sets nothing."""

import json
import os
import platform
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
dross.train  # a public name imports torch
"""


def run_in_new_process(code, **given):
    """What it prints, with `given` and nothing else of what matters here in its environment."""
    unset = (*NAMES, "DROSS_SET_ENVIRONMENT", "MALLOC_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(unset)}
    done = subprocess.run(
        [sys.executable, "-c", code],
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
    assert run_in_new_process(SCRIPT, **given) == expected


def test_the_values_remain_set_after_the_import():
    code = f"import json, os, dross; print(json.dumps([os.environ.get(n) for n in {NAMES}]))"
    assert run_in_new_process(code) == ["10000", "1"]


# Prints the page faults of a block of 8 MiB that is written and freed again, 50 times.
FAULTS = """
import ctypes, os, resource
os.environ.pop("GOMP_SPINCOUNT", None)
from dross._environment import prepare_environment
prepare_environment()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
count = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    blocks = [libc.malloc(8 << 20) for _ in range(16)]
    for block in blocks:
        ctypes.memset(block, 1, 8 << 20)
    for block in blocks:
        libc.free(block)
use()
before = count()
for _ in range(5):
    use()
print(count() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc returns freed memory at once")
@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, True), ({"DROSS_SET_ENVIRONMENT": "0"}, False), ({"MALLOC_ARENA_MAX": "1"}, False)],
)
def test_freed_memory_is_kept_for_the_next_pass_unless_the_user_says_otherwise(given, kept):
    assert (run_in_new_process(FAULTS, **given) < 1000) == kept
