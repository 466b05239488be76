"""The page of results: a CSV with every number, one table per model, the duel with MAGIC, one figure.

What a person wrote on the page stays: only the part between the two marks is written anew.
"""

import json
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from dross.support.atomic_files import write_table
from dross.support.charts import BLUE, GREEN, GREY, ORANGE, RED, as_svg, panels, save_svg

from .measures import COLUMNS, load_scores, measured
from .methods import METHODS
from .problem import Problem
from .settings import SETTINGS
from .truth import SHARES

BEGIN, END = (
    "<!-- written by python -m benchmarks.peers --report -->",
    "<!-- end of what is written -->",
)
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
    models = [
        Problem.of(name, folder, small)
        for name in SETTINGS
        if (folder / name / "problem.json").exists()
    ]
    rows = [row for problem in models for row in rows_of(problem)]
    if not rows:
        raise SystemExit(f"There is nothing in {folder} yet: run the comparison first.")
    write_table(target / "peers.csv", rows)
    duels = [(p, kept(p, "duel")) for p in models]
    write_table(
        target / "peers-magic.csv",
        [row for p, made in duels for row in duel_rows(p, made)] or [{"model": ""}],
    )
    save_svg(figure(models, rows), target / "peers.svg")
    written = "\n".join(
        [
            BEGIN,
            "",
            *duel_table(duels),
            *(line for p in models for line in table(p, rows)),
            *settings(),
            END,
        ]
    )
    page = target / "peers.md"
    old = page.read_text() if page.exists() else f"# Beside the peers\n\n{BEGIN}\n{END}\n"
    page.write_text(
        re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: written, old, flags=re.DOTALL)
    )
    print(
        f"{page}: {len(rows)} rows, {sum('failed' in row and row['failed'] != '' for row in rows)} of them could not run."
    )


def kept(problem: Problem, name: str) -> dict:
    path = problem.folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def rows_of(problem: Problem) -> list[Row]:
    rows: list[Row] = []
    for name, (_, _, library, _) in METHODS.items():
        made = kept(problem, f"method-{name}")
        if not made:
            continue
        row: Row = {
            "model": problem.setting.name,
            "method": name,
            "library": library,
            **dict.fromkeys(COLUMNS, ""),
        }
        if "failed" not in made:
            spent = made["seconds"]
            row |= measured(problem, load_scores(problem.folder / f"scores-{name}.npz"))
            row |= {
                f"time_{kind}": float(np.median(spent[kind]) / np.median(spent["training"]))
                for kind in ("mean", "singles")
                if spent[kind]
            }
            row["memory"] = made["memory"]
        rows.append(
            {
                **{k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()},
                "failed": made.get("failed", ""),
            }
        )
    return rows


# --- tables --------------------------------------------------------------------------------------------------------------------


