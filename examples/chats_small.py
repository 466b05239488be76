"""Fine-tune a tiny language model on chats of which some are wrong, and find those.

    pip install '.[finetuning]'
    python examples/chats_small.py

Nothing is downloaded. A Transformer of 84,000 parameters learns a few hundred sentences from
scratch, which takes seconds; it is the model that is fine-tuned. The chats are questions about
colours, sounds and capitals. Some answers are wrong in ways that happen: the answer to another
question, a wrong fact, shuffled words; and some questions are asked twice. Who checked the answers
of a few, for validation and test, needs no more than that to find the others.

What it printed is in docs/finetuning.md.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import dross


def read_pairs(text: str) -> dict[str, str]:
    """{"banana": "yellow", ...} of "banana yellow, ..."."""
    return dict(pair.split() for pair in text.split(","))


COLOURS = read_pairs(
    "banana yellow, grass green, snow white, coal black, sky blue, blood red, carrot orange, "
    "plum purple, mouse grey, bark brown"
)
SOUNDS = read_pairs(
    "cat meow, dog woof, cow moo, duck quack, sheep baa, pig oink, frog croak, owl hoot, bee buzz, "
    "lion roar"
)
CAPITALS = read_pairs(
    "france paris, italy rome, spain madrid, japan tokyo, egypt cairo, peru lima, cuba havana, "
    "kenya nairobi, norway oslo, greece athens"
)
KINDS = {  # facts, ways to ask, the answer
    "colours": (
        COLOURS,
        [
            "what colour is {} usually ?",
            "please tell me which colour {} has .",
            "i forgot the colour of {} , help me .",
        ],
        "the usual colour of {} is {} .",
    ),
    "sounds": (
        SOUNDS,
        [
            "what does a {} say at night ?",
            "please tell me how a {} sounds .",
            "i forgot the sound of a {} , help me .",
        ],
        "every day a {} says {} .",
    ),
    "capitals": (
        CAPITALS,
        [
            "what is the capital of {} called ?",
            "please tell me which city rules {} .",
            "i forgot the capital of {} , help me .",
        ],
        "the capital city of {} is {} .",
    ),
}
MARKS = ["<pad>", "<user>", "<assistant>", "<end>", "<unk>"]
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def write_chats(count: int, wrong: float, seed: int) -> tuple[list[dict], list[str]]:
    """Rows with prompt, response and source; and what is wrong with each, "" for most."""
    random = np.random.default_rng(seed)
    rows, mistakes = [], []
    while len(rows) < count:
        source = str(random.choice(list(KINDS)))
        facts, questions, answer = KINDS[source]
        key = str(random.choice(list(facts)))
        row = {
            "prompt": str(random.choice(questions)).format(key),
            "response": answer.format(key, facts[key]),
            "source": source,
        }
        mistake = ""
        if random.random() < wrong:
            mistake = str(random.choice(["other answer", "wrong fact", "shuffled"]))
        if mistake == "other answer":
            other, _, say = KINDS[str(random.choice([k for k in KINDS if k != source]))]
            name = str(random.choice(list(other)))
            row["response"] = say.format(name, other[name])
        elif mistake == "wrong fact":
            false = str(random.choice([v for v in facts.values() if v != facts[key]]))
            row["response"] = answer.format(key, false)
        elif mistake == "shuffled":
            row["response"] = " ".join(random.permutation(row["response"].split()))
        rows.append(row)
        mistakes.append(mistake)
    return rows, mistakes


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each word."""
    rows = write_chats(2000, 0.0, seed=99)[0]
    words = {
        word for row in rows for text in (row["prompt"], row["response"]) for word in text.split()
    }
    vocabulary = {word: id for id, word in enumerate([*MARKS, *sorted(words)])}
    by_word = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    by_word.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=by_word, **marks)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(folder: Path, steps: int) -> None:
    """Train a tiny model from scratch on answers to every second question, and save it."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "tie_word_embeddings": True}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), **sizes, **heads, pad_token_id=0)
    )
    known = {name for facts, _, _ in KINDS.values() for name in list(facts)[::2]}
    rows = write_chats(1500, 0.0, seed=7)[0]
    rows = [row for row in rows if known & set(row["prompt"].split())]
    texts = [f"<user> {r['prompt']} <end> <assistant> {r['response']} <end>" for r in rows]
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for step in range(steps):
        chosen = [texts[(16 * step + k) % len(texts)] for k in range(16)]
        batch = tokenizer(chosen, padding=True, return_tensors="pt")
        labels = torch.where(batch["attention_mask"] > 0, batch["input_ids"], -100)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_rows(path: Path, rows: list[dict]) -> Path:
    """A row a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def main() -> None:
    """Make the model and the chats, clean, judge, export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/chats_small"))
    parser.add_argument("--seeds", type=int, default=6, help="of the verdict")
    given = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    started = time.monotonic()
    torch.set_num_threads(1)  # a model as small as this one is quicker so
    inputs = given.out.with_name(f"{given.out.name}-inputs")
    inputs.mkdir(parents=True, exist_ok=True)
    make_model(inputs / "model", steps=200)
    rows, mistakes = write_chats(240, wrong=0.2, seed=0)
    chats = write_rows(inputs / "chats.jsonl", rows)
    checked = {
        part: write_rows(inputs / f"{part}.jsonl", write_chats(count, 0.0, seed)[0])
        for part, count, seed in (("validation", 80, 1), ("test", 160, 2))
    }
    settings = {"lr": 5e-4, "epochs": 3, "batch_size": 8, "overwrite": True, "say": print}
    project = dross.clean_chats(chats, inputs / "model", out=given.out, **checked, **settings)

    table = project.table.sort_values("harm_rank")
    is_wrong = np.array([bool(mistake) for mistake in mistakes])
    places = table["source"].str.removeprefix("line ").astype(int).to_numpy() - 1
    worst = is_wrong[places][: is_wrong.sum()]
    print(
        f"{worst.sum()} of the {len(worst)} most harmful have a wrong answer "
        f"({is_wrong.mean():.0%} of all have)."
    )
    for place in places[:3]:
        print(f"    {rows[place]['prompt']} -> {rows[place]['response']}")
    if project.recommended is None:
        print("Recommended: change nothing.", project.info.recommendation.reason)
        return
    print("Recommended:", project.recommended.what)
    verdict = dross.judge(given.out, seeds=given.seeds)
    print(f"{verdict.verdict.capitalize()}. {verdict.sentence}")
    loss = verdict.metrics["loss"]
    low, high = loss.interval
    print(f"The test loss changes by {loss.difference:+.4f} ({low:+.4f} to {high:+.4f}).")
    done = dross.export(given.out, inputs / "cleaned.jsonl", overwrite=True)
    print(f"{done.written} of {len(rows)} rows are in {done.cleaned}.")
    print(f"It took {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()
