"""The language models: SmolLM2-135M as it was pretrained, a few of its layers, or a small Llama."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load_pretrained(folder: Path, layers: int | None = None) -> Any:
    """SmolLM2-135M-Instruct from the folder that holds its GGUF file, or its first layers.

    The weights are those of the file, which has 4 bits and a scale for each; here they are float32
    and train like any others. Reading the file takes half a minute, so a copy is kept beside it.
    """
    copy = folder / "float32"
    if not (copy / "config.json").exists():
        whole = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
        del whole.config.quantization_config
        copy.mkdir(exist_ok=True)
        state = {n: t.clone() for n, t in whole.state_dict().items() if n != "lm_head.weight"}
        save_file(state, copy / "weights.safetensors")
        (copy / "config.json").write_text(whole.config.to_json_string())
    config = LlamaConfig.from_pretrained(copy)
    config.num_hidden_layers = config.num_hidden_layers if layers is None else layers
    config.use_cache = False
    model = LlamaForCausalLM(config)
    wanted = set(model.state_dict())
    saved = load_file(copy / "weights.safetensors")
    model.load_state_dict({n: t for n, t in saved.items() if n in wanted}, strict=False)
    model.tie_weights()
    return model.train()


def load_tokenizer(folder: Path | None, texts: list[str], words: int = 1000) -> Any:
    """SmolLM2's tokenizer; without its folder, the most frequent words of some texts."""
    if folder is not None:
        return AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    from collections import Counter

    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Whitespace()
    counted = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text))
    known = ["<pad>", "<unk>", "<end>", *(word for word, _ in counted.most_common(words - 3))]
    tokenizer = Tokenizer(models.WordLevel({w: k for k, w in enumerate(known)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = split
    names = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def make_small(vocabulary: int, width: int = 128, layers: int = 4, seed: int = 0) -> Any:
    """A Llama that a laptop trains in a minute."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    config = LlamaConfig(
        vocab_size=vocabulary, tie_word_embeddings=True, use_cache=False, **sizes, **heads
    )
    return LlamaForCausalLM(config)


def add_adapter(model: Any, rank: int) -> Any:
    """The model with LoRA of this rank on its attention, and nothing else that trains."""
    import peft

    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=targets)
    return peft.get_peft_model(model, config)


def keep_norms_wide(model: Any) -> Any:
    """The model with norms in its own type: Llama's compute in float32 even where it is float64."""

    def normalize(norm: Any, x: torch.Tensor) -> torch.Tensor:
        return norm.weight * x * (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()

    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = partial(normalize, module)
    return model


def digest(model: Any) -> str:
    """A few letters that tell two sets of weights apart."""
    found = hashlib.sha256()
    for name, t in sorted(model.state_dict().items()):
        found.update(name.encode() + t.detach().float().cpu().numpy().tobytes())
    return found.hexdigest()[:12]
