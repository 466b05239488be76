"""Load the model and its tokenizer, and refuse with a clear message what cannot be scored."""

import importlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from torch import nn

from .._extras import install_command
from .._io import read_file
from ..cleaning.chats import ChatOptions
from ..engine.precision import MathAttention
from ..errors import InvalidInput, NotSupported, first_line

_ADAPTER = "adapter_config.json"
_WHOLE = "Use the unquantized model."
# Nothing but what is said, for models that have never seen a chat.
_PLAIN = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] }}"
    "{{ eos_token }}{% else %}{{ message['content'] }}{{ '\\n' }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to be fine-tuned, and its tokenizer."""

    model: Any
    tokenizer: Any
    context: int | None  # how many tokens the model takes; None: it does not say
    digest: str  # of its weights, without new adapters

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that fine-tuning updates, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}


def _import(name: str, what: str) -> Any:
    """A package; what: what needs it, as the beginning of a sentence."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InvalidInput(f"{what} {name}: {install_command('finetuning')}.") from None


def load(options: ChatOptions) -> Loaded:
    """The model of the options, with its tokenizer, its template and its trainable parameters.

    Raises:
        InvalidInput: there is no such model, tokenizer or chat template, or a package is missing.
        NotSupported: its weights are quantized, or it cannot be differentiated twice.
    """
    shown = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    try:
        return _load(options)
    finally:
        if shown:
            transformers.logging.enable_progress_bar()


def _load(options: ChatOptions) -> Loaded:
    folder = Path(options.model)
    if (folder / _ADAPTER).is_file():
        model = _load_adapter(folder)
        if options.lora is not None or options.last_layers is not None:
            raise InvalidInput(
                f"{folder} is already an adapter, and training continues from it: leave out "
                "`lora` and `last_layers`, or pass its base model instead."
            )
    else:
        model = _load_model(options.model)
    tokenizer = _load_tokenizer(options)
    digest = _digest(model)
    if options.lora is not None:
        model = _add_adapters(model, options)
    elif options.last_layers is not None:
        kept = {id(p) for layer in _last_layers(model, options) for p in layer.parameters()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in kept)
    context = getattr(model.config, "max_position_embeddings", None)
    loaded = Loaded(model, tokenizer, context, digest)
    if not loaded.trained:
        raise InvalidInput(f"{options.model} has nothing to train: all its weights are frozen.")
    check_second_derivative(loaded, options.model)
    return loaded


# --- the weights ----------------------------------------------------------------------------------


def _load_model(name: str) -> Any:
    where, gguf = _locate(name)
    if not gguf:
        _check_not_quantized(name, _fetch(transformers.AutoConfig, name, where))
    make = transformers.AutoModelForCausalLM
    options = {"dtype": torch.float32, **gguf}
    try:
        model = _fetch(make, name, where, attn_implementation="sdpa", **options)
    except InvalidInput:  # a ValueError, too
        raise
    except ValueError as error:
        if "attention" not in str(error):
            raise InvalidInput(f"{name} is not a text model: {first_line(error)}") from None
        model = _fetch(make, name, where, attn_implementation="eager", **options)
    return _as_whole(model) if gguf else model


def _as_whole(model: Any) -> Any:
    """A model whose GGUF weights were read in full precision, no longer marked as quantized.

    Raises:
        NotSupported: they are not.
    """
    if not all(parameter.is_floating_point() for parameter in model.parameters()):
        raise NotSupported(f"The GGUF file could not be read in full precision. {_WHOLE}")
    for holder, name in (
        (model, "is_quantized"),
        (model, "hf_quantizer"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if name in vars(holder):
            delattr(holder, name)
    return model


class _AdapterConfig(msgspec.Struct):
    base_model_name_or_path: str


def _load_adapter(folder: Path) -> Any:
    try:
        config = msgspec.json.decode(read_file(folder / _ADAPTER), type=_AdapterConfig)
    except (OSError, ValueError):
        raise InvalidInput(f"{folder / _ADAPTER} does not name its base model.") from None
    try:
        model = _load_model(config.base_model_name_or_path)
    except NotSupported as error:
        raise NotSupported(
            f"{folder} is an adapter for a base model that cannot be differentiated. {error}"
        ) from None
    return _import("peft", "Adapters need").PeftModel.from_pretrained(
        model, str(folder), is_trainable=True
    )


def _locate(name: str) -> tuple[str, dict[str, str]]:
    """What transformers opens: a name or a folder; and an option, if it is a GGUF file."""
    path = Path(name)
    for file in path.iterdir() if path.is_dir() else []:
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise InvalidInput(f"{file} is a pipe or a device, not a model file. Remove it.")
    if path.suffix == ".gguf" and path.is_file():
        file = path
    elif path.is_dir() and not any((path / known).exists() for known in ("config.json", _ADAPTER)):
        file = min(path.glob("*.gguf"), default=None)
        if file is None:
            raise InvalidInput(
                f"{name} is not a model: it has neither config.json nor a .gguf file."
            )
    else:
        return name, {}
    _import("gguf", f"{file} needs")
    return str(file.parent), {"gguf_file": file.name}


def _fetch(kind: Any, name: str, where: str, **options: Any) -> Any:
    """What is on this machine, or else what can be fetched.

    Arguments:
        kind: A class of transformers.
        name: The model, as the user calls it.
        where, options: For `from_pretrained`.
    """
    try:
        return kind.from_pretrained(where, local_files_only=True, **options)
    except OSError as error:
        if Path(name).exists():
            raise InvalidInput(f"{name} cannot be loaded: {first_line(error)}") from None
    try:
        return kind.from_pretrained(where, **options)
    except OSError as error:
        raise InvalidInput(
            f"The model '{name}' is not on this machine and cannot be downloaded "
            f"({first_line(error)}). Pass the folder of a model as `model`."
        ) from None


def _check_not_quantized(name: str, config: Any) -> None:
    """Before the weights are read: a package that reads such weights may be missing."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return
    settings = settings if isinstance(settings, dict) else vars(settings)
    method = settings.get("quant_method") or "an unknown method"
    raise NotSupported(
        f"The weights of {name} are quantized ({getattr(method, 'value', method)}): they are "
        f"integers and have no derivative, so no example can be scored. {_WHOLE}"
    )


