"""The files that a project was made from: their digests, and checks that nothing replaces them."""

from collections.abc import Mapping
from pathlib import Path

from ..errors import InvalidInput
from ..support.file_digests import digest_file, digest_files
from .images import list_pictures
from .load import Request
from .memory_files import pixels_of
from .split_dataset import PreparedData

_GIVEN_AS = ("data", "validation", "test", "features")
_PICTURES = "pictures"
_CHOOSE = "Choose another folder."


def input_paths(request: Request) -> dict[str, Path]:
    """{"data": its path, ...} of every file and folder that the user gave and that is there."""
    given = {name: getattr(request, name, None) for name in _GIVEN_AS}
    paths = {name: Path(path) for name, path in given.items() if path is not None}
    if request.given is not None:
        parts = {name: path for name, path in paths.items() if name != "features"}
        paths |= {f"{name} pixels": pixels_of(path) for name, path in parts.items()}
    return {name: path for name, path in paths.items() if path.exists()}


def digest_inputs(request: Request) -> dict[str, str]:
    """A digest of everything in each input file or folder, read or ignored."""
    return {name: _digest(path) for name, path in input_paths(request).items()}


def digest_listed_pictures(request: Request, prepared: PreparedData) -> dict[str, str]:
    """A digest of the pictures that a table lists; {} where there is no such table."""
    in_arrays = request.given is not None and "pixels" in request.given
    if request.images is None or prepared.root is None or in_arrays:
        return {}
    names = map(str, prepared.source.content["path"])
    return {_PICTURES: digest_files(prepared.root, names)}


def _digest(path: Path) -> str:
    if not path.is_dir():
        return digest_file(path)
    return digest_files(path, [file.relative_to(path).as_posix() for file in list_pictures(path)])


def check_output_file(output: Path, inputs: Mapping[str, Path]) -> None:
    """Refuse a file that is an input, by whatever name or link, or lies in an input folder.

    Raises:
        InvalidInput: it is.
    """
    for name, path in inputs.items():
        if _is_same(output, path):
            what = "the input itself" if name == "data" else f"the input given as {name}"
            raise InvalidInput(f"{output} is {what}, which is never touched. Choose another name.")
        if path.is_dir() and _lies_in(output, path):
            raise InvalidInput(
                f"{output} lies in {path}, an input, which is never touched. {_CHOOSE}"
            )


def check_output_folder(folder: Path, protected: Mapping[str, Path]) -> None:
    """Refuse a folder that is, contains, or lies in something that is never touched.

    Arguments:
        folder: Where something is going to be written.
        protected: The paths of inputs, or of a project, by what they are.

    Raises:
        InvalidInput: it does.
    """
    for name, path in protected.items():
        what = f"{path} ({name})"
        if _is_same(folder, path):
            raise InvalidInput(f"{folder} is {what} itself, which is never touched. {_CHOOSE}")
        if _lies_in(path, folder):
            raise InvalidInput(f"{folder} contains {what}, which is never touched. {_CHOOSE}")
        if _lies_in(folder, path):
            raise InvalidInput(f"{folder} lies in {what}, which is never touched. {_CHOOSE}")


def _is_same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


def _lies_in(path: Path, folder: Path) -> bool:
    """Whether a path is below a folder, links resolved."""
    return any(_is_same(parent, folder) for parent in path.resolve().parents)
