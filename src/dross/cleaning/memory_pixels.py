"""Pictures in an array on the disk, each by a path of its own: `data.npy/17`."""

from functools import lru_cache
from pathlib import Path

import numpy as np

_WHITE = 255.0
_CHANNELS = (1, 3, 4)


def read_picture(path: Path) -> np.ndarray | None:
    """The pixels between 0 and 255, [H, W, 3]; None if there is no such picture.

    They are uint8, or float32 where a grey picture has more than 256 shades.
    """
    try:
        stat = path.parent.stat()
        pictures, low, high = _open_array(path.parent, stat.st_mtime_ns, stat.st_size)
        picture = np.asarray(pictures[int(path.name)])
    except (OSError, ValueError, IndexError):
        return None
    if picture.dtype != np.uint8:
        picture = (picture.astype(np.float32) - low) * (_WHITE / (high - low))
    if picture.ndim == 3 and picture.shape[2] > 1:
        return np.round(picture[..., :3]).astype(np.uint8)
    return np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)


@lru_cache(maxsize=6)
def _open_array(path: Path, changed: int, size: int) -> tuple[np.ndarray, float, float]:
    """The array, and what is black and what is white in it. changed, size: of the file."""
    pictures = np.load(path, mmap_mode="r", allow_pickle=False)
    if pictures.dtype == np.uint8:
        return pictures, 0.0, _WHITE
    low, high = float(pictures.min()), float(pictures.max())
    for white in (1.0, _WHITE):  # the usual ranges
        if low >= 0 and high <= white:
            return pictures, 0.0, white
    return pictures, low, high


def find_layout(shape: tuple[int, ...], prefer_first: bool) -> str | None:
    """Where the channels of pictures are: none, last or first; None where it cannot be told.

    shape: [N, H, W], [N, H, W, C] or [N, C, H, W]; prefer_first: where both could be.
    """
    if len(shape) == 3:
        return "none"
    fitting = {"first": shape[1] in _CHANNELS, "last": shape[3] in _CHANNELS}
    order = ("first", "last") if prefer_first else ("last", "first")
    return next((layout for layout in order if fitting[layout]), None)
