"""The page of results: every number as CSV, the means as a table, the duel with MAGIC, a figure.

    PYTHONPATH=src python -m benchmarks.peers --report docs/results

What a person wrote on the page stays: only the part between the two marks is written anew.
"""

import json
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pandas

from dross._figures import BLUE, GREEN, GREY, ORANGE, RED, as_svg, panels, save_svg

from ..tables import merge_rows
from .measures import COLUMNS, load_scores, measure_agreement
from .methods import METHODS
from .problem import Problem
from .settings import SETTINGS

BEGIN = "<!-- written by python -m benchmarks.peers --report -->"
END = "<!-- end of what is written -->"
COLOURS = {
    "dross": BLUE,
    "bergson": RED,
    "captum": ORANGE,
    "dattri": GREEN,
    "kronfluence": "#7a5195",
    "pyDVL": "#3f8f9b",
    "traker": GREY,
}
Row = dict[str, str | float]


def write_report(folder: Path, target: Path, small: bool) -> None:
    """Write the page, its tables and its figure from the results in the folder."""
    names = [name for name in SETTINGS if (folder / name / "problem.json").exists()]
    models = [Problem.of(name, folder, small) for name in names]
    rows = [row for problem in models for row in collect_rows(problem)]
    if not rows:
        raise SystemExit(f"There is nothing in {folder} yet: run the comparison first.")
    pandas.DataFrame(rows).to_csv(target / "peers.csv", index=False)
    duels = [(problem, load_result(problem, "duel")) for problem in models]
    costs = [row for problem, result in duels for row in duel_rows(problem, result)]
    magic = pandas.DataFrame(costs, columns=None if costs else ["model"])
    magic.to_csv(target / "peers-magic.csv", index=False)
    save_svg(figure(models, rows), target / "peers.svg")
    written = "\n".join([BEGIN, "", *duel_table(duels), *summary_table(rows), END])
    page = target / "peers.md"
    old = (
        page.read_text()
        if page.exists()
        else f"# Comparison with other libraries\n\n{BEGIN}\n{END}\n"
    )
    between = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    page.write_text(between.sub(lambda _: written, old))
    failures = sum(row["failed"] != "" for row in rows)
    print(f"{page}: {len(rows)} rows, {failures} of them could not run.")


def add_rows(folder: Path, target: Path, methods: Sequence[str], small: bool) -> None:
    """Put the rows of some methods into the table of all, in the place of those of an earlier run.

    The page of peers stays as it is.
    """
    names = [name for name in SETTINGS if (folder / name / "problem.json").exists()]
    rows = [row for name in names for row in collect_rows(Problem.of(name, folder, small))]
    mine = [row for row in rows if row["method"] in methods]
    merge_rows(target / "peers.csv", mine, ("model", "method"))


def load_result(problem: Problem, name: str) -> dict:
    """What a step has written, or nothing."""
    path = problem.folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def collect_rows(problem: Problem) -> list[Row]:
    """One row per method that has run or failed."""
    rows: list[Row] = []
    for name, method in METHODS.items():
        made = load_result(problem, f"method-{name}")
        if not made:
            continue
        row: Row = {"model": problem.setting.name, "method": name, "library": method.library}
        row |= dict.fromkeys(COLUMNS, "")
        if "failed" not in made:
            spent = made["seconds"]
            row |= measure_agreement(problem, load_scores(problem.folder / f"scores-{name}.npz"))
            row |= {
                f"time_{kind}": float(np.median(spent[kind]) / np.median(spent["training"]))
                for kind in ("mean", "singles")
                if spent[kind]
            }
            row["memory"] = made["memory"]
        shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}
        rows.append(shown | {"failed": made.get("failed", "")})
    return rows


# --- tables ---


def _head(*columns: str) -> list[str]:
    return ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]


def summary_table(rows: list[Row]) -> list[str]:
    """The lines about all methods: means over the models that each of them could run on."""
    head = _head(
        "method",
        "library",
        "what",
        "models",
        "LOO tau",
        "LDS 5 %",
        "LDS 50 %",
        "AUROC",
        "x training",
    )
    shown = ("loo_kendall_mean", "lds_0.05_mean", "lds_0.5_mean", "auroc", "time_mean")
    lines = ["### Means over the models", "", *head]
    for name, method in METHODS.items():
        ran = [row for row in rows if row["method"] == name and not row["failed"]]
        cells = [name, f"{method.library} {_version(method.library)}", method.what, str(len(ran))]
        for column in shown:
            values = [float(row[column]) for row in ran if row[column] != ""]
            write = _short if column == "time_mean" else _two
            cells.append(write(float(np.mean(values))) if values else "")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _two(value: str | float) -> str:
    return "" if value == "" else f"{float(value):.2f}"


def _short(value: str | float) -> str:
    if value == "":
        return "not taken"
    if float(value) < 0.1:
        return "<0.1"
    return f"{float(value):.2g}" if float(value) < 10 else f"{float(value):.0f}"


