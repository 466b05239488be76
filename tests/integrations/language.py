"""Tiny models and texts for the tests of transformers' trainers."""

import numpy as np
import torch
import torch.nn.functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    OPTConfig,
    OPTForCausalLM,
    Trainer,
    TrainingArguments,
)

WORDS = 20


def language_model(**options):
    """Llama would normalize in float32 whatever its type; OPT computes in its own."""
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=WORDS,
        hidden_size=8,
        word_embed_proj_dim=8,
        ffn_dim=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        pad_token_id=0,
        activation_function="gelu",  # without a kink
        **{"dropout": 0.0, **options},
    )
    return OPTForCausalLM(config).double()


def classifier(**options):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        num_labels=3,
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **options},
    )
    return BertForSequenceClassification(config).double()


def texts(count=10, labeled=False):
    random = np.random.default_rng(0)
    items = [
        {"input_ids": random.integers(1, WORDS, n).tolist()}
        for n in random.integers(3, 8, count).tolist()
    ]
    if labeled:
        for item in items:
            item["labels"] = int(item["input_ids"][0] % 3)
    return items


def pad(items):
    """Pads to the longest; labels are the words themselves where there are no others."""
    longest = max(len(item["input_ids"]) for item in items)
    x = torch.tensor([i["input_ids"] + [0] * (longest - len(i["input_ids"])) for i in items])
    batch = {"input_ids": x, "attention_mask": (x > 0).long()}
    if "labels" in items[0]:
        batch["labels"] = torch.tensor([item["labels"] for item in items])
    else:
        batch["labels"] = torch.where(x > 0, x, -100)
    if "weight" in items[0]:
        batch["weight"] = torch.tensor([item["weight"] for item in items], dtype=torch.float64)
    return batch


def settings(folder, **options):
    given = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "adam_epsilon": 1e-4,  # a smooth update, for finite differences
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**given | options)


class Exact(Trainer):
    """Trainer with its loss in double precision, and with weights of the examples if there are any.

    transformers' own losses are computed in float32 whatever the model's type.
    """

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weight = inputs.pop("weight", None)
        labels = inputs.pop("labels")
        logits = model(**inputs).logits
        if labels.dim() == 1:
            each = F.cross_entropy(logits, labels, reduction="none")
        else:
            tokens = F.cross_entropy(
                logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none"
            )
            each = tokens.sum(1)
        each = each if weight is None else each * weight
        items = labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
        loss = each.sum() / items
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss
