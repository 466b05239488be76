"""Does the growth of the adjoint tell wild runs of other models, too?

    python -m benchmarks.language.growth

Small networks on scikit-learn's digits, by SGD, momentum and AdamW at calm and at wild rates. Each
run is compared with counterfactual trainings. What the tape alone says stands beside it, as in
trust.py: these runs were not used to choose the bound of `scores.trust`.
"""

import tempfile
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import dross

from ..tables import make_parser, print_head, print_row
from .trust import measure_bend
from .truth import compare_with_truth

TRAIN, VALIDATION, BATCH = 600, 400, 32
SETTINGS = [  # optimizer, rate, epochs
    *[("SGD", rate, 10) for rate in (0.05, 0.3, 1.0)],
    ("SGD", 2.0, 5),
    *[("momentum", rate, 10) for rate in (0.1, 0.3)],
    *[("AdamW", rate, 10) for rate in (1e-3, 1e-2, 3e-2)],
    ("AdamW", 1e-2, 30),
]
MODELS: dict[str, Callable[[], nn.Module]] = {
    "ReLU": lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
    "tanh": lambda: nn.Sequential(
        nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10)
    ),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 10)),
    ),
}


def make_optimizer(name: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """The optimizer of a setting."""
    if name == "AdamW":
        return torch.optim.AdamW(model.parameters(), rate)
    return torch.optim.SGD(model.parameters(), rate, momentum=0.9 if name == "momentum" else 0.0)


def main() -> None:
    """Print a row per run."""
    make_parser(__doc__).parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pictures, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pictures))[: TRAIN + VALIDATION]
    x = torch.tensor(pictures[order] / 16, dtype=torch.float32)
    y = torch.tensor(labels[order])
    query = dross.mean_loss((x[TRAIN:], y[TRAIN:]))
    print_head("model", "optimizer", "rate", "steps", "LDS", "tau of singles", "growth", "way")
    for name, make in MODELS.items():
        for optimizer, rate, epochs in SETTINGS:
            torch.manual_seed(0)
            model = make()
            given = (model, (x[:TRAIN], y[:TRAIN]), "cross_entropy")
            options = {"epochs": epochs, "batch_size": BATCH, "progress": False}
            with tempfile.TemporaryDirectory() as folder:
                chosen = make_optimizer(optimizer, model, rate)
                run = dross.train(*given, chosen, path=f"{folder}/tape", **options)
                scores = run.influence(query)
                found = compare_with_truth(run, query, scores, seed=0, folder=None)
                _, way = measure_bend(run, query, 0)
            agreement = (f"{found[name]:.2f}" for name in ("lds", "tau_singles"))
            growth = f"{scores.details['adjoint_growth']:.3g}"
            print_row(name, optimizer, f"{rate:g}", run.steps, *agreement, growth, f"{way:.2g}")


if __name__ == "__main__":
    main()
