"""What makes scores find wrong labels: the query, the number of runs, and the epochs that count.

    python benchmarks/outcome/queries.py [--sets NAMES] [--seeds 1]

For development sets with 20 % of the labels wrong, and with one class that is rare: how well harm
scores find wrong training labels (AUROC), and how far halves of the runs agree (rank correlation).
The table goes to standard output.
"""

import argparse
import tempfile
import warnings
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from cases import Case
from sklearn.metrics import roc_auc_score

import dross
from dross.cleanse.confidence.agreement import compare_halves
from dross.cleanse.learning.recipe import Pair, Recipe
from dross.cleanse.learning.score import record_run
from dross.cleanse.learning.train_many import ModelSpec, train_many
from dross.data.seeds import mix_seeds

RUNS = 8
SETS = ("satimage", "spambase", "digits", "adult")


def make_rare(case: Case) -> None:
    """Take nine tenths of the most frequent class's training instances away: it becomes rare."""
    y = case.classes_of(case.train)
    rare = np.flatnonzero(y == np.bincount(y).argmax())
    gone = rare[np.random.default_rng(case.seed).random(len(rare)) < 0.9]
    case.train = np.setdiff1d(case.train, gone)
    case.wrong = np.flatnonzero(case.labels[case.train] != case.data.y[case.train])


def list_queries(case: Case, recipe: Recipe, data: Pair, validation: Pair) -> dict:
    """The queries that are compared."""
    x, y = validation
    ceiling = float(np.log(len(case.class_names)))  # the loss of a guess
    network = recipe.build(0)

    def clamped(parameters, buffers):
        outputs = torch.func.functional_call(network, (parameters, buffers), (x,))
        losses = torch.nn.functional.cross_entropy(outputs, y, reduction="none")
        return torch.clamp(losses, max=ceiling).mean()

    everything = ModelSpec(case.seed, np.arange(len(data[1])), recipe.rate)
    chances = torch.softmax(train_many(recipe, *data, [everything]).outputs(x)[0], -1)
    plausible = (chances.argmax(1) == y) | (chances.gather(1, y[:, None])[:, 0] > 0.3)
    return {
        "cross entropy": dross.mean_loss(validation),
        "cross entropy, clamped": dross.query(clamped),
        "cross entropy, pruned": dross.mean_loss((x[plausible], y[plausible])),
        "expected error": dross.expected_error(validation),
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    found = defaultdict(list)
    for seed in range(options.seeds):
        for name in options.sets:
            for rare in (False, True):
                for noisy in (False, True):
                    case = Case(name, "uniform 20", noisy, seed)
                    if rare:
                        make_rare(case)
                    measure(case, (rare, noisy), found)
    print("| what | rare class | validation labels | AUROC | agreement of halves |")
    print("| --- | --- | --- | --- | --- |")
    for (what, rare, noisy), pairs in found.items():
        auroc, agreement = np.mean(pairs, axis=0)
        words = ("yes" if rare else "no", "noisy" if noisy else "right")
        print(f"| {what} | {words[0]} | {words[1]} | {auroc:.3f} | {agreement:.2f} |")


def measure(case: Case, about: tuple[bool, bool], found: dict) -> None:
    """Add the figures of one case."""
    recipe, data = case.network
    validation = case.inputs(case.validation), case.targets(case.validation)
    wrong = np.isin(np.arange(len(data[1])), case.wrong)
    queries, scores = list_queries(case, recipe, data, validation), defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(RUNS):
            tape = Path(folder) / f"run-{number}"
            seed = mix_seeds(case.seed, 77)
            run = record_run(recipe, data, number, tape, seed=seed, progress=False)
            for name, query in queries.items():
                scores[name].append(replace(run, progress=False).influence(query).by_epoch)
    by_query = {name: np.stack(found) for name, found in scores.items()}  # [runs, epochs, N]
    for name, by_run in by_query.items():
        add(found, (f"{name}, 4 runs", *about), by_run[:4].sum(1), wrong)
    by_run = by_query["expected error"]
    for runs in (2, 8):
        add(found, (f"expected error, {runs} runs", *about), by_run[:runs].sum(1), wrong)
    count = by_run.shape[1]
    for name, last in {"half": max(1, count // 2), "epoch": 1}.items():
        key = (f"expected error, 4 runs, last {name}", *about)
        add(found, key, by_run[:4, -last:].sum(1), wrong)
    agree = lambda last: compare_halves(by_run[:4, -last:].sum(1)) or 0.0
    last = max(range(1, count + 1), key=agree)
    key = ("expected error, 4 runs, epochs by agreement", *about)
    add(found, key, by_run[:4, -last:].sum(1), wrong)


def add(found: dict, key: tuple, by_run: np.ndarray, wrong: np.ndarray) -> None:
    """The AUROC and the agreement of scores [runs, N]."""
    agreement = compare_halves(by_run)
    found[key].append((roc_auc_score(wrong, -by_run.mean(0)), agreement or 0.0))


if __name__ == "__main__":
    main()
