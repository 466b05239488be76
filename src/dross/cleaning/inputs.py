"""Read the user's files as tensors, and check that nothing replaces the input."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from .._checks import check_file_name, check_whole
from .._io import digest_bytes, digest_file
from ..errors import InvalidInput
from ..tape.storage import is_url
from .chats import CHATS, suggest_chats
from .features import read_feature_file, standardize
from .files import Place, Url, find_place, is_folder, read_bytes
from .formats import Reading
from .images import IMAGES, ImageEncoder, digest_images, read_folder, read_listing
from .memory import DataTypes, is_stored_file, pixels_of
from .modality import (
    MIN_INSTANCES,
    PARTS,
    Modality,
    PreparedData,
    Series,
    Source,
    assemble,
    join_parts,
)
from .splits import (
    check_groups,
    read_times,
    split_newest,
    suggest_groups,
    warn_of_shared_groups,
)
from .tables import (
    TABLE,
    TableEncoder,
    as_text,
    check_cells,
    describe_columns,
    infer_columns,
    list_columns,
    list_names,
    read_table,
)
from .task import REGRESSION, check_size
from .text import TEXT, TextEncoder
from .user_code import CUSTOM, prepare_from_python

MODALITIES: dict[str, Modality] = {one.name: one for one in (TABLE, IMAGES, TEXT, CHATS, CUSTOM)}
OTHERS = (*PARTS[1:], "after")  # the files of a request besides `data`
_SMALL_TEST_PART = 100
_NAMES_SHOWN = 20
_MAX_SEED = 1 << 63  # torch takes no larger ones


@dataclass(frozen=True)
class Request:
    """Everything that decides which data is read, and nothing else."""

    data: str
    label: str | None = None
    text: str | None = None  # the column that holds the text
    images: str | None = None  # the column that holds paths of images
    validation: str | None = None
    test: str | None = None
    task: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    separator: str | None = None  # between the cells of a CSV file
    na: list[str] | None = None  # cells that count as missing, besides empty ones
    sheet: str | None = None  # of a workbook; by default the first
    memory: DataTypes | None = None  # the types of the data, if they came from Python's memory
    features: str | None = None  # a file of features to learn from instead
    backbone: str | None = None  # the pretrained model that makes features; None: the usual one
    group: str | None = None  # the column of rows that are held out together
    time: str | None = None  # the column by which the newest rows are the test set
    after: str | None = None  # the changed version of `data`, where two versions are compared
    key: str | None = None  # the column that identifies a row in both versions

    def __post_init__(self):
        if not 0 <= check_whole(self.seed, "seed") < _MAX_SEED:
            raise InvalidInput(
                f"A seed must be a whole number from 0 to {_MAX_SEED - 1}, not {self.seed}."
            )
        if self.features is not None and self.backbone not in (None, "none"):
            raise InvalidInput(
                "Pass `features` or `backbone`, not both: each determines the inputs of the models."
            )
        if self.time is not None and self.test is not None:
            raise InvalidInput(
                "Pass `time` or `test`, not both: with `time` the newest rows are the test set."
            )
        for path in (self.data, self.validation, self.test, self.features, self.after):
            if path is not None and not is_url(path):
                check_file_name(path)

    @property
    def is_code(self) -> bool:
        """Whether the data comes from a `module:function`."""
        is_path = is_url(self.data) or "\\" in self.data or os.path.exists(self.data)
        return ":" in self.data and not is_path

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of some columns; groups and keys are not learned from."""
        ignored = [name for name in (self.group, self.key) if name is not None]
        return {**dict.fromkeys(ignored, "ignore"), **self.columns}

    @property
    def reading(self) -> Reading:
        """How tables are read."""
        return Reading(self.separator, self.na, self.sheet, from_memory=self.memory is not None)

    def located(self, folder: Path) -> "Request":
        """The same with the paths of data from Python's memory, which a project's folder keeps."""
        if self.memory is None:
            return self
        names = [name for name in ("data", *OTHERS) if is_stored_file(getattr(self, name))]
        paths = {name: str(folder.resolve() / getattr(self, name)) for name in names}
        return replace(self, **paths)


def prepare(request: Request) -> PreparedData:
    """Read and encode a dataset.

    Categories, medians and scales are those of the training set. Without files for validation and
    test, the whole source is the training set: every instance is examined.
    """
    if request.is_code:
        data = prepare_from_python(request.data, request.label or "label")
        return data if request.features is None else _use_feature_file(data, request.features)
    return encode_sources(request, read_sources(request))


