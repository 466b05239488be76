"""Images: a folder per class, or a table of file names and labels; and copies of folders."""

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas
import torch
from PIL import ExifTags, Image

from .._checks import check_file_name
from .._io import WrongKind, digest_bytes, join_digests, read_file, sync_folder
from .._text import printable, say_count
from ..errors import DrossError, InvalidInput
from .files import split_suffix
from .formats import FORMATS, Reading
from .memory import is_in_array, read_image
from .modality import Frame, Modality, RowEdits, Source
from .tables import as_text, has_content, read_frame

# Only what the suffixes stand for: Pillow knows formats whose reading starts other programs.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
_RESIZED = 32  # pixels on a side, for images that are large or differ in size
_MAX_SIDE = 40  # images of one size up to this one are used as they are
_MIN_SIDE = 4
_THUMBNAIL_SIDE = 160
_MAX_SHARE_BROKEN = 0.1
_INSPECTED = 200  # images, to find out whether they are gray and of one size
_NO_FILE = "no file"  # in place of a digest
_MEASURED = 2000  # images, for the mean and the deviation of the pixels
_TURNS = {  # EXIF orientation -> what makes the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _load_item(content: Frame, root: Path | None) -> Callable[[int], Any]:
    assert root is not None
    paths = content["path"].tolist()
    return lambda k: load_image(root / paths[k])


IMAGES = Modality(
    "images",
    labels="annotated",
    as_read="pixels",
    backbone="efficientnet-lite0",
    has_images=True,
    load_item=_load_item,
)


def list_images(folder: Path) -> list[Path]:
    """Every image under a folder, sorted by path. Links are followed."""
    return [path for path in list_files(folder) if path.suffix.lower() in SUFFIXES]


def list_files(folder: Path) -> list[Path]:
    """Every file under a folder, sorted by path. Links are followed; a broken link is a file.

    A folder that is reached in two ways is refused: its images would have two classes.
    """
    files, reached = [], {}
    for place, _, names in os.walk(folder, onerror=_refuse_folder, followlinks=True):
        real = os.path.realpath(place)
        if real in reached:
            raise InvalidInput(
                f"{printable(place)} and {printable(reached[real])} are the same folder, reached "
                "through a link: the same images would be read twice. Remove the link."
            )
        reached[real] = place
        files += [Path(place, name) for name in names]
    for path in files:
        check_file_name(str(path))
    return sorted(files)


def digest_images(folder: Path) -> str:
    """One digest of every image under a folder; raises DrossError where one cannot be read."""
    digests = {}
    for path in list_images(folder):
        try:
            digests[path.relative_to(folder).as_posix()] = _digest_image(_read_if_regular(path))
        except OSError as error:
            raise DrossError(f"{path} cannot be read: {error.strerror or error}.") from error
    return join_digests(digests)


def _read_if_regular(path: Path) -> bytes | None:
    """The bytes of an image; None for a broken link, a pipe and the like, which nobody can open."""
    try:
        return read_file(path)
    except (FileNotFoundError, WrongKind):
        return None


def _digest_image(raw: bytes | None) -> str:
    return _NO_FILE if raw is None else digest_bytes(raw)


def digest_image(path: Path) -> str:
    """A digest of one image: of its file, or of its pixels where it lies in an array."""
    if is_in_array(path):
        return digest_bytes(load_image(path).tobytes())
    return _digest_image(_read_if_regular(path))


def _refuse_folder(error: OSError) -> None:
    raise InvalidInput(
        f"{printable(str(error.filename))} cannot be read: {error.strerror}. Make it readable, or "
        "move it out of the folder."
    ) from None


def read_folder(folder: Path) -> Source:
    """Read a folder that has one folder of images per class."""
    everything = list_files(folder)
    files = [path for path in everything if path.suffix.lower() in SUFFIXES]
    tables = [path for path in everything if split_suffix(path.name)[0] in FORMATS]
    if not files and tables:
        raise InvalidInput(
            f"{folder} contains no images, but it does contain "
            f"{say_count(len(tables), 'table')}, such as {tables[0]}. Pass one of them."
        )
    if not files:
        raise InvalidInput(
            f"There are no images under {folder}. Expected one folder per class with "
            f"{', '.join(sorted(SUFFIXES))} files in it."
        )
    loose = [path for path in files if path.parent == folder]
    if loose:
        raise InvalidInput(
            f"{loose[0].name} is directly in {folder}. Put the images of each class into a folder "
            "named after the class, or pass a CSV of paths and labels with `images` and `label`."
        )
    names = [path.relative_to(folder).as_posix() for path in files]
    labels = np.array([name.split("/")[0] for name in names], dtype=object)
    notes = []
    others = [path for path in everything if path.suffix.lower() not in SUFFIXES]
    if others:
        left_out = ("file is not an image and is", "files are not images and are")
        examples = _examples([path.relative_to(folder).as_posix() for path in others])
        notes.append(f"{say_count(len(others), *left_out)} left out: {examples}.")
    classes = set(labels)
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if empty := [name for name in folders if name not in classes]:
        notes.append(
            f"These folders contain no images, so they are not classes: {_examples(empty)}."
        )
    content = pandas.DataFrame({"path": names})
    rows = np.arange(len(names))
    return _drop_broken(Source(IMAGES, "class", content, labels, rows, "", notes), folder)


def _examples(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")


def read_listing(
    table: Path, paths: str, label: str, reading: Reading, others: Sequence[str] = ()
) -> tuple[Source, Frame]:
    """Read the images that a table lists.

    Arguments:
        table: The file of the table, in one of FORMATS.
        paths: The column of file names, relative to the folder of the table.
        label: The column of classes.
        reading: How to read the table.
        others: Other columns that must be there.

    Returns:
        The images that can be opened, and all columns of their rows.
    """
    frame, notes = read_frame(table, reading=reading, needed=[label, paths, *others])
    whole = has_content(frame[paths]) & has_content(frame[label])
    if not whole.all():
        lacking = ("row lacks a path or a label and is", "rows lack a path or a label and are")
        notes.append(f"{say_count(int((~whole).sum()), *lacking)} left out.")
    frame = frame[whole]
    labels = as_text(frame[label]).str.strip().to_numpy(dtype=object)
    content = pandas.DataFrame({"path": as_text(frame[paths]).tolist()})
    rows = frame.index.to_numpy()
    source = _drop_broken(Source(IMAGES, label, content, labels, rows, notes=notes), table.parent)
    return source, frame.loc[source.rows]


def _drop_broken(source: Source, root: Path) -> Source:
    """Leave out images that cannot be opened.

    Many of them mean that something else is wrong, and are refused.
    """
    paths = source.content["path"].tolist()
    opens = np.array([_open(root / name) is not None for name in paths], dtype=bool)
    broken = [paths[k] for k in np.flatnonzero(~opens)]
    if len(broken) > _MAX_SHARE_BROKEN * len(source):
        raise InvalidInput(
            f"{len(broken)} of {len(source)} images cannot be opened ({_examples(broken)}). Check "
            "that they are images and that the paths are correct."
        )
    if broken:
        left_out = ("image cannot be opened and is", "images cannot be opened and are")
        count = say_count(len(broken), *left_out)
        source.notes.append(f"{count} left out: {_examples(broken)}.")
    return source.take(np.flatnonzero(opens))


def _open(path: Path) -> np.ndarray | None:
    """The pixels between 0 and 255, [H, W, 3]; None if the file is broken or missing.

    They are uint8, or float32 where an image has more than 256 shades: gray ones of 16 bits, or
    floating ones between 0 and 1. The EXIF orientation is applied. Every image of a file is decoded
    here, so that models are trained on what people see.
    """
    if is_in_array(path):
        return read_image(path)
    if not os.path.isfile(path):  # opening a pipe would wait for ever
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=_FORMATS) as file:
                image = _turn_upright(file)
                if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
                    return np.asarray(image.convert("RGB"))
                shades = np.asarray(image, dtype=np.float32)
                white = 1.0 if image.mode == "F" else 65535.0
    except Exception:  # a damaged image can fail anywhere inside its decoder
        return None
    if not (shades.min() >= 0 and shades.max() <= white):
        raise InvalidInput(
            f"{path} has pixel values from {shades.min():g} to {shades.max():g}, but dross reads "
            f"only values from 0 (black) to {white:g} (white). Save the images with 8 or 16 bits "
            "per channel."
        )
    return np.repeat((shades * (255 / white))[..., None], 3, axis=2)


def _turn_upright(image: Image.Image) -> Image.Image:
    """The image in the orientation that its EXIF data name; as it is stored if they are damaged."""
    image.load()  # what fails here is a damaged image
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF data can fail anywhere as well
        return image
    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


def _open_again(path: Path) -> np.ndarray:
    pixels = _open(path)
    if pixels is None:
        raise InvalidInput(
            f"{path} could be opened earlier, but cannot be opened now. Check whether it was moved."
        )
    return pixels


def load_image(path: Path) -> Any:
    """The image in its own size, a PIL.Image in RGB."""
    return Image.fromarray(np.round(_open_again(path)).astype(np.uint8))


def load_thumbnail(path: Path) -> np.ndarray:
    """The image in a size that a page can show, uint8 [H, W, 3]."""
    small = load_image(path)
    small.thumbnail((_THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    return np.asarray(small)


class ImageEncoder:
    """Turns images into float32 [N, C, H, W], standardized by the training set.

    Gray images have one channel. Large images, and those of different sizes, are resized.
    """

    def __init__(self, content: Frame, root: Path):
        self.root = root
        inspected = content["path"].iloc[:: max(1, len(content) // _INSPECTED)]
        self.gray = True
        sizes = set()
        for name in inspected:  # one at a time: 200 photographs do not fit into memory
            image = _open_again(root / name)
            self.gray = self.gray and bool((image == image[..., :1]).all())
            sizes.add(image.shape[:2])
        self.shortest_side = min(map(min, sizes))
        height, width = max(sizes)
        fits = max(height, width) <= _MAX_SIDE and min(height, width) >= _MIN_SIDE
        self.size = (height, width) if len(sizes) == 1 and fits else (_RESIZED, _RESIZED)
        pixels = self._pixels(content.iloc[:: max(1, len(content) // _MEASURED)])
        if torch.equal(pixels, pixels[:1].expand_as(pixels)):
            raise InvalidInput(
                f"All {len(pixels):,} training images that were inspected are identical, so there "
                "is nothing to learn from them. Check that they are the right images."
            )
        # by numpy: torch's rounding depends on the number of its threads, and data would look changed
        options: dict[str, Any] = {"axis": (0, 2, 3), "keepdims": True, "dtype": np.float64}
        mean = np.mean(pixels.numpy(), **options)
        deviation = np.std(pixels.numpy(), ddof=1, **options)
        self.mean = torch.from_numpy(mean.astype(np.float32))
        self.deviation = torch.from_numpy(deviation.astype(np.float32)).clamp_min(1e-3)

    def __call__(self, content: Frame) -> torch.Tensor:
        """Open, resize and standardize images."""
        return (self._pixels(content) - self.mean) / self.deviation

    def _pixels(self, content: Frame) -> torch.Tensor:
        """Pixels between 0 and 1, float32 [N, C, H, W]."""
        images = [self._load(self.root / name) for name in content["path"]]
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255

    def _load(self, path: Path) -> np.ndarray:
        """One image in the common size, uint8 or float32 [H, W, C]."""
        image = _open_again(path)
        if image.shape[:2] != self.size:
            height, width = self.size
            whole = image if image.dtype == np.uint8 else image[..., 0]  # gray floats
            resized = Image.fromarray(whole).resize((width, height), Image.Resampling.BILINEAR)
            image = np.asarray(resized)
            if image.ndim == 2:
                image = np.repeat(image[..., None], 3, axis=2)
        return image[..., :1] if self.gray else image


# --- copies of folders ----------------------------------------------------------------------------


def copy_images(source: Path, to: Path, edits: RowEdits, *, confirm: Callable[[str], None]) -> int:
    """Copy a folder of images into a new one, which is complete when it appears.

    It is made under another name and then renamed. Broken links, pipes and devices are left out.

    Arguments:
        source: The folder of the originals; row k is the k-th image in it.
        to: The copy, which does not exist yet.
        edits: What to change.
        confirm: Called with the digest of all originals before the copy appears; what it raises
            ends the copy.

    Returns:
        How many images the copy has.

    Raises:
        InvalidInput: a label points outside the folder.
        OSError: the disk is full, or an image cannot be read.
    """
    names = [path.relative_to(source).as_posix() for path in list_images(source)]
    targets = place_images(names, edits)
    unfinished = to.with_name(f".{to.name}.dross-partial")
    for target in targets.values():
        _check_inside(unfinished, target)
    shutil.rmtree(unfinished, ignore_errors=True)  # of a killed process: nobody else has the name
    try:
        unfinished.mkdir()  # not in a link of this name
        digests = {}
        for name in names:
            raw = _read_if_regular(source / name)
            digests[name] = _digest_image(raw)
            if raw is None:
                targets.pop(name, None)
            elif name in targets:
                _write_image(raw, unfinished / targets[name])
                shutil.copystat(source / name, unfinished / targets[name])
        for place in {unfinished, *((unfinished / name).parent for name in targets.values())}:
            sync_folder(place)
        confirm(join_digests(digests))
        unfinished.rename(to)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    sync_folder(to.parent)
    return len(targets)


def place_images(names: Sequence[str], edits: RowEdits) -> dict[str, str]:
    """{name in the input: name in the copy}.

    An image that keeps its class keeps its name; a relabeled one gets a free name in its new
    class.
    """
    kept = {row: name for row, name in enumerate(names) if row not in edits.removed}
    targets = {name: name for row, name in kept.items() if row not in edits.relabeled}
    taken = set(targets.values())
    for row, name in kept.items():
        if row in edits.relabeled:
            candidates = _candidate_names(name, edits.relabeled[row], len(kept))
            targets[name] = next(free for free in candidates if free not in taken)
            taken.add(targets[name])
    return targets


def _candidate_names(name: str, label: str, count: int) -> Iterator[str]:
    """Its own name in the folder of its new label, then names that contain its old class."""
    path = Path(name)
    old = path.parts[0]
    yield f"{label}/{path.name}"
    yield f"{label}/{old}-{path.name}"
    for number in range(count):
        yield f"{label}/{old}-{number}-{path.name}"


def _check_inside(folder: Path, name: str) -> None:
    """Refuse a name that points outside the folder: labels come from files, and may be hostile."""
    plain = PurePosixPath(name)
    is_plain = str(plain) == name and not plain.is_absolute() and ".." not in plain.parts
    if not is_plain or len(plain.parts) < 2:
        raise InvalidInput(
            f"{name!r} points outside the folder {folder}. Nothing was written there."
        )


def _write_image(raw: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
