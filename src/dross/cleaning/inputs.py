"""From what the user points at to tensors; and checks that nothing replaces the input."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._io import digest_file, digest_files
from .._text import check_encodable
from ..errors import InvalidInput
from .features import read_feature_file, standardize
from .images import ImageEncoder, list_pictures, read_folder, read_listing
from .memory import is_given_file, name_places, pixels_of
from .modality import (
    MIN_INSTANCES,
    PARTS,
    Encoder,
    Frame,
    PreparedData,
    Source,
    assemble,
    check_learnable,
    join_parts,
    rare_classes,
)
from .tables import (
    Column,
    Reading,
    TableEncoder,
    check_cells,
    describe_columns,
    infer_columns,
    read_table,
)
from .text import TextEncoder
from .user_code import prepare_from_python

# load ---


_SMALL_TEST_PART = 100
_MAX_SEED = 1 << 63  # torch takes no larger ones
_OPTIONAL = ("separator", "na", "given", "features", "backbone")  # as a project keeps a request


@dataclass(frozen=True)
class Request:
    """What the user asked for: everything that decides which data are read, and nothing else."""

    data: str
    label: str | None = None
    text: str | None = None  # the column that holds the text
    images: str | None = None  # the column that holds paths of pictures
    validation: str | None = None
    test: str | None = None
    task: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    separator: str | None = None  # between the cells of a CSV file
    na: list[str] | None = None  # cells that count as missing, besides empty ones
    given: dict[str, Any] | None = None  # how the data came, if they came from Python's memory
    features: str | None = None  # a file of features to learn from instead
    backbone: str | None = None  # the pretrained model that makes features; None: the usual one
    encoder: int = 1  # the version of how content becomes numbers; a project keeps its own

    def __post_init__(self):
        if not 0 <= self.seed < _MAX_SEED:
            raise InvalidInput(
                f"A seed is a whole number from 0 to {_MAX_SEED - 1}, not {self.seed}."
            )
        if self.features is not None and self.backbone not in (None, "none"):
            raise InvalidInput(
                "Pass `features` or `backbone`, not both: each determines what models learn."
            )
        for path in (self.data, self.validation, self.test, self.features):
            if path is not None:
                check_encodable(path)

    @property
    def reading(self) -> Reading:
        """How tables are read."""
        return Reading(self.separator, self.na)

    def to_json(self) -> dict[str, Any]:
        """The request as a project keeps it. Options that older versions did not know are left out
        unless they are given.
        """
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in _OPTIONAL or value is not None
        }

    def located(self, folder: Path) -> "Request":
        """The same with the paths of data from Python's memory, which a project's folder keeps."""
        if self.given is None:
            return self
        names = [name for name in ("data", *PARTS[1:]) if is_given_file(getattr(self, name))]
        paths = {name: str(folder.resolve() / getattr(self, name)) for name in names}
        return replace(self, **paths)


def prepare(request: Request) -> PreparedData:
    """Read and encode a data set.

    Categories, medians and scales are those of the training part.
    """
    path = Path(request.data)
    if ":" in request.data and not os.path.exists(path):
        data = prepare_from_python(request.data, request.label or "label")
        return _learn_own_features(data, request)
    whole = _read(path, request)
    check_learnable(whole)
    whole, parts = _join(whole, request)
    notes = [*whole.notes, *_check_parts(whole, {part: len(ids) for part, ids in parts.items()})]
    train = whole.take(parts["train"]).content
    columns = infer_columns(train, request.columns) if whole.kind == "table" else []
    check_cells(whole, columns)
    about: dict[str, Any] = {
        "columns": columns,
        "notes": notes + describe_columns(columns),
        "root": picture_root(path) if whole.kind == "images" else None,
    }
    if request.features is not None:  # no encoder is needed, and none may refuse the content
        nothing = {part: torch.zeros(len(ids), 0) for part, ids in parts.items()}
        return _learn_own_features(assemble(whole, parts, nothing, **about), request)
    encoder = _fit_encoder(whole.kind, train, columns, request)
    if isinstance(encoder, TableEncoder) and encoder.skewed:
        about["notes"].append(
            f"Highly skewed, and so on a logarithmic scale: {', '.join(encoder.skewed)}."
        )
    x = {part: encoder(whole.take(ids).content) for part, ids in parts.items() if len(ids)}
    nothing = x["train"][:0]
    x = {part: x.get(part, nothing) for part in PARTS}
    return assemble(whole, parts, x, encoder=encoder, **about)


def _join(whole: Source, request: Request) -> tuple[Source, dict[str, np.ndarray]]:
    """Join a source with the parts that have files of their own; other parts stay empty.

    Without such files the whole source is the training part: every instance is examined.

    Returns:
        All instances, and the ids of each part.
    """
    files = {"validation": request.validation, "test": request.test}
    sources = {"train": whole}
    for part, file in files.items():
        if file is not None:
            sources[part] = _read_like(whole, Path(file), request)
    joined, parts = join_parts(sources)
    nothing = np.zeros(0, dtype=np.int64)
    return joined, {part: parts.get(part, nothing) for part in PARTS}


def _learn_own_features(data: PreparedData, request: Request) -> PreparedData:
    """The same data with the features that the user has brought, if any, as inputs."""
    if request.features is None:
        return data
    left_out = " ".join(note for note in data.source.notes if "left out" in note)
    rows = read_feature_file(Path(request.features), len(data.source), left_out)
    inputs = standardize(torch.from_numpy(rows), data.parts["train"])
    x = {part: inputs[torch.from_numpy(ids)] for part, ids in data.parts.items()}
    note = f"Models learn the {rows.shape[1]:,} features in {Path(request.features).name}."
    return replace(data, x=x, encoder=None, notes=[*data.notes, note])


def _read(path: Path, request: Request, task: str | None = None) -> Source:
    """Read a folder of pictures, a table that lists pictures, a table, or texts."""
    source = _read_file(path, request, task)
    if request.given is not None and path.suffix == ".parquet":
        source = replace(source, names=name_places(source.names))
    return source


def _read_file(path: Path, request: Request, task: str | None) -> Source:
    if os.path.isdir(path):
        return read_folder(path)
    if request.label is None:
        raise InvalidInput("Which column is to be predicted? Pass its name as `label`.")
    if request.images is not None:
        return read_listing(path, request.images, request.label, request.reading)
    return read_table(
        path,
        request.label,
        task=task or request.task,
        text=request.text,
        columns=request.columns,
        reading=request.reading,
    )


def _read_like(train: Source, path: Path, request: Request) -> Source:
    """Read a validation or test file; its columns and classes must be those of training."""
    source = _read(path, request, task=train.task)
    unknown = sorted(set(source.classes) - set(train.classes))
    if unknown:
        raise InvalidInput(
            f"{path} has classes that {train.label} does not have in training: "
            f"{', '.join(unknown[:5])}. Correct them, or leave them out."
        )
    present = source.content.columns
    missing = [str(name) for name in train.content.columns if name not in present]
    if missing:
        raise InvalidInput(f"{path} lacks the columns {', '.join(missing[:5])}. Add them.")
    if source.kind == "images":  # relative paths are relative to the training pictures
        root = picture_root(path).resolve()
        absolute = [str(root / name) for name in source.content["path"]]
        source = replace(source, content=source.content.assign(path=absolute))
    return source


def picture_root(path: Path) -> Path:
    """The folder that paths of pictures are relative to."""
    return path if os.path.isdir(path) else path.parent


def _check_parts(source: Source, sizes: dict[str, int]) -> list[str]:
    """Refuse parts that are too small; return notes about what is merely scarce."""
    notes = []
    if rare := rare_classes(source):
        notes.append(
            f"Classes with fewer than 5 instances, too few to examine their labels: "
            f"{', '.join(rare[:5])}."
        )
    for part in PARTS:
        if 0 < sizes[part] < MIN_INSTANCES // 5:
            raise InvalidInput(
                f"The {part} part has only {sizes[part]} instances. Give more data, or a larger "
                "file for it."
            )
    if 0 < sizes["test"] < _SMALL_TEST_PART:
        notes.append(
            f"The test part has {sizes['test']} instances: only a large improvement can be proven "
            "on so few."
        )
    return notes


def _fit_encoder(kind: str, train: Frame, columns: list[Column], request: Request) -> Encoder:
    """Fit an encoder on the training part."""
    if kind == "text":
        return TextEncoder(train)
    if kind == "images":
        return ImageEncoder(train, picture_root(Path(request.data)), request.encoder)
    return TableEncoder(train, columns, request.encoder)


# input_files ---


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
