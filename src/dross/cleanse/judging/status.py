"""What a judgement leaves on the disk while it runs, and the name of its verdict."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import StorageFailed
from ...support.atomic_files import staged_file, write_json

_STATUS = "judging.json"


@contextmanager
def show_progress(folder: Path, seeds: int) -> Iterator[Callable[..., None]]:
    """Inside, judging.json tells the page how far the judgement is."""
    status = folder / _STATUS

    def tell(done: int, stage: str = "training with and without them") -> None:
        write_json(status, {"done": done, "of": seeds, "stage": stage})

    try:
        tell(0)
        yield tell
    finally:
        with suppress(OSError):
            status.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Fail now rather than after an hour of training; raises StorageFailed."""
    try:
        with staged_file(folder / _STATUS, b""):
            pass
    except OSError as error:
        raise StorageFailed(
            f"{folder} cannot be written ({error.strerror or error}), and the verdict goes there. "
            "Copy the folder to a place that you may write to, and judge it there."
        ) from error


def new_verdict_file(folder: Path) -> Path:
    """A name with the current time, which no other process uses."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    taken = len(list(folder.glob(f"{stamp}*.json")))
    return folder / f"{stamp}-{taken:02d}-{os.getpid()}.json"
