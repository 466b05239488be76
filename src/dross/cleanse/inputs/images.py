"""Pictures: a folder per class, or a table of file names and labels."""

from pathlib import Path

import numpy as np
import torch

from ...errors import BadInput
from ...support.name_hints import check_name
from .frames import Frame, library
from .source import Source
from .tables import read_frame

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
_LARGEST = 32  # pixels; larger pictures are made smaller before the network sees them
_SHOWN = 160
_MOST_BROKEN = 0.1


def read_folder(folder: Path) -> Source:
    """One folder per class."""
    pandas = library()

    if not folder.is_dir():
        raise BadInput(f"There is no folder {folder}.")
    files = sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    )
    if not files:
        raise BadInput(
            f"There are no pictures under {folder}. Expected one folder per class with {', '.join(sorted(SUFFIXES))} files in it."
        )
    flat = [path for path in files if path.parent == folder]
    if flat:
        raise BadInput(
            f"{flat[0].name} lies directly in {folder}. Put the pictures of each class into a folder with its name, or pass a CSV of paths and labels "
            "with --images and --label."
        )
    names = [path.relative_to(folder).as_posix() for path in files]
    labels = np.array([name.split("/")[0] for name in names], dtype=object)
    return _checked(
        Source("images", "class", pandas.DataFrame({"path": names}), labels, names), folder
    )


def read_table(table: Path, paths: str, label: str) -> Source:
    """A table with a column of file names, as seen from the table's folder, and a column of labels."""
    pandas = library()

    frame, notes = read_frame(table)
    for column in (paths, label):
        check_name("column", column, map(str, frame.columns))
    whole = frame[[paths, label]].notna().all(axis=1)
    if not whole.all():
        notes.append(f"{int((~whole).sum())} rows lack a path or a label and are left out.")
    names = [f"row {k + 2}" for k in np.flatnonzero(whole.to_numpy())]
    frame = frame[whole]
    labels = frame[label].astype(str).str.strip().to_numpy(dtype=object)
    return _checked(
        Source(
            "images", label, pandas.DataFrame({"path": frame[paths].tolist()}), labels, names, notes
        ),
        table.parent,
    )


def _checked(source: Source, root: Path) -> Source:
    """Leave pictures out that cannot be opened; many of them mean that something else is wrong."""
    paths = source.content["path"].tolist()
    broken = [k for k, name in enumerate(paths) if _opened(root / name) is None]
    if not broken:
        return source
    shown = ", ".join(paths[k] for k in broken[:3])
    if len(broken) > _MOST_BROKEN * len(source):
        raise BadInput(
            f"{len(broken)} of {len(source)} pictures cannot be opened ({shown} ...). Are they pictures, and are the paths right?"
        )
    kept = np.setdiff1d(np.arange(len(source)), broken)
    source.notes.append(
        f"{len(broken)} pictures cannot be opened and are left out: {shown}{' ...' if len(broken) > 3 else ''}."
    )
    return source.take(kept)


def _opened(path: Path) -> np.ndarray | None:
    """uint8 [H, W, 3], or nothing for a file that is broken or missing."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def shown(path: Path) -> np.ndarray:
    """The picture in a size that a page can show."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((_SHOWN, _SHOWN))
        return np.asarray(small)


class ImageEncoder:
    """float32 [N, C, H, W], standardized by the training part; grey pictures have one channel."""

    def __init__(self, content: Frame, root: Path):
        self.root = root
        first = _opened(root / content["path"].iloc[0])
        sample = [
            _opened(root / name) for name in content["path"].iloc[:: max(1, len(content) // 200)]
        ]
        seen = [picture for picture in sample if picture is not None]
        assert first is not None and seen
        self.grey = all(
            (p[..., 0] == p[..., 1]).all() and (p[..., 1] == p[..., 2]).all() for p in seen
        )
        same = len({picture.shape for picture in seen}) == 1
        height, width = first.shape[:2]
        fits = same and max(height, width) <= _LARGEST + 8 and min(height, width) >= 4
        self.size = (height, width) if fits else (_LARGEST, _LARGEST)
        pixels = self._pixels(content.iloc[:: max(1, len(content) // 2000)])
        self.mean, self.deviation = (
            pixels.mean((0, 2, 3), keepdim=True),
            pixels.std((0, 2, 3), keepdim=True).clamp_min(1e-3),
        )

    def __call__(self, content: Frame) -> torch.Tensor:
        return (self._pixels(content) - self.mean) / self.deviation

    def _pixels(self, content: Frame) -> torch.Tensor:
        from PIL import Image

        pictures = []
        for name in content["path"]:
            picture = _opened(self.root / name)
            if picture is None:
                raise BadInput(
                    f"{self.root / name} could be opened before and cannot be now. Was it moved?"
                )
            if picture.shape[:2] != self.size:
                height, width = self.size
                picture = np.asarray(
                    Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR)
                )
            pictures.append(picture[..., :1] if self.grey else picture)
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255
