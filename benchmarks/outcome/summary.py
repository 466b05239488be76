"""Shares of the possible gain, and what happens to data that needs no cleaning, as Markdown.

    python -m benchmarks.outcome.summary runs/outcome.jsonl [--into docs/results]
    python -m benchmarks.outcome.summary docs/results/outcome.csv

The possible gain is that of removing exactly the mislabeled rows. Gains of all cases, models and
sets are added up, then divided; intervals are from 10,000 bootstrap draws of sets. Numbers have a
table of their own. With --into, the table of every case goes to outcome.csv and the figure to
outcome.svg there.
"""

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

from ..tables import merge_rows

BEST, NOTHING = "exactly the mislabeled rows", "nothing"
CLEAN = "none"  # the kind of noise: data as they come
SITUATIONS = ("validation right", "validation noisy", "checked", "one file")
MEASURES = ("error", "log loss")
DRAWS = 10_000  # of the bootstrap over sets
WORSE = 0.003  # of the error: 0.3 points
WORSE_LOSS = 1.05  # of the log loss: a factor

Cases = dict[tuple, dict[str, dict]]  # {(set, noise, situation, seed): {method: result}}


def read(path: Path) -> list[dict]:
    """The lines of a file of results, or of outcome.csv; a line that was cut off is left out."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return lines_of(list(csv.DictReader(file)))
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def by_case(lines: list[dict], task: str = "classification") -> Cases:
    """The results of each case; only cases of which the best and the worst are known."""
    cases: Cases = defaultdict(dict)
    for line in lines:
        if line["measures"] is not None and line["task"] == task:
            cases[tuple(line["case"])][line["method"]] = line
    return {case: found for case, found in cases.items() if BEST in found and NOTHING in found}


def select(cases: Cases, situation: str | None = None, kind: str | None = None) -> Cases:
    """Cases with damaged labels, of one situation or kind."""
    return {
        case: found
        for case, found in cases.items()
        if case[1] != CLEAN and situation in (None, case[2]) and kind in (None, case[1])
    }


def gains(cases: Cases, method: str, measure: str, models=None) -> dict[str, np.ndarray]:
    """By set: what a method gained and what was possible, added up over cases and models."""
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))
    for case, found in cases.items():
        if method not in found:
            continue
        before, after, best = (found[m]["measures"] for m in (NOTHING, method, BEST))
        for model in models or before:
            start = before[model][measure]
            sums[case[0]] += start - np.array([after[model][measure], best[model][measure]])
    return sums


def share(
    cases: Cases, method: str, measure: str, models=None
) -> tuple[float, float, float] | None:
    """The share of the possible gain and its 95 % interval; None where there is no result."""
    by_set = gains(cases, method, measure, models)
    sums = np.array([by_set[name] for name in sorted(by_set)])  # the same draws in any order
    if not len(sums) or sums[:, 1].sum() <= 0:
        return None
    draws = np.random.default_rng(0).integers(len(sums), size=(DRAWS, len(sums)))
    drawn = sums[draws].sum(1)
    low, high = np.quantile(drawn[:, 0] / np.maximum(drawn[:, 1], 1e-9), [0.025, 0.975])
    return float(sums[:, 0].sum() / sums[:, 1].sum()), float(low), float(high)


def made_worse(cases: Cases, method: str) -> tuple[int, int, int]:
    """Cases whose error (mean of the models) rose by 0.3 points, log loss by 5 %, and all cases."""
    error = loss = count = 0
    for found in cases.values():
        if method in found:
            before, after = (
                {
                    m: np.mean([each[m] for each in found[name]["measures"].values()])
                    for m in MEASURES
                }
                for name in (NOTHING, method)
            )
            error += after["error"] > before["error"] + WORSE
            loss += after["log loss"] > before["log loss"] * WORSE_LOSS
            count += 1
    return int(error), int(loss), count


def as_they_come(cases: Cases, method: str) -> dict[str, float] | None:
    """What a method does to data that nobody damaged, over pairs of set and model.

    A pair's figures are means over seeds and situations.
    """
    changes: dict[tuple, list] = defaultdict(list)
    touched: dict[str, list] = defaultdict(list)
    for case, found in cases.items():
        if case[1] != CLEAN or method not in found:
            continue
        result = found[method]
        touched[case[0]].append((result["removed"] + result["relabeled"]) / result["rows"])
        for model, after in result["measures"].items():
            before = found[NOTHING]["measures"][model]
            pair = [after["error"] - before["error"], after["log loss"] / before["log loss"]]
            changes[case[0], model].append(pair)
    if not changes:
        return None
    means = np.array([np.mean(pairs, axis=0) for pairs in changes.values()])
    return {
        "pairs": len(means),
        "loss worse": int((means[:, 1] > WORSE_LOSS).sum()),
        "loss factor": float(np.median(means[:, 1])),
        "error points": 100 * float(means[:, 0].mean()),
        "touched": 100 * float(np.median([np.mean(shares) for shares in touched.values()])),
    }


def mean_of(cases: Cases, method: str, measure: str) -> float:
    """The mean of a measure over cases and models."""
    return float(
        np.mean(
            [
                each[measure]
                for found in cases.values()
                if method in found
                for each in found[method]["measures"].values()
            ]
        )
    )


def list_methods(cases: Cases) -> list[str]:
    """The methods that have results, without those that they are compared with."""
    found = dict.fromkeys(method for results in cases.values() for method in results)
    return [method for method in found if method not in (NOTHING, BEST)]


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """A table in Markdown."""
    print("\n| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def _cell(cases: Cases, method: str, models=None, interval: bool = False) -> str:
    parts = []
    for measure in MEASURES:
        found = share(cases, method, measure, models)
        if found is None:
            return ""
        value, low, high = found
        parts.append(f"{value:.2f}" + (f" [{low:.2f}, {high:.2f}]" if interval else ""))
    return " / ".join(parts)


def show(lines: list[dict]) -> None:
    """Print everything."""
    cases = by_case(lines)
    methods = list_methods(cases)
    damaged = select(cases)
    names = sorted({case[0] for case in damaged})
    print(f"\n## Corrupted labels: {len(names)} datasets, {len(damaged)} cases")
    print("\nShare of the possible gain, in error / in log loss.")
    head = ["method", *SITUATIONS]
    rows = [[m, *(_cell(select(cases, s), m, interval=True) for s in SITUATIONS)] for m in methods]
    print_table(head, rows)
    kinds = list(dict.fromkeys(case[1] for case in damaged))
    for situation in SITUATIONS:
        print(f"\n### {situation}, by kind of noise")
        chosen = [select(cases, situation, kind) for kind in kinds]
        print_table(["method", *kinds], [[m, *(_cell(c, m) for c in chosen)] for m in methods])
    models = list(dict.fromkeys(m for f in damaged.values() for m in f[NOTHING]["measures"]))
    print("\n### By evaluation model, all situations")
    rows = [[m, *(_cell(damaged, m, (model,)) for model in models)] for m in methods]
    print_table(["method", *models], rows)
    print("\n### By dataset, all situations")
    of_set = [{c: f for c, f in damaged.items() if c[0] == name} for name in names]
    print_table(["method", *names], [[m, *(_cell(c, m) for c in of_set)] for m in methods])
    print("\n### Harm, calibration, time")
    rows = []
    for method in [NOTHING, BEST, *methods]:
        error, loss, count = made_worse(damaged, method)
        done = [found[method] for found in damaged.values() if method in found]
        if not done:
            continue
        seconds = np.median([result["seconds"] for result in done])
        ece = mean_of(damaged, method, "ece")
        touched = sum(r["removed"] + r["relabeled"] for r in done)
        hits = sum(r["found"] for r in done)
        wrong = sum(r["wrong"] for r in done)
        precision = f"{hits / touched:.2f}" if touched else ""
        cells = [method, f"{error} of {count}", f"{loss} of {count}", f"{100 * ece:.1f}"]
        rows.append([*cells, precision, f"{hits / max(wrong, 1):.2f}", f"{seconds:.1f}"])
    head = ["method", "error worse by 0.3 points", "log loss worse by 5 %", "ECE, %"]
    print_table([*head, "precision", "recall", "median seconds"], rows)
    _show_as_they_come(cases, methods)
    _show_numbers(lines)
    _show_notes(cases)


def _show_as_they_come(cases: Cases, methods: list[str]) -> None:
    clean = {case: found for case, found in cases.items() if case[1] == CLEAN}
    overlapping = {case[0] for case in clean} - {case[0] for case in select(cases)}
    for title, names in (
        ("overlapping classes", overlapping),
        ("the datasets above", {case[0] for case in clean} - overlapping),
    ):
        chosen = {case: found for case, found in clean.items() if case[0] in names}
        print(f"\n## Unmodified data: {title} ({len(names)} datasets)")
        rows = []
        for method in methods:
            found = as_they_come(chosen, method)
            if found is None:
                continue
            of = {case: results for case, results in chosen.items() if method in results}
            ece = [100 * mean_of(of, name, "ece") for name in (NOTHING, method)]
            rows.append(
                [
                    method,
                    f"{found['loss worse']} of {found['pairs']}",
                    f"{found['loss factor']:.3f}",
                    f"{found['error points']:+.2f}",
                    f"{found['touched']:.1f}",
                    f"{ece[0]:.1f} -> {ece[1]:.1f}",
                ]
            )
        head = ["method", "log loss worse by 5 %", "median factor", "error, points"]
        print_table([*head, "touched, % (median)", "ECE, %"], rows)


def _show_numbers(lines: list[dict]) -> None:
    cases = by_case(lines, "regression")
    if not cases:
        return
    damaged, methods = select(cases), list_methods(cases)
    print("\n## Numeric targets: share of the possible gain in absolute error / log score")
    rows = []
    for method in methods:
        cells = [_cell(select(cases, situation), method) for situation in SITUATIONS]
        error, loss, count = made_worse(damaged, method)
        found = as_they_come(cases, method)
        clean = ""
        if found is not None:
            clean = f"{found['loss worse']} of {found['pairs']}, {found['error points'] / 100:+.4f}"
        rows.append([method, *cells, f"{error}, {loss} of {count}", clean])
    head = ["method", *SITUATIONS, "worse: error, log score"]
    print_table([*head, "unmodified data: log score worse by 5 %, change in the error"], rows)


def _show_notes(cases: Cases) -> None:
    """What dross decided, by situation."""
    counts: dict[tuple, int] = defaultdict(int)
    for case, found in cases.items():
        if "dross" in found:
            kind = CLEAN if case[1] == CLEAN else "damaged"
            counts[kind, case[2], found["dross"]["note"]] += 1
    print("\n## What dross decided")
    print_table(
        ["labels", "situation", "decision", "cases"],
        [[*key, str(count)] for key, count in sorted(counts.items())],
    )


# --- the table of every case, and the figure ----------------------------------------------------

HEAD = ("set", "task", "noise", "situation", "seed", "method", "model")
HEAD += ("error", "log_loss", "ece", "removed", "relabeled", "wrong", "found", "rows", "seconds")


def list_rows(lines: list[dict]) -> list[tuple]:
    """Every measure of every case, one row for each method and model."""
    rows = []
    for line in sorted(lines, key=lambda line: (line["case"], line["method"])):
        if line["measures"] is None:
            continue
        name, *about = line["case"]
        counts = [line[k] for k in ("removed", "relabeled", "wrong", "found", "rows", "seconds")]
        for model, found in line["measures"].items():
            values = [f"{found[measure]:.5f}" for measure in (*MEASURES, "ece")]
            rows.append((name, line["task"], *about, line["method"], model, *values, *counts))
    return rows


def lines_of(rows: list[dict[str, str]]) -> list[dict]:
    """The lines of results again, from the rows of outcome.csv."""
    found: dict[tuple, dict] = {}
    for row in rows:
        case = [row["set"], row["noise"], row["situation"], int(row["seed"])]
        line = found.setdefault((*case, row["method"]), {"case": case, "measures": {}, "note": ""})
        line |= {"method": row["method"], "task": row["task"], "seconds": float(row["seconds"])}
        line |= {k: int(row[k]) for k in ("removed", "relabeled", "wrong", "found", "rows")}
        columns = {"error": "error", "log loss": "log_loss", "ece": "ece"}
        line["measures"][row["model"]] = {k: float(row[c]) for k, c in columns.items()}
    return list(found.values())


def write_rows(lines: list[dict], path: Path) -> None:
    """The table of every case."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        writer.writerows(list_rows(lines))


