"""Where to compute: a device that is there, or the best one."""

import torch

from ..errors import InvalidInput, first_line


def find_device(device: str | torch.device, otherwise: str) -> torch.device:
    """The device of this name, after a check that it can hold a tensor.

    Arguments:
        device: Its name, such as `cpu`, `cuda`, `cuda:1` or `mps`.
        otherwise: What to do where it is not available: a sentence.

    Raises:
        InvalidInput: there is no such device here.
    """
    try:
        wanted = torch.device(device)
        torch.zeros(1, device=wanted)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise InvalidInput(
            f"The device '{device}' is not available ({first_line(error)}). {otherwise}"
        ) from None
    return wanted


def choose_device(device: str | None) -> torch.device:
    """The device of this name, or by default a GPU if torch can use one, and else the CPU.

    Raises:
        InvalidInput: there is no such device here.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    otherwise = "Use cpu, cuda or mps, or leave it out for the best one available."
    found = find_device(device, otherwise)
    if found.type not in ("cpu", "cuda", "mps"):
        raise InvalidInput(f"Nothing can be trained on the device '{device}'. {otherwise}")
    return found
