"""The leaderboard, from the tables that the benchmarks wrote: docs/results/*.csv.

One table for estimators (every method on every problem, against each kind of truth) and one for
cleaning tools (every tool on every kind of noise). Nothing is computed here that the benchmarks do
not define: shares of the possible gain come from `benchmarks/outcome/summary.py`.
"""

import csv
import html
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAGE = "leaderboard.md"
NOT_RUN = '<span title="not run">-</span>'
MARKER = re.compile(r"<!-- table: (\w+) -->")
PROBLEMS = ("digits-relu", "digits-gelu", "adult-adam", "news-adamw", "mnist-cnn")
TRUTHS = {
    "loo_kendall_mean": "one left out",
    "lds_0.05_mean": "5 % left out",
    "lds_0.5_mean": "50 % left out",
    "auroc": "flipped labels",
}


def fill_tables(markdown: str) -> str:
    """Return the page with its tables in HTML, which a few lines of JavaScript sort."""
    tables = {"estimators": estimators_table, "table1": table1, "tools": tools_table}
    return MARKER.sub(lambda match: tables[match.group(1)](), markdown)


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table of results."""
    with (RESULTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def estimators_table() -> str:
    """Every method of peers.csv: its mean agreement with each truth, then problem by problem."""
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = defaultdict(dict)
    for row in read_rows("peers.csv"):
        found[row["method"], row["library"]][row["model"]] = row
    head = ["method", "library", "problems", *(f"mean: {name}" for name in TRUTHS.values())]
    head += ["cost"] + [
        f"{problem}: {name}" for name in list(TRUTHS.values())[:2] for problem in PROBLEMS
    ]
    lines = []
    for (method, library), by_problem in found.items():
        ran = [row for row in by_problem.values() if not row["failed"]]
        cells = [method, library, str(len(ran))]
        cells += [_mean(row[truth] for row in ran) for truth in TRUTHS]
        cells.append(_mean(row["time_mean"] for row in ran))
        for truth in list(TRUTHS)[:2]:
            cells += [_number(by_problem.get(each, {}).get(truth, "")) for each in PROBLEMS]
        lines.append(cells)
    lines.sort(key=lambda cells: -float(cells[3] or "-9"))
    return make_table("Estimators", head, lines)


def table1() -> str:
    """Every method of table1.csv in every cell, against both truths."""
    rows = read_rows("table1.csv")
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    names = {"change": "the true change", "linear": "its linear part"}
    lines = []
    for method, truth in dict.fromkeys((row["method"], row["truth"]) for row in rows):
        asked = [row for row in rows if (row["method"], row["truth"]) == (method, truth)]
        own = {row["cell"]: row["tau"] for row in asked}
        lines.append([method, names[truth], _mean(own.values()), *(_number(own[c]) for c in cells)])
    return make_table("Table 1", ["method", "truth", "mean", *cells], lines)


def tools_table() -> str:
    """Every tool of outcome.csv: the share of the possible gain in each situation, and the harm."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "outcome"))
    try:
        import summary
    finally:
        sys.path.pop(0)
    cases = summary.by_case(summary.lines_of(read_rows("outcome.csv")))
    damaged = summary.select(cases)
    situations = [each for each in summary.SITUATIONS if summary.select(cases, each)]
    head = ["tool", *(f"{each}: {measure}" for each in situations for measure in summary.MEASURES)]
    head += ["error worse", "log loss worse", "as they come: log loss worse"]
    lines = []
    for method in summary.list_methods(cases):
        cells = [method]
        for situation in situations:
            chosen = summary.select(cases, situation)
            for measure in summary.MEASURES:
                found = summary.share(chosen, method, measure)
                cells.append("" if found is None else f"{found[0]:.2f}")
        error, loss, of = summary.made_worse(damaged, method)
        cells += [f"{error} of {of}", f"{loss} of {of}"] if of else ["", ""]
        clean = summary.as_they_come(cases, method)
        cells.append("" if clean is None else f"{clean['loss worse']} of {clean['pairs']}")
        lines.append(cells)
    lines.sort(key=lambda cells: -float(cells[2] or "-9"))
    return make_table("Cleaning tools", head, lines)


def make_table(caption: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns can be sorted; the first column stays while it is scrolled."""
    columns = "".join(
        f'<th scope="col"><button type="button">{html.escape(name)}</button></th>' for name in head
    )
    rows = []
    for cells in lines:
        own = ' class="own"' if cells[0].startswith("dross") else ""
        first, *others = map(html.escape, cells)
        data = "".join(f"<td>{cell or NOT_RUN}</td>" for cell in others)
        rows.append(f'<tr{own}><th scope="row">{first}</th>{data}</tr>')
    return (
        f'<div class="board" tabindex="0" role="region" aria-label="{caption}">\n'
        f'<table class="sortable" data-caption="{caption}"><thead><tr>{columns}</tr></thead>\n'
        "<tbody>\n" + "\n".join(rows) + "\n</tbody></table>\n</div>"
    )


def _mean(values: Iterable[str]) -> str:
    numbers = [float(value) for value in values if value]
    return f"{sum(numbers) / len(numbers):.2f}" if numbers else ""


def _number(value: str) -> str:
    return f"{float(value):.2f}" if value else ""