def add_rows(lines: list[dict], methods: list[str], path: Path) -> None:
    """Put the rows of some methods into the table of every case."""
    chosen = [line for line in lines if line["method"] in methods]
    merge_rows(path, [dict(zip(HEAD, row, strict=True)) for row in list_rows(chosen)], HEAD[:7])


def draw(lines: list[dict], path: Path) -> None:
    """Bars: shares of the possible gain, and how often clean data became worse."""
    from dross import _figures as charts

    cases = by_case(lines)
    damaged = select(cases)
    methods = [m for m in list_methods(cases) if m != "dross without guard"]
    shares = {m: [share(damaged, m, measure) for measure in MEASURES] for m in methods}
    known = {m: [v for v in found if v is not None] for m, found in shares.items()}
    methods = sorted((m for m in methods if len(known[m]) == 2), key=lambda m: known[m][0][0])
    with charts.house_style():
        figure, panels = charts.panels(
            3, 3, width=7.2, height=0.34 * len(methods) + 1.1, sharey=True
        )
        titles = (
            "possible gain: error",
            "possible gain: log loss",
            "unmodified: log loss worse, %",
        )
        for panel, title in zip(panels, titles, strict=True):
            panel.set_title(title)
        for place, method in enumerate(methods):
            colour = charts.BLUE if method == "dross" else charts.GREY
            for panel, (value, low, high) in zip(panels, known[method], strict=False):
                error = [[value - low], [high - value]]
                panel.barh(place, value, 0.6, color=colour, xerr=error, ecolor="#00000066")
                panel.text(0.02, place, f"{value:.2f}", va="center", fontsize=6)
            found = as_they_come(cases, method)
            if found is not None:
                value = 100 * found["loss worse"] / found["pairs"]
                panels[2].barh(place, value, 0.6, color=colour)
                text = f"{found['loss worse']} of {found['pairs']}"
                panels[2].text(value + 1, place, text, va="center", fontsize=6)
        for panel in panels[:2]:
            panel.set_xlim(-0.5, 1.1)
            panel.axvline(0, color="black", linewidth=0.6)
        panels[0].set_yticks(range(len(methods)), methods)
        figure.savefig(path)


def main() -> None:
    """Print the tables; write rows and the figure where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, help="a folder for outcome.csv and outcome.svg")
    options = parser.parse_args()
    lines = [line for path in options.results for line in read(path)]
    show(lines)
    if options.into is not None:
        write_rows(lines, options.into / "outcome.csv")
        draw(lines, options.into / "outcome.svg")


if __name__ == "__main__":
    main()
