"""Fine-tune a small Transformer with Trainer, and find the examples that harm it.

    pip install '.[transformers]'
    python examples/transformers_trainer.py

Only one line changes: RecordingTrainer(..., path=...) replaces Trainer(...). Nothing is downloaded:
the sentences are generated from lists of pleasant, unpleasant and neutral words, and one in ten
labels is wrong. It takes less than half a minute on two cores and prints

    <Run of BertForSequenceClassification with AdamW on 300 instances: 152 steps>
    validation loss 0.09
    the most harmful examples:
        a film with happy it lovely the the with very and: unpleasant
        lovely the that with that lovely very: unpleasant
        room the film a with poor with room poor room that: pleasant
    29 of the 30 most harmful have a wrong label (11% of all have)
"""

import tempfile

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from dross.integrations.transformers import RecordingTrainer

# %% The sentences
# Each sentence is a random selection from lists of pleasant, unpleasant and neutral words.
PLEASANT = ["good", "fine", "bright", "warm", "lovely", "happy"]
UNPLEASANT = ["bad", "poor", "dark", "cold", "awful", "sad"]
OTHERS = ["the", "a", "film", "room", "day", "was", "with", "and", "seemed", "very", "that", "it"]
WORDS = ["[pad]", *PLEASANT, *UNPLEASANT, *OTHERS]


def write_sentences(count: int, wrong: float, seed: int) -> tuple[list[dict], np.ndarray]:
    """Sentences as lists of word numbers, with labels; and which labels are wrong."""
    random = np.random.default_rng(seed)
    examples = []
    is_wrong = random.random(count) < wrong
    for flip in is_wrong:
        label = int(random.integers(2))
        words = [*random.choice(OTHERS, random.integers(4, 10))]
        words += [*random.choice(PLEASANT if label else UNPLEASANT, 2)]
        ids = [WORDS.index(word) for word in random.permutation(words)]
        examples.append({"input_ids": ids, "labels": 1 - label if flip else label})
    return examples, is_wrong


def pad(examples: list[dict]) -> dict:
    """A batch: sentences are as long as the longest."""
    length = max(len(example["input_ids"]) for example in examples)
    sentences = [example["input_ids"] for example in examples]
    rows = [sentence + [0] * (length - len(sentence)) for sentence in sentences]
    ids = torch.tensor(rows)
    labels = torch.tensor([example["labels"] for example in examples])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


# %% Train, record and query
# `RecordingTrainer(..., path=...)` is the only changed line. `loss_of` creates a query for the loss
# that `evaluate` computes.
def main() -> None:
    """Train, record and ask."""
    torch.set_num_threads(1)  # a model as small as this one is quicker so
    train, is_wrong = write_sentences(300, wrong=0.1, seed=0)
    validation, _ = write_sentences(200, wrong=0.0, seed=1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 16}
    depth = {"num_hidden_layers": 1, "num_attention_heads": 2, "attention_probs_dropout_prob": 0.0}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(WORDS), **sizes, **depth))
    folder = tempfile.mkdtemp()
    args = TrainingArguments(
        output_dir=folder + "/out",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=8,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = RecordingTrainer(
        model,
        args,
        train_dataset=train,
        eval_dataset=validation,
        data_collator=pad,
        path=folder + "/tape",
    )
    trainer.train()

    run, query = trainer.recorded_run(), trainer.loss_of(validation)
    print(run)
    print(f"validation loss {run.evaluate(query):.2f}")
    worst = run.influence(query, epochs=4).most_harmful(30)  # of the last four epochs
    print("the most harmful examples:")
    for i in worst[:3]:
        sentence = " ".join(WORDS[k] for k in train[i]["input_ids"])
        print(f"    {sentence}: {'pleasant' if train[i]['labels'] else 'unpleasant'}")
    hits = int(is_wrong[worst].sum())
    print(f"{hits} of the 30 most harmful have a wrong label ({is_wrong.mean():.0%} of all have)")


if __name__ == "__main__":
    main()
