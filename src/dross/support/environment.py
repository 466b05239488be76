"""Environment variables that torch reads once, and that must be set before it is imported."""

import os

_VARIABLES = {
    # torch's idle CPU threads spin while they wait for the next operation. By default they spin
    # thirty times longer than this, and take cores from each other and from other programs.
    "GOMP_SPINCOUNT": "10000",
    # cuDNN has two heuristics that choose a convolution kernel. torch uses the one that answers
    # faster by default, and its kernels take up to four times as long on a GPU.
    "TORCH_CUDNN_USE_HEURISTIC_MODE_B": "1",
}


def prepare_environment() -> None:
    """Set the variables that make torch fast here, except those that the user has set.

    `import dross` calls this before it imports torch. GOMP_SPINCOUNT has no effect if torch was
    imported before, TORCH_CUDNN_USE_HEURISTIC_MODE_B none if a convolution ran on the GPU before.
    With DROSS_SET_ENVIRONMENT=0 in the environment nothing is set.
    """
    if os.environ.get("DROSS_SET_ENVIRONMENT") == "0":
        return
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
