"""Table 1 of the paper: how well the linear influence is estimated.

Six cells: Adult, 20 Newsgroups and MNIST (one against seven), each with logistic regression and
with a small network. A repetition draws 200 training and 200 validation instances, trains, and
compares each estimate with the truth, 200 counterfactual runs, by Kendall's tau and by the Jaccard
index of the ten largest and ten smallest. Repetitions are saved as they finish, and a run that was
stopped continues.

    python -m experiments.table1 [--repetitions 10] [--only adult-dnn,mnist-logreg] [--jobs 2]

It takes about 40 seconds of one core per repetition of all six cells.
"""

import argparse
import os
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from joblib import Parallel, delayed

from dross import _figures as charts
from dross import estimators
from dross.errors import Diverged
from dross.influence.query import Query, mean_loss
from dross.influence.run import Run
from dross.influence.verify import jaccard_of_extremes
from dross.record.train import train

from . import problems
from .networks import dense
from .results import load_result, save_result

METHODS = {
    "retrace": "retrace (proposed)",
    "no-hessian": "no Hessian",
    "k&l": "K&L, as published",
    "k&l exact": "K&L, solved exactly",
}
SETTINGS = 1  # counts the settings below; results of other settings are not mixed with these


@dataclass(frozen=True)
class Cell:
    """A dataset and a model of Table 1, with the paper's settings and results."""

    data: str
    network: bool  # two hidden layers of eight, or logistic regression
    epochs: int
    batch_size: int
    rate: float
    #: the paper's means: tau and Jaccard of the proposed method, of K&L
    tau: float
    tau_kl: float
    jaccard: float
    jaccard_kl: float

    def eta(self, t: int) -> float:
        """The learning rate of step t."""
        return self.rate if self.network else self.rate / np.sqrt(t + 1)


CELLS = {
    "adult-logreg": Cell("adult", False, 20, 5, 0.1, 0.93, 0.85, 0.80, 0.60),
    "adult-dnn": Cell("adult", True, 10, 20, 0.1, 0.75, 0.54, 0.59, 0.32),
    "20news-logreg": Cell("20news", False, 10, 5, 0.01, 0.94, 0.82, 0.79, 0.52),
    "20news-dnn": Cell("20news", True, 10, 20, 0.1, 0.45, 0.37, 0.25, 0.11),
    "mnist-logreg": Cell("mnist", False, 5, 5, 0.1, 0.95, 0.70, 0.83, 0.41),
    "mnist-dnn": Cell("mnist", True, 10, 20, 0.1, 0.45, 0.27, 0.37, 0.27),
}


@cache
def _problem(data: str) -> tuple[np.ndarray, np.ndarray]:
    return problems.two_class_problem(data)


def penalty_weight(cell: Cell, sample: problems.Sample) -> float:
    """alpha: 0.001 for the network; for logistic regression 1/(C N), C by cross validation."""
    if cell.network:
        return 0.001
    from sklearn.linear_model import LogisticRegressionCV

    with warnings.catch_warnings():
        # about scikit-learn's next version, and about folds that do not converge
        warnings.simplefilter("ignore")
        search = LogisticRegressionCV(Cs=10, cv=5, fit_intercept=False)
        search.fit(sample.x_train, sample.y_train)
    return 1 / (problems.SAMPLE_SIZE * float(np.ravel(search.C_)[0]))


