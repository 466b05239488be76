"""A small Transformer under autocast: what a retrace costs, and what it does to the scores.

    PYTHONPATH=src python benchmarks/mixed_precision.py [--device cuda] [--width 512] [--steps 64]

The same run is recorded and retraced in float32, under bfloat16 and under float16 autocast, with
the same seeds and batches. Seconds are ratios to float32 in the same process. Each is retraced
twice, and the second counts: the first writes passes down.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from tables import make_parser, print_head, print_row
from torch import nn

import dross

WORDS, CLASSES, HEADS = 1000, 8, 8
KINDS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=64)
    return parser.parse_args()


class Block(nn.Module):
    """Attention and two layers, each behind a norm."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.last = nn.Linear(width, width), nn.LayerNorm(width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        """[B, length, width] to the same."""
        mixed = self.mix(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*mixed).transpose(1, 2).flatten(2))
        return x + self.back(F.gelu(self.wide(self.last(x))))


class Transformer(nn.Module):
    """Blocks over words, and a class."""

    def __init__(self, width: int, blocks: int):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, width), nn.Linear(width, CLASSES)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(blocks)])

    def forward(self, x):
        """Words [B, length] to logits [B, CLASSES]."""
        return self.head(self.blocks(self.embed(x)).mean(1))


def draw(options: argparse.Namespace, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random words; the class is the remainder by CLASSES that most of them have."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, WORDS, (count, options.length), generator=generator)
    return x, F.one_hot(x % CLASSES, CLASSES).sum(1).argmax(1)


def seconds(work, device: str) -> tuple[float, object]:
    """How long it takes, a GPU's queue included, and what it returns."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    result = work()
    synchronize()
    return time.perf_counter() - start, result


def measure(options: argparse.Namespace, kind: str, folder: Path):
    """The seconds of recording and of the second retrace, and the scores."""
    torch.manual_seed(0)
    model = Transformer(options.width, options.blocks).to(options.device)
    train = draw(options, options.batch * 16, 0)
    batches = np.random.default_rng(0).integers(0, len(train[0]), (options.steps, options.batch))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    given = {"path": folder, "batches": list(batches), "progress": False, "autocast": KINDS[kind]}
    keep = dross.tape.Checkpoints(every=options.steps)
    recording, run = seconds(
        lambda: dross.train(model, train, "cross_entropy", optimizer, keep=keep, **given),
        options.device,
    )
    query = dross.mean_loss(draw(options, 256, 1))
    run.influence(query)
    retracing, scores = seconds(lambda: run.influence(query), options.device)
    return recording, retracing, scores.values


def main() -> None:
    """Print one line per type."""
    options = read_options()
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, {vars(options)}\n")
    print_head("type", "recording", "retrace", "retrace s", "Spearman with float32")
    base = None
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            recording, retracing, scores = measure(options, kind, Path(folder) / kind)
            base = base or (recording, retracing, scores)
            agreement = spearmanr(scores, base[2]).statistic
            ratios = (f"{recording / base[0]:.2f}", f"{retracing / base[1]:.2f}")
            print_row(kind, *ratios, f"{retracing:.2f}", f"{agreement:.4f}")


if __name__ == "__main__":
    main()