def table(problem: Problem, rows: list[Row]) -> list[str]:
    setting = problem.setting
    lines = [
        f"### {setting.name}: {setting.what}",
        "",
        f"{kept(problem, 'problem')['about']}. Truth: {setting.loo} leave-one-out runs, {setting.subsets} runs per share removed.",
        "",
        "| method | LOO tau, rho | LDS 1 / 5 / 10 / 50 % | single: LOO tau, rho | single: LDS 1 / 5 / 10 / 50 % | AUROC | x training: 1 query, QUERIES | MB |".replace(
            "QUERIES", str(setting.queries)
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if row["model"] != setting.name:
            continue
        if row["failed"]:
            lines.append(
                f"| {row['method']} | could not run: {_plain(row['failed'])} | | | | | | |"
            )
            continue
        cells = []
        for kind in ("mean", "singles"):
            cells.append(
                ", ".join(
                    filter(
                        None, (_two(row[f"loo_{what}_{kind}"]) for what in ("kendall", "spearman"))
                    )
                )
            )
            cells.append(
                " / ".join(filter(None, (_two(row[f"lds_{share:g}_{kind}"]) for share in SHARES)))
            )
        times = ", ".join(_short(row[f"time_{kind}"]) for kind in ("mean", "singles"))
        lines.append(
            f"| {row['method']} | {' | '.join(cells)} | {_two(row['auroc'])} | {times} | {float(row['memory']):.0f} |"
        )
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


def settings() -> list[str]:
    lines = [
        "### What each method is, and with which settings",
        "",
        "| method | library | what |",
        "| --- | --- | --- |",
    ]
    for name, (_, _, library, what) in METHODS.items():
        lines.append(f"| {name} | {library} {_version(library)} | {what} |")
    return [*lines, ""]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        import dross

        return dross.__version__ if library == "dross" else ""


# --- the duel ------------------------------------------------------------------------------------------------------------------


def duel_rows(problem: Problem, made: dict) -> list[Row]:
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
    lines = [
        "### dross and MAGIC: the same scores, in one process",
        "",
        "| model | recording: dross, MAGIC | 1 query: dross, MAGIC | ratio | 10 queries: dross, MAGIC | ratio | with about sqrt(T) checkpoints: 1, 10 | difference float32, float64 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for problem, made in duels:
        if "seconds" not in made:
            if "failed" in made:
                lines.append(
                    f"| {problem.setting.name} | could not run: {_plain(made['failed'])} | | | | | | |"
                )
            continue
        spent = {what: float(np.median(times)) for what, times in made["seconds"].items()}
        cost = {what: times / spent["training"] for what, times in spent.items()}
        star = "" if made["magic 10 queries measured"] else "*"
        cost.setdefault("magic 10 queries", 10 * cost["magic 1 query"])
        differences = [
            made.get("difference", made.get("difference, float32")),
            kept(problem, "equality").get("difference", made.get("difference, float64")),
        ]
        cells = [problem.setting.name]
        cells.append(f"{_short(cost['dross recording'])}, {_short(cost['magic recording'])}")
        for count in ("1 query", "10 queries"):
            ours, theirs = cost[f"dross {count}"], cost[f"magic {count}"]
            mark = star if count == "10 queries" else ""
            cells += [f"{_short(ours)}, {_short(theirs)}{mark}", f"{ours / theirs:.2f}"]
        cells.append(
            ", ".join(
                _short(cost.get(f"dross {count}, checkpoints", ""))
                for count in ("1 query", "10 queries")
            )
        )
        cells.append(", ".join("not taken" if d is None else f"{d:.0e}" for d in differences))
        lines.append(f"| {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "Costs in trainings. *: ten times the one that was timed; MAGIC goes back once per query.",
        "",
    ]


# --- the figure ----------------------------------------------------------------------------------------------------------------


def figure(models: list[Problem], rows: list[Row]) -> str:
    """Per model, a line per method: the true effect of one instance (dot), of a random tenth (ring), and the cost in words."""
    names = [name for name in METHODS if any(row["method"] == name for row in rows)]
    chart, cells = panels(
        len(models),
        len(models),
        width=1.5 + 1.75 * len(models),
        height=0.2 * len(names) + 0.9,
        sharey=True,
    )
    for cell, problem in zip(cells, models):
        for row in (row for row in rows if row["model"] == problem.setting.name):
            at, colour = names.index(str(row["method"])), COLOURS[str(row["library"])]
            if row["failed"]:
                cell.text(0, at, "could not run", va="center", fontsize=5, color=GREY)
                continue
            if row["loo_spearman_mean"] != "":
                cell.plot(float(row["loo_spearman_mean"]), at, "o", color=colour, markersize=4)
            if row["lds_0.1_mean"] != "":
                cell.plot(
                    float(row["lds_0.1_mean"]),
                    at,
                    "o",
                    color=colour,
                    markersize=6,
                    fillstyle="none",
                )
            cell.text(1.12, at, f"{_short(row['time_mean'])}x", va="center", fontsize=5, color=GREY)
        cell.axvline(0, color=GREY, linewidth=0.5)
        cell.set(
            title=problem.setting.name,
            xlim=(-0.75, 1.45),
            xticks=[-0.5, 0, 0.5, 1],
            xlabel="rank correlation",
        )
        cell.set_yticks(range(len(names)), names, fontsize=6)
        cell.grid(axis="y", linewidth=0.3)
    cells[0].invert_yaxis()
    chart.suptitle(
        "Agreement with real counterfactual runs of the mean validation loss: dot, one instance left out; ring, a random tenth.\n"
        "Grey: cost for one query, in trainings.",
        fontsize=7,
    )
    return as_svg(chart)
