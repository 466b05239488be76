"""A model and chats that take a moment to fine-tune."""

import json

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
MARKS = ["<pad>", "<user>", "<assistant>", "<end>", "<unk>"]
WORDS = ["what", "comes", "after", "?", "."]
FILL = [first + second for first in ("ba", "de", "fi", "go") for second in "klmnprst"]
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def make_tokenizer(template=TEMPLATE):
    vocabulary = {word: id for id, word in enumerate([*MARKS, *WORDS, *FILL, *NUMBERS])}
    by_word = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    by_word.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=by_word, **marks)
    tokenizer.chat_template = template
    return tokenizer


def make_model(**options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 32}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": True}
    size = len(MARKS) + len(WORDS) + len(FILL) + len(NUMBERS)
    return LlamaForCausalLM(LlamaConfig(vocab_size=size, **sizes, **heads, **options))


def save_model(folder, template=TEMPLATE, tokenizer=True, **options):
    make_model(**options).save_pretrained(folder)
    if tokenizer:
        make_tokenizer(template).save_pretrained(folder)
    return folder


def make_rows(count=60, seed=0):
    """What comes after a number; every tenth answer is another."""
    random = np.random.default_rng(seed)
    rows = []
    for k in range(count):
        number = int(random.integers(9))
        answer = number + 1 if k % 10 else int(random.integers(10))
        fill = " ".join(random.choice(FILL, 6))
        rows.append(
            {
                "prompt": f"{fill} : what comes after {NUMBERS[number]} ?",
                "response": f"after {NUMBERS[number]} comes {NUMBERS[answer]} .",
                "source": "abc"[k % 3],
            }
        )
    return rows


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_messages(row):
    said = zip(("user", "assistant"), (row["prompt"], row["response"]))
    return {"messages": [{"role": role, "content": text} for role, text in said]}
