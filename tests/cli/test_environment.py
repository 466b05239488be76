"""What the command line sets in its process, and that `import dross` sets nothing."""

import json
import os
import platform
import subprocess
import sys

import pytest

NAMES = ("GOMP_SPINCOUNT", "TORCH_CUDNN_USE_HEURISTIC_MODE_B")
IMPORT = (
    f"import json, os, dross; dross.train; print(json.dumps([os.environ.get(n) for n in {NAMES}]))"
)
# Prints the variables at the moment when torch is first looked for.
COMMAND = f"""
import json, os, sys

class WhenTorchIsImported:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(json.dumps([os.environ.get(name) for name in {NAMES}]))
            os._exit(sys.stdout.flush() or 0)

sys.meta_path.insert(0, WhenTorchIsImported())
sys.argv = ["dross", "info", "nowhere"]
from dross.cli import main
main()
"""


def run_in_new_process(code, **given):
    """What it prints, with `given` and nothing else of what matters here in its environment."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith((*NAMES, "MALLOC_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | given,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_importing_dross_sets_nothing():
    assert run_in_new_process(IMPORT) == [None, None]


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, ["10000", "1"]), ({"GOMP_SPINCOUNT": "7"}, ["7", "1"])],
)
def test_commands_set_variables_before_torch_unless_the_user_has_set_them(given, expected):
    assert run_in_new_process(COMMAND, **given) == expected


# Prints the page faults of a block of 8 MiB that is written and freed again, 50 times.
FAULTS = """
import ctypes, os, resource
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
@pytest.mark.parametrize(("given", "kept"), [({}, True), ({"MALLOC_ARENA_MAX": "1"}, False)])
def test_freed_memory_is_kept_for_the_next_pass_unless_the_user_has_set_it(given, kept):
    assert (run_in_new_process(FAULTS, **given) < 1000) == kept