def read_sources(request: Request) -> dict[str, Source]:
    """The training set, and the others that have files."""
    train = _read(find_place(request.data), request)
    train.check_learnable()
    if train.groups is not None and request.group is not None:
        check_groups(train.groups, request.group)
    sources = {"train": train}
    if request.time is not None:
        sources = split_newest(train, request.time)
        train = sources["train"]
        train.check_learnable()
    for part in PARTS[1:]:
        file = getattr(request, part)
        if file is not None:
            sources[part] = read_like(train, find_place(file), request)
    if request.group is not None:
        train.notes.extend(warn_of_shared_groups(sources, request.group))
    elif train.modality is TABLE and (name := suggest_groups(train.content)):
        train.notes.append(
            f"Values of '{name}' occur in several rows each. If new data will contain new values in "
            f"this column, pass `group={name!r}`: rows with the same value are then held out together."
        )
    return {part: sources[part] for part in PARTS if part in sources}


def encode_sources(request: Request, sources: dict[str, Source]) -> PreparedData:
    """Check and encode what `read_sources` has read."""
    path = find_place(request.data)
    train = sources["train"]
    whole, parts = join_parts(sources)
    columns = infer_columns(train.content, request.kinds) if train.modality is TABLE else []
    notes = [*train.notes, *_check_sizes(sources, whole), *describe_columns(columns)]
    mean, deviation = train.task.scale(train.labels)
    for part, source in sources.items():
        where = "" if part == "train" else f"{part}: "
        names = [f"{where}{name}" for name in source.names]
        check_cells(source.content, names, columns)
        if source.task is REGRESSION:
            check_size(names, source.label, (source.labels - mean) / deviation)
    root = image_root(path) if whole.modality.has_images else None
    if request.features is not None:  # no encoder is needed, and none may refuse the content
        x = {part: torch.zeros(len(ids), 0) for part, ids in parts.items()}
        data = assemble(whole, parts, x, columns=columns, notes=notes, root=root)
        return _use_feature_file(data, request.features)
    if train.modality.has_text:
        encoder = TextEncoder(train.content)
    elif root is not None:
        encoder = ImageEncoder(train.content, root)
    else:
        encoder = TableEncoder(train.content, columns)
        if encoder.skewed:
            skewed = list_names(encoder.skewed)
            notes.append(f"Highly skewed columns are log-transformed: {skewed}.")
    encoded = {part: encoder(whole.take(ids).content) for part, ids in parts.items() if len(ids)}
    x = {part: encoded.get(part, encoded["train"][:0]) for part in PARTS}
    return assemble(whole, parts, x, encoder=encoder, columns=columns, notes=notes, root=root)


def _use_feature_file(data: PreparedData, file: str) -> PreparedData:
    """The same data with the features in a file as inputs."""
    left_out = " ".join(note for note in data.source.notes if "left out" in note)
    rows = read_feature_file(Path(file), len(data.source), left_out)
    inputs = standardize(torch.from_numpy(rows), data.parts["train"])
    x = {part: inputs[torch.from_numpy(ids)] for part, ids in data.parts.items()}
    note = f"Models are trained on the {rows.shape[1]:,} features in {Path(file).name}."
    return replace(data, x=x, encoder=None, notes=[*data.notes, note])


def _read(path: Place, request: Request, task: str | None = None) -> Source:
    """Read a folder of images, a table that lists images, a table, or texts."""
    others = [name for name in (request.group, request.time, request.key) if name is not None]
    if isinstance(path, Path) and is_folder(path):
        if others:
            raise InvalidInput(
                f"{path} is a folder and has no column '{others[0]}'. Pass a table of paths and "
                "labels with `images` and `label`."
            )
        return read_folder(path)
    if request.label is None:
        raise InvalidInput(_ask_for_label(path, request.reading))
    if request.images is not None:
        if isinstance(path, Url):
            raise InvalidInput(f"Download {path} and its images: images must be on this machine.")
        source, frame = read_listing(path, request.images, request.label, request.reading, others)
    else:
        source, frame = read_table(
            path,
            request.label,
            task=task or request.task,
            text=request.text,
            columns=request.columns,
            reading=request.reading,
            others=others,
        )
    if request.label in others:
        raise InvalidInput(f"'{request.label}' is the label; pass another column.")
    if request.group is not None:
        source = replace(source, groups=_as_labels(frame[request.group]))
    if request.time is not None:
        source = replace(source, times=read_times(frame[request.time], request.time))
    if request.key is not None:
        source = replace(source, keys=_as_labels(frame[request.key]))
    return source


def _as_labels(column: Series) -> np.ndarray:
    """Cells as text without spaces around it, str [N]; "" where they are missing."""
    return as_text(column).fillna("").str.strip().to_numpy(dtype=object)


def _ask_for_label(path: Place, reading: Reading) -> str:
    """That the label column must be specified, with the names of the columns."""
    names = list_columns(path, reading)
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return (
        f"Specify the column to predict: pass its name as `label`. {path} has the columns "
        f"{', '.join(names[:_NAMES_SHOWN])}{more}.{suggest_chats(path, names)}"
    )


