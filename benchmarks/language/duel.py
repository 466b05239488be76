"""dross and bergson's MAGIC on the same Llama, data, order and optimizer: scores and costs.

    PYTHONPATH=src python -m benchmarks.language.duel [--layers 2 --width 64 --steps 24]
    PYTHONPATH=src python -m benchmarks.language.duel --count      # operations instead of seconds

MAGIC goes backward once per query, so 64 queries of it are those of 8, eight times; they are marked
with an asterisk. Needs what benchmarks/peers-requirements.txt and peers-no-deps.txt name.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import dross

from ..peers.methods.bergson_magic import Magic
from ..tables import make_parser, print_head, print_row

QUERIES = (1, 8, 64)


class Logits(nn.Module):
    """A language model as a function of word ids: [B, L] -> [B, vocabulary, L]."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the next word."""
        return self.model(input_ids=x).logits.transpose(1, 2)


@dataclass(frozen=True)
class Problem:
    """What the two are compared on: texts of random words with some order in them."""

    layers: int
    width: int
    length: int
    steps: int
    batch: int
    words: int = 256
    examples: int = 128
    rate: float = 1e-3

    @property
    def setting(self) -> SimpleNamespace:
        """The optimizer, as `Magic` asks for it."""
        return SimpleNamespace(lr=self.rate, optimizer="AdamW")

    def texts(self, seed: int, count: int) -> tuple[Tensor, Tensor]:
        """Words and the words that follow them; every third repeats the one before."""
        random = torch.Generator().manual_seed(seed)
        x = torch.randint(self.words, (count, self.length + 1), generator=random)
        x[:, 2::3] = x[:, 1::3][:, : x[:, 2::3].shape[1]]
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """The training set."""
        return self.texts(0, self.examples)

    def batches(self) -> list[np.ndarray]:
        """The ids of each step."""
        random = np.random.default_rng(0)
        return [random.permutation(self.examples)[: self.batch] for _ in range(self.steps)]

    def fresh_model(self) -> nn.Module:
        """The model before training; eager attention has the second derivative MAGIC needs."""
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        sizes = {"hidden_size": self.width, "intermediate_size": 3 * self.width}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        config = LlamaConfig(
            vocab_size=self.words,
            num_hidden_layers=self.layers,
            use_cache=False,
            attn_implementation="eager",
            **sizes,
            **heads,
        )
        return Logits(LlamaForCausalLM(config))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW, as torchopt's."""
        return torch.optim.AdamW(model.parameters(), lr=self.rate, weight_decay=0.01)

    def train_plainly(self) -> None:
        """The training without anybody watching."""
        model = self.fresh_model()
        optimizer, (x, y) = self.optimizer(model), self.pair
        for ids in self.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[ids]), y[ids]).backward()
            optimizer.step()

    def record(self, folder: Path, keep: object = None) -> dross.Run:
        """The training, recorded."""
        model = self.fresh_model()
        given = (model, self.pair, "cross_entropy", self.optimizer(model))
        options = {"batches": self.batches(), "keep": keep, "progress": False}
        return dross.train(*given, path=folder, **options)