def train_cell(
    cell: Cell, sample: problems.Sample, alpha: float, seed: int, folder: Path
) -> tuple[Run, Query]:
    """Record a run of the cell's model, and return it with its validation loss as the query."""
    torch.manual_seed(seed)
    model = dense(sample.x_train.shape[1], *([8, 8] if cell.network else []), 1)
    count = problems.SAMPLE_SIZE
    orders = [
        np.random.default_rng([seed, epoch]).permutation(count) for epoch in range(cell.epochs)
    ]
    batches = [ids for order in orders for ids in np.split(order, count // cell.batch_size)]
    run = train(
        model,
        (sample.x_train, sample.y_train),
        "binary_cross_entropy",
        torch.optim.SGD(model.parameters(), lr=cell.rate),
        path=folder,
        batches=batches,
        epochs=cell.epochs,
        lr=cell.eta,
        seed=seed,
        progress=False,
        overwrite=True,
        penalty=lambda params: (
            alpha / 2 * torch.stack([value.square().sum() for value in params.values()]).sum()
        ),
    )
    return run, mean_loss((sample.x_validation, sample.y_validation))


def run_repetition(name: str, seed: int) -> dict:
    """Run one repetition of one cell: estimates, both truths, and how well they agree."""
    cell = CELLS[name]
    torch.set_num_threads(1)
    sample = problems.draw(_problem(cell.data), seed)
    alpha = penalty_weight(cell, sample)
    with tempfile.TemporaryDirectory(prefix="dross-") as folder:
        run, query = train_cell(cell, sample, alpha, seed, Path(folder) / "tape")
        estimated = _estimate(run, query, damping=1.0 if cell.network else alpha)
        truth = _compute_truths(run, query)
    agreement = {
        method: {of: _measure_agreement(values, true) for of, true in truth.items()}
        for method, values in estimated.items()
    }
    return {
        "cell": name,
        "seed": seed,
        "settings": SETTINGS,
        "alpha": alpha,
        "agreement": agreement,
        "estimated": {method: values.tolist() for method, values in estimated.items()},
        "truth": {of: values.tolist() for of, values in truth.items()},
    }


def _estimate(run: Run, query: Query, damping: float) -> dict[str, np.ndarray]:
    """Each method's scores [N]; the exact K&L is missing where it has no solution."""
    published = estimators.InfluenceFunction(estimators.MomentumSGD(100, 0.01, 0.9), damping)
    estimated = {
        "retrace": run.influence(query).values,
        "no-hessian": estimators.WithoutHessian().score(run, query).values,
        "k&l": published.score(run, query).values,
    }
    # A network's Hessian need not be positive definite, whatever the damping.
    with suppress(Diverged):
        exact = estimators.InfluenceFunction(estimators.ConjugateGradients(500, 1e-6), damping)
        estimated["k&l exact"] = exact.score(run, query).values
    return estimated


def _compute_truths(run: Run, query: Query) -> dict[str, np.ndarray]:
    """The change in the loss and <u, theta_-j - theta> for every instance [N].

    Both come from the same counterfactual runs.
    """
    runs = run.counterfactual([[j] for j in range(len(run))])
    seed, _ = query.derivative(run.recording.objective, run.recording.state_at(run.steps))
    parts = [(chunk.theta[1:] - chunk.theta[:1]) @ seed.theta[0] for chunk in runs.chunks]
    linear = np.concatenate([part.double().numpy() for part in parts])
    return {"change": runs.changes(query), "linear": linear}


def _measure_agreement(estimated: np.ndarray, true: np.ndarray) -> dict[str, float]:
    from scipy.stats import kendalltau

    tau: Any = kendalltau(estimated, true)[0]
    return {"tau": float(tau), "jaccard": jaccard_of_extremes(estimated, true)}


# --- many repetitions ---


def run_all(folder: Path, cells: list[str], repetitions: int, n_jobs: int) -> list[dict]:
    """The results of all repetitions; those that the folder has are not computed again."""
    pieces = [(name, seed) for seed in range(repetitions) for name in cells]
    workers = Parallel(n_jobs=n_jobs, batch_size=1, verbose=5)
    results: Any = workers(delayed(_load_or_run)(folder, name, seed) for name, seed in pieces)
    return list(results)


def _load_or_run(folder: Path, name: str, seed: int) -> dict:
    path = folder / f"{name}-{seed:03d}.json"
    result = load_result(path, SETTINGS)
    if result is None:
        result = run_repetition(name, seed)
        save_result(path, result)
    return result


# --- the report ---


def summarize(results: list[dict]) -> list[dict]:
    """One row per cell, method and truth: mean and standard deviation of tau and Jaccard."""
    agreements: dict[tuple[str, str], list[dict]] = {}
    for result in results:
        for method in METHODS:
            if method in result["agreement"]:
                agreement = result["agreement"][method]
                agreements.setdefault((result["cell"], method), []).append(agreement)
    rows = []
    for (cell, method), chosen in agreements.items():
        for truth in ("change", "linear"):
            row = {"cell": cell, "method": method, "truth": truth, "repetitions": len(chosen)}
            for metric in ("tau", "jaccard"):
                values = np.array([agreement[truth][metric] for agreement in chosen])
                row |= {metric: float(values.mean()), f"{metric}_std": float(values.std())}
            rows.append(row)
    return rows


def paper_value(cell: str, method: str, metric: str) -> float | None:
    """The paper's mean of "tau" or "jaccard", for the two methods that it has."""
    if method not in ("retrace", "k&l"):
        return None
    return getattr(CELLS[cell], metric + ("_kl" if method == "k&l" else ""))


_HEADER = (
    "cell",
    "estimate",
    "repetitions",
    "tau",
    "tau in the paper",
    "Jaccard",
    "Jaccard in the paper",
    "tau, linear truth",
    "Jaccard, linear truth",
)


def as_markdown(rows: list[dict]) -> str:
    """The summary as a table, one line per cell and method."""
    lines = ["| " + " | ".join(_HEADER) + " |", "|" + " --- |" * len(_HEADER)]
    by_key = {(row["cell"], row["method"], row["truth"]): row for row in rows}
    for row in rows:
        if row["truth"] != "change":
            continue
        cell, method = row["cell"], row["method"]
        cells = [cell, METHODS[method], str(row["repetitions"])]
        for metric in ("tau", "jaccard"):
            published = paper_value(cell, method, metric)
            cells += [_mean_and_std(row, metric), "" if published is None else f"{published:.2f}"]
        linear = by_key[cell, method, "linear"]
        cells += [_mean_and_std(linear, metric) for metric in ("tau", "jaccard")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean_and_std(row: dict, metric: str) -> str:
    return f"{row[metric]:.2f} ({row[metric + '_std']:.2f})"


def write_report(folder: Path, rows: list[dict], results: list[dict]) -> list[Path]:
    """Write the summary as Markdown and as CSV, and the scatter plots; returns the paths."""
    (folder / "summary.md").write_text(as_markdown(rows) + "\n", encoding="utf-8")
    pandas.DataFrame(rows).to_csv(folder / "summary.csv", index=False)
    draw_scatter(results, folder / "scatter.svg")
    return [folder / name for name in ("summary.md", "summary.csv", "scatter.svg")]


@charts.house_style()
def draw_scatter(results: list[dict], path: Path, seed: int = 0) -> None:
    """Draw estimated against true for every cell, one repetition: the paper's scatter plots."""
    chosen = [result for result in results if result["seed"] == seed]
    canvas, panels = charts.panels(len(chosen), 3, height=2.6)
    for panel, result in zip(panels, chosen):
        true = np.array(result["truth"]["change"])
        for method, colour in (("k&l", charts.ORANGE), ("retrace", charts.BLUE)):
            style = {"s": 6, "color": colour, "alpha": 0.7, "linewidths": 0}
            panel.scatter(true, result["estimated"][method], label=METHODS[method], **style)
        low, high = true.min(), true.max()
        panel.plot([low, high], [low, high], color="0.6", linewidth=0.7, zorder=0)
        tau = result["agreement"]["retrace"]["change"]["tau"]
        panel.set_title(f"{result['cell']}: tau {tau:.2f}", fontsize=8, loc="right")
        panel.ticklabel_format(style="sci", scilimits=(-2, 2))
    panels[0].legend()
    canvas.supxlabel("true change in the validation loss")
    canvas.supylabel("estimated")
    charts.save_svg(charts.as_svg(canvas), path)


def main() -> None:
    """Compute the repetitions, print the table, and write the report beside the results."""
    parser = argparse.ArgumentParser(description="Table 1 of the paper.")
    parser.add_argument("--repetitions", type=int, default=10, help="the paper has 100")
    parser.add_argument("--only", default=",".join(CELLS), help="cells, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("runs/table1"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    results = run_all(options.out, options.only.split(","), options.repetitions, options.jobs)
    rows = summarize(results)
    print(as_markdown(rows))
    print("Written:", *write_report(options.out, rows, results))


if __name__ == "__main__":
    main()