def _plain(text: str | float) -> str:
    if "allocate memory" in str(text):
        return "it asked for more than 7 GiB of memory"
    return re.sub(r"(/[\w.-]+){2,}", "...", str(text)).replace("|", "/")


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        import dross

        return dross.__version__ if library == "dross" else ""


# --- the duel ---


def duel_rows(problem: Problem, made: dict) -> list[Row]:
    """The costs of one duel, a row each."""
    if "seconds" not in made:
        return []
    one = float(np.median(made["seconds"]["training"]))
    return [
        {
            "model": problem.setting.name,
            "what": what,
            "times one training": f"{np.median(spent) / one:.4g}",
            "timings": len(spent),
        }
        for what, spent in made["seconds"].items()
        if what != "training"
    ]


def duel_table(duels: list[tuple[Problem, dict]]) -> list[str]:
    """Medians of interleaved timings in one process, over the plain training."""
    head = _head(
        "model",
        "recording: dross, MAGIC",
        "1 query: dross, MAGIC",
        "ratio",
        "10 queries: dross, MAGIC",
        "ratio",
        "with about sqrt(T) checkpoints: 1, 10",
        "difference float32, float64",
    )
    lines = ["### dross and MAGIC: the same scores, in one process", "", *head]
    for problem, made in duels:
        name = problem.setting.name
        if "seconds" in made:
            lines.append(f"| {' | '.join([name, *_duel_cells(problem, made)])} |")
        elif "failed" in made:
            lines.append(f"| {name} | could not run: {_plain(made['failed'])} | | | | | | |")
    note = (
        "Costs are in units of one training run. *: ten times the cost of one query; "
        "MAGIC goes back once per query."
    )
    return [*lines, "", note, ""]


def _duel_cells(problem: Problem, made: dict) -> list[str]:
    spent = {what: float(np.median(times)) for what, times in made["seconds"].items()}
    cost = {what: times / spent["training"] for what, times in spent.items()}
    cost.setdefault("magic 10 queries", 10 * cost["magic 1 query"])
    counts = ("1 query", "10 queries")
    cells = [f"{_short(cost['dross recording'])}, {_short(cost['magic recording'])}"]
    for count in counts:
        ours, theirs = cost[f"dross {count}"], cost[f"magic {count}"]
        estimated = count == "10 queries" and not made["magic 10 queries measured"]
        mark = "*" if estimated else ""
        cells += [f"{_short(ours)}, {_short(theirs)}{mark}", f"{ours / theirs:.2f}"]
    cells.append(", ".join(_short(cost.get(f"dross {n}, checkpoints", "")) for n in counts))
    equality = load_result(problem, "equality")
    differences = [
        made.get("difference", made.get("difference, float32")),
        equality.get("difference", made.get("difference, float64")),
    ]
    cells.append(", ".join("not taken" if d is None else f"{d:.0e}" for d in differences))
    return cells


# --- the figure ---


def figure(models: list[Problem], rows: list[Row]) -> str:
    """Per model, a line per method: agreement with the truth, and the cost in words.

    A dot is for one instance left out, a ring for a random tenth.
    """
    names = [name for name in METHODS if any(row["method"] == name for row in rows)]
    count = len(models)
    size = {"width": 1.5 + 1.75 * count, "height": 0.2 * len(names) + 0.9}
    chart, cells = panels(count, count, sharey=True, **size)
    for cell, problem in zip(cells, models):
        for row in (row for row in rows if row["model"] == problem.setting.name):
            at, colour = names.index(str(row["method"])), COLOURS[str(row["library"])]
            if row["failed"]:
                cell.text(0, at, "could not run", va="center", fontsize=5, color=GREY)
                continue
            if row["loo_spearman_mean"] != "":
                cell.plot(float(row["loo_spearman_mean"]), at, "o", color=colour, markersize=4)
            if row["lds_0.1_mean"] != "":
                ring = {"color": colour, "markersize": 6, "fillstyle": "none"}
                cell.plot(float(row["lds_0.1_mean"]), at, "o", **ring)
            cell.text(1.12, at, f"{_short(row['time_mean'])}x", va="center", fontsize=5, color=GREY)
        cell.axvline(0, color=GREY, linewidth=0.5)
        cell.set(title=problem.setting.name, xlabel="rank correlation")
        cell.set(xlim=(-0.75, 1.45), xticks=[-0.5, 0, 0.5, 1])
        cell.set_yticks(range(len(names)), names, fontsize=6)
        cell.grid(axis="y", linewidth=0.3)
    cells[0].invert_yaxis()
    chart.suptitle(
        "Agreement with real counterfactual runs of the mean validation loss: dot, one instance "
        "left out; ring, a random tenth.\nGrey: cost for one query, in training runs.",
        fontsize=7,
    )
    return as_svg(chart)
