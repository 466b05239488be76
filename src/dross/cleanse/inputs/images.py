"""Pictures: a folder per class, or a table of file names and labels."""

from pathlib import Path

import numpy as np
import torch

from ...errors import BadInput
from ...support.name_hints import check_name
from .source import Frame, Source, import_pandas
from .tables import read_frame, row_names

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
_RESIZED = 32  # pixels on a side, for pictures that are large or differ in size
_MAX_SIDE = 40  # pictures of one size up to this one are learnt as they are
_MIN_SIDE = 4
_THUMBNAIL_SIDE = 160
_MAX_SHARE_BROKEN = 0.1
_PICTURES_INSPECTED = 200  # to find out whether they are grey and of one size
_PICTURES_MEASURED = 2000  # for the mean and the deviation of the pixels


def list_pictures(folder: Path) -> list[Path]:
    """Every picture under a folder, sorted by path."""
    return sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    )


def read_folder(folder: Path) -> Source:
    """Read a folder that has one folder of pictures per class."""
    if not folder.is_dir():
        raise BadInput(f"There is no folder {folder}.")
    files = list_pictures(folder)
    if not files:
        raise BadInput(
            f"There are no pictures under {folder}. Expected one folder per class with "
            f"{', '.join(sorted(SUFFIXES))} files in it."
        )
    loose = [path for path in files if path.parent == folder]
    if loose:
        raise BadInput(
            f"{loose[0].name} lies directly in {folder}. Put the pictures of each class into a "
            "folder with its name, or pass a CSV of paths and labels with --images and --label."
        )
    names = [path.relative_to(folder).as_posix() for path in files]
    labels = np.array([name.split("/")[0] for name in names], dtype=object)
    content = import_pandas().DataFrame({"path": names})
    return _drop_broken(Source("images", "class", content, labels, names), folder)


def read_listing(table: Path, paths: str, label: str) -> Source:
    """Read the pictures that a table lists.

    Arguments:
        table: A CSV, TSV or Parquet file.
        paths: The column of file names, relative to the folder of the table.
        label: The column of classes.
    """
    frame, notes = read_frame(table)
    for column in (paths, label):
        check_name("column", column, map(str, frame.columns))
    whole = frame[[paths, label]].notna().all(axis=1)
    if not whole.all():
        notes.append(f"{int((~whole).sum())} rows lack a path or a label and are left out.")
    names = row_names(np.flatnonzero(whole.to_numpy()))
    frame = frame[whole]
    labels = frame[label].astype(str).str.strip().to_numpy(dtype=object)
    content = import_pandas().DataFrame({"path": frame[paths].tolist()})
    return _drop_broken(Source("images", label, content, labels, names, notes), table.parent)


def _drop_broken(source: Source, root: Path) -> Source:
    """Leave out pictures that cannot be opened.

    Many of them mean that something else is wrong, and are refused.
    """
    paths = source.content["path"].tolist()
    broken = [k for k, name in enumerate(paths) if _open(root / name) is None]
    if not broken:
        return source
    examples = ", ".join(paths[k] for k in broken[:3])
    if len(broken) > _MAX_SHARE_BROKEN * len(source):
        raise BadInput(
            f"{len(broken)} of {len(source)} pictures cannot be opened ({examples} ...). "
            "Are they pictures, and are the paths right?"
        )
    more = " ..." if len(broken) > 3 else ""
    source.notes.append(
        f"{len(broken)} pictures cannot be opened and are left out: {examples}{more}."
    )
    return source.take(np.setdiff1d(np.arange(len(source)), broken))


def _open(path: Path) -> np.ndarray | None:
    """The pixels, uint8 [H, W, 3]; None if the file is broken or missing."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def load_thumbnail(path: Path) -> np.ndarray:
    """The picture in a size that a page can show, uint8 [H, W, 3]."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
        return np.asarray(small)


class ImageEncoder:
    """Turns pictures into float32 [N, C, H, W], standardized by the training part.

    Grey pictures have one channel. Large pictures, and those of different sizes, are resized.
    """

    def __init__(self, content: Frame, root: Path):
        self.root = root
        first = _open(root / content["path"].iloc[0])
        inspected = content["path"].iloc[:: max(1, len(content) // _PICTURES_INSPECTED)]
        opened = [_open(root / name) for name in inspected]
        sample = [picture for picture in opened if picture is not None]
        assert first is not None and sample
        self.grey = all(_is_grey(picture) for picture in sample)
        same_size = len({picture.shape for picture in sample}) == 1
        height, width = first.shape[:2]
        fits = max(height, width) <= _MAX_SIDE and min(height, width) >= _MIN_SIDE
        self.size = (height, width) if same_size and fits else (_RESIZED, _RESIZED)
        pixels = self._pixels(content.iloc[:: max(1, len(content) // _PICTURES_MEASURED)])
        self.mean = pixels.mean((0, 2, 3), keepdim=True)
        self.deviation = pixels.std((0, 2, 3), keepdim=True).clamp_min(1e-3)

    def __call__(self, content: Frame) -> torch.Tensor:
        """Open, resize and standardize pictures."""
        return (self._pixels(content) - self.mean) / self.deviation

    def _pixels(self, content: Frame) -> torch.Tensor:
        """Pixels between 0 and 1, float32 [N, C, H, W]."""
        pictures = [self._load(self.root / name) for name in content["path"]]
        return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255

    def _load(self, path: Path) -> np.ndarray:
        """One picture in the common size, uint8 [H, W, C]."""
        from PIL import Image

        picture = _open(path)
        if picture is None:
            raise BadInput(f"{path} could be opened before and cannot be now. Was it moved?")
        if picture.shape[:2] != self.size:
            height, width = self.size
            resized = Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR)
            picture = np.asarray(resized)
        return picture[..., :1] if self.grey else picture


def _is_grey(picture: np.ndarray) -> bool:
    red, green, blue = picture[..., 0], picture[..., 1], picture[..., 2]
    return bool((red == green).all() and (green == blue).all())