def read_like(train: Source, path: Place, request: Request) -> Source:
    """Read another file of the same kind; its columns and classes must be those of training."""
    source = _read(path, request, task=train.task.name)
    unknown = sorted(set(source.classes) - set(train.classes))
    if unknown:
        raise InvalidInput(
            f"{path} has classes in '{train.label}' that do not occur in the training data: "
            f"{', '.join(unknown[:5])}. Correct them, or leave them out."
        )
    present = source.content.columns
    missing = [str(name) for name in train.content.columns if name not in present]
    if missing:
        raise InvalidInput(f"{path} lacks the columns {', '.join(missing[:5])}. Add them.")
    if source.modality.has_images:  # relative paths are relative to the training images
        root = image_root(path).resolve()
        absolute = [str(root / name) for name in source.content["path"]]
        source = replace(source, content=source.content.assign(path=absolute))
    return source


def image_root(path: Place) -> Path:
    """The folder that paths of images are relative to."""
    assert isinstance(path, Path)  # `_read` refuses images behind a URL
    return path if path.is_dir() else path.parent


def _check_sizes(sources: Mapping[str, Source], whole: Source) -> list[str]:
    """Refuse sets that are too small; return notes about sets and classes that are small."""
    notes = []
    if rare := whole.task.rare(whole.labels):
        notes.append(
            "These classes have fewer than 5 instances, too few to examine their labels: "
            f"{', '.join(rare[:5])}."
        )
    for part, source in sources.items():
        if len(source) < MIN_INSTANCES // 5:
            name = "training" if part == "train" else part
            raise InvalidInput(
                f"The {name} set has only {len(source)} instances. Provide more data, or a larger "
                "file for this set."
            )
    if "test" in sources and len(sources["test"]) < _SMALL_TEST_PART:
        notes.append(
            f"The test set has only {len(sources['test'])} instances: with so few, only a large "
            "improvement can be detected."
        )
    return notes


# --- inputs are never touched ---------------------------------------------------------------------


_CHOOSE = "Choose another folder."


def input_paths(request: Request) -> dict[str, Path]:
    """{"data": its path, ...} of every file and folder that a request names and that is there."""
    places = {name: find_place(text) for name, text in _name_inputs(request).items()}
    paths = {name: place for name, place in places.items() if isinstance(place, Path)}
    if request.memory is not None:
        paths |= {f"{name} pixels": pixels_of(path) for name, path in paths.items()}
    if request.features is not None:
        paths["features"] = Path(request.features)
    return {name: path for name, path in paths.items() if os.path.exists(path)}


def _name_inputs(request: Request) -> dict[str, str]:
    """{"data": its path or URL, ...} of the parts that a request names."""
    files = {name: getattr(request, name) for name in ("data", *OTHERS)}
    return {name: file for name, file in files.items() if file is not None}


def digest_inputs(request: Request, without: str = "") -> dict[str, str]:
    """A digest of everything in each input file, folder or URL, read or ignored."""
    places = {name: find_place(text) for name, text in _name_inputs(request).items()}
    digests = {
        name: digest_bytes(read_bytes(place))
        for name, place in places.items()
        if isinstance(place, Url) and name != without
    }
    for name, path in input_paths(request).items():
        if name == without:
            continue
        digests[name] = digest_images(path) if path.is_dir() else digest_file(path)
    return digests


def check_output_file(output: Path, inputs: Mapping[str, Path]) -> None:
    """Refuse a file that is an input, by whatever name or link, or is inside an input folder.

    Raises:
        InvalidInput: it is.
    """
    for name, path in inputs.items():
        if _is_same(output, path):
            what = "the input itself" if name == "data" else f"the input passed as {name}"
            raise InvalidInput(
                f"{output} is {what}, which must not be changed. Choose another name."
            )
        if path.is_dir() and _lies_in(output, path):
            raise InvalidInput(
                f"{output} is inside {path}, an input folder, which must not be changed. {_CHOOSE}"
            )


def check_output_folder(folder: Path, protected: Mapping[str, Path]) -> None:
    """Refuse a folder that is, contains, or is inside something that dross never changes.

    Arguments:
        folder: Where something is going to be written.
        protected: The paths of inputs, or of a project, by what they are.

    Raises:
        InvalidInput: it does.
    """
    for name, path in protected.items():
        what = f"{path} ({name})"
        if _is_same(folder, path):
            raise InvalidInput(f"{folder} is {what} itself, which must not be changed. {_CHOOSE}")
        if _lies_in(path, folder):
            raise InvalidInput(f"{folder} contains {what}, which must not be changed. {_CHOOSE}")
        if _lies_in(folder, path):
            raise InvalidInput(f"{folder} is inside {what}, which must not be changed. {_CHOOSE}")


def _is_same(one: Path, other: Path) -> bool:
    if os.path.exists(one) and os.path.exists(other):
        return one.samefile(other)
    return one.resolve() == other.resolve()


def _lies_in(path: Path, folder: Path) -> bool:
    """Whether a path is below a folder, links resolved."""
    return any(_is_same(parent, folder) for parent in path.resolve().parents)