def compare(problem: Problem, most: int) -> None:
    """Print processor seconds of both, and the largest difference of their scores."""
    spent: dict[str, float] = {}

    def clock(what: str, function, *arguments):
        start = time.process_time()
        value = function(*arguments)
        spent[what] = time.process_time() - start
        return value

    x, y = problem.texts(1, most)
    asked_for = [count for count in QUERIES if count <= most]
    with tempfile.TemporaryDirectory(prefix="dross-lm-duel-") as folder:
        problem.train_plainly()
        clock("training", problem.train_plainly)
        run = clock(
            "dross, recording", problem.record, Path(folder) / "a", dross.tape.Checkpoints()
        )
        magic = clock("MAGIC, recording", Magic, problem, f"{folder}/magic")
        ours, theirs = {}, {}
        for count in asked_for:
            asked = (x[:count], y[:count])
            ours[count] = clock(f"dross, {count}", run.influence, dross.losses(asked)).values
        for count in QUERIES[:2]:
            ask = lambda count=count: [
                magic.scores(x[k : k + 1], y[k : k + 1]) for k in range(count)
            ]
            theirs[count] = np.stack(clock(f"MAGIC, {count}", ask))
        spent["MAGIC, 64"] = 8 * spent["MAGIC, 8"]
    off = max(np.abs(ours[n] - theirs[n]).max() / np.abs(ours[n]).max() for n in theirs)
    moving = sum(p.numel() for p in problem.fresh_model().parameters())
    print(f"\n{problem}: {moving:,} parameters; largest difference of the scores {off:.1e}\n")
    print_head("processor seconds", "training", "recording", *map(str, asked_for))
    cells = lambda who: [f"{spent[f'{who}, {k}']:.2f}" for k in ("recording", *asked_for)]
    print_row("dross, from checkpoints", f"{spent['training']:.2f}", *cells("dross"))
    marked = [cell + "*" * (k > len(QUERIES[:2])) for k, cell in enumerate(cells("MAGIC"))]
    print_row("MAGIC", f"{spent['training']:.2f}", *marked)
    ratios = [
        f"{spent[f'dross, {k}'] / spent[f'MAGIC, {k}']:.2f}" for k in ("recording", *asked_for)
    ]
    print_row("dross / MAGIC", "", *ratios)


def count_operations(problem: Problem) -> None:
    """Print the operations of matrix products, by those of the training."""
    x, y = problem.texts(1, QUERIES[1])

    def count(function, *arguments) -> int:
        with FlopCounterMode(display=False) as counter:
            function(*arguments)
        return counter.get_total_flops()

    training = count(problem.train_plainly)
    print_head("operations relative to training", *map(str, QUERIES[:2]))
    with tempfile.TemporaryDirectory(prefix="dross-lm-duel-") as folder:
        run = problem.record(Path(folder) / "a", dross.tape.Checkpoints())
        ask = lambda n: run.influence(dross.losses((x[:n], y[:n])))
        ask(1)  # the first one also chooses how passes are computed
        print_row("dross, from checkpoints", *(f"{count(ask, n) / training:.2f}" for n in (1, 8)))
        magic = Magic(problem, f"{folder}/magic")
        one = count(magic.scores, x[:1], y[:1]) / training
        print_row("MAGIC", f"{one:.2f}", f"{8 * one:.2f}")


def compare_exactly(problem: Problem) -> None:
    """Print the largest difference of the scores in float64.

    torchopt's Adam corrects its bias in torch's default type, and bergson adds a constant under the
    root: both are set so that they do not show. Llama's norm computes in float32 whatever its type.
    """
    torch.set_default_dtype(torch.float64)
    x, y = problem.texts(1, 2)
    with tempfile.TemporaryDirectory(prefix="dross-lm-duel-") as folder:
        ours = problem.record(Path(folder) / "a").influence(dross.losses((x, y))).values
        magic = Magic(problem, f"{folder}/magic", torch.float64, eps_root=1e-30)
        theirs = np.stack([magic.scores(x[k : k + 1], y[k : k + 1]) for k in range(2)])
    off, size = np.abs(ours - theirs).max(), np.abs(ours).max()
    close = np.corrcoef(ours.ravel(), theirs.ravel())[0, 1]
    print(f"\n{problem}: in float64 apart by {off / size:.1e}, correlation {close:.8f}")


def read_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = make_parser(__doc__)
    sizes = {"layers": 2, "width": 64, "length": 24, "steps": 24, "batch": 8, "threads": 1}
    parser.add_argument("--most", type=int, choices=QUERIES[1:], default=QUERIES[-1])
    parser.add_argument("--exact", action="store_true", help="compare scores in float64")
    parser.add_argument("--count", action="store_true", help="count operations")
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def main() -> None:
    """Compare on one configuration."""
    options = vars(read_options())
    torch.set_num_threads(options.pop("threads"))
    exact, most, counted = options.pop("exact"), options.pop("most"), options.pop("count")
    problem = Problem(**options)
    if counted:
        return count_operations(problem)
    compare_exactly(problem) if exact else compare(problem, most)


if __name__ == "__main__":
    main()