def _digest(model: Any) -> str:
    """Of a sample of every weight: enough to recognize another model, quick for a large one."""
    from ..data.fingerprint import digest_tensors

    sample = lambda t: t.detach().flatten()[:: 1 + t.numel() // 4096].float().cpu().contiguous()
    return digest_tensors({name: sample(p) for name, p in model.named_parameters()})


# --- what is trained ------------------------------------------------------------------------------


def _last_layers(model: Any, options: ChatOptions) -> list[nn.Module]:
    """The last layers of the longest stack of the model; by default all of them."""
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = list(max(stacks, key=len, default=()))
    if not layers:
        raise NotSupported(f"{options.model} has no stack of layers for `lora` or `last_layers`.")
    return layers if options.last_layers is None else layers[-options.last_layers :]


def _add_adapters(model: Any, options: ChatOptions) -> Any:
    peft = _import("peft", "Adapters need")
    chosen = {id(module) for layer in _last_layers(model, options) for module in layer.modules()}
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in chosen
    ]
    if not names:
        raise NotSupported(
            f"The layers of {options.model} have no linear layers to attach adapters to. Leave out "
            "`lora`; `last_layers` trains some of the weights directly."
        )
    rank = options.lora or 0
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=names)
    return peft.get_peft_model(model, config)


def check_second_derivative(loaded: Loaded, name: str) -> None:
    """Differentiate a text of four tokens twice, as every step of a retrace does.

    Raises:
        NotSupported: a part of the model has no second derivative.
    """
    model = loaded.model
    parameters = list(loaded.trained.values())
    ids = torch.arange(4, device=parameters[0].device)[None] % len(loaded.tokenizer)
    try:
        with MathAttention(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            once = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
            size = torch.stack([(g * g).sum() for g in once if g is not None]).sum()
            size.backward()  # through everything: grad() would pass over what refuses it
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise NotSupported(
            f"{name} cannot be differentiated twice ({first_line(error)}): its attention, or "
            "another part, runs a kernel without a second derivative, but computing scores "
            "requires one. Use a model whose attention implementation can be set to 'sdpa' or "
            "'eager'."
        ) from None
    finally:
        model.zero_grad(set_to_none=True)


# --- the tokenizer --------------------------------------------------------------------------------


def _load_tokenizer(options: ChatOptions) -> Any:
    where, gguf = _locate(options.model)
    try:
        tokenizer = _fetch(transformers.AutoTokenizer, options.model, where, **gguf)
    except (InvalidInput, ValueError, TypeError, KeyError, ImportError) as error:
        raise InvalidInput(
            f"{options.model} has no tokenizer that can be loaded ({first_line(error)}). Save it "
            "beside the model: tokenizer.save_pretrained(PATH)."
        ) from None
    if not getattr(tokenizer, "is_fast", False):
        raise InvalidInput(
            f"The tokenizer of {options.model} does not report which characters a token covers. "
            "Use a tokenizer from the tokenizers package (a 'fast' tokenizer)."
        )
    if options.template is not None:
        tokenizer.chat_template = _read_template(options.template)
    if not tokenizer.chat_template:
        raise InvalidInput(
            f"The tokenizer of {options.model} has no chat template, so dross cannot format a "
            "conversation for this model. Use the instruct version of the model, or pass "
            "`template`: either a template file, or plain, which writes the prompt, a line break "
            "and the response."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _read_template(template: str) -> str:
    if template == "plain":
        return _PLAIN
    try:
        return read_file(template).decode("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"The template {template} cannot be read: {first_line(error)}. It must be a file, or "
            "'plain'."
        ) from None
