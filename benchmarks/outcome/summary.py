"""Pooled shares of the possible gain, by method, kind of noise and judging model.

    python benchmarks/outcome/summary.py runs/outcome.jsonl [--into docs/results]

With --into, the table of every case goes to outcome.csv and the picture to outcome.svg there.
"""

import argparse
import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

from dross.support import charts

BEST = "exactly the wrong ones"
WORSE = 0.005  # of the error, which counts as harm on clean data
TOLD = ("random", "training loss")  # methods that know how many labels are wrong
JUDGES = ("linear", "trees", "network")


def read(path: Path) -> list[dict]:
    """The lines of a file of results; a line that was cut off is left out."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def by_case(lines: list[dict]) -> dict[tuple, dict[str, dict]]:
    """{case: {method: result}}, of complete results only."""
    cases = defaultdict(dict)
    for line in lines:
        if line["errors"] is not None:
            cases[tuple(line["case"])][line["method"]] = line
    return {case: found for case, found in cases.items() if BEST in found and "nothing" in found}


def share(cases: dict, method: str, judges=JUDGES) -> float | None:
    """The gain of a method over that of removing exactly the wrong ones, each added up.

    Errors of classes are shares of mistakes; those of numbers are divided by what they are when
    nothing is done. None where the method has no result.
    """
    gained = possible = 0.0
    for case, found in cases.items():
        if case[1] == "none" or method not in found:
            continue
        before, best, after = (found[m]["errors"] for m in ("nothing", BEST, method))
        for judge in judges:
            unit = before[judge] if case[0] in ("diamonds", "ames") else 1.0
            gained += (before[judge] - after[judge]) / unit
            possible += (before[judge] - best[judge]) / unit
    return gained / possible if possible else None


def worse_on_clean(cases: dict, method: str) -> tuple[int, int]:
    """How often a method made clean data worse, and how often it could have."""
    clean = [found for case, found in cases.items() if case[1] == "none" and method in found]
    pairs = [(f[method]["errors"], f["nothing"]["errors"]) for f in clean]
    worse = [after[j] > before[j] + WORSE for after, before in pairs for j in JUDGES]
    return sum(worse), len(worse)


def list_methods(cases: dict) -> list[str]:
    """The methods that have results, without those that they are compared with."""
    found = dict.fromkeys(method for results in cases.values() for method in results)
    return [method for method in found if method not in ("nothing", BEST)]


def show(lines: list[dict]) -> None:
    """Print everything as tables in Markdown."""
    cases = by_case(lines)
    methods = list_methods(cases)
    kinds = [k for k in dict.fromkeys(case[1] for case in cases) if k != "none"]
    for noisy in (False, True):
        chosen = {case: found for case, found in cases.items() if case[2] == noisy}
        print(f"\n## Validation labels {'as wrong as the others' if noisy else 'right'}\n")
        print("| method | all |", " | ".join([*JUDGES, *kinds]), "|")
        print("| --- |" + " --- |" * (1 + len(JUDGES) + len(kinds)))
        for method in methods:
            row = [share(chosen, method), *(share(chosen, method, (j,)) for j in JUDGES)]
            for kind in kinds:
                row.append(share({c: f for c, f in chosen.items() if c[1] == kind}, method))
            print(f"| {method} |", " | ".join("" if v is None else f"{v:.2f}" for v in row), "|")
    print("\n## Clean data\n")
    print("| method | made worse by more than 0.5 % | median seconds |\n| --- | --- | --- |")
    for method in methods:
        worse, of = worse_on_clean(cases, method)
        seconds = sorted(f[method]["seconds"] for f in cases.values() if method in f)
        middle = seconds[len(seconds) // 2] if seconds else float("nan")
        print(f"| {method} | {worse} of {of} | {middle:.0f} |")


HEAD = ("set", "noise", "validation", "seed", "method", "judge", "error", "touched", "seconds")


def list_rows(cases: dict) -> list[tuple]:
    """Every error of every case, one row for each method and judge."""
    rows = []
    for (name, kind, noisy, seed), found in sorted(cases.items()):
        about = (name, kind, "noisy" if noisy else "right", seed)
        for method, result in found.items():
            touched = result["removed"] + result["relabelled"]
            for judge, error in result["errors"].items():
                rows.append((*about, method, judge, f"{error:.5f}", touched, result["seconds"]))
    return rows


def write_rows(cases: dict, path: Path) -> None:
    """The table of every case."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        writer.writerows(list_rows(cases))


def add_rows(lines: list[dict], methods: list[str], path: Path) -> None:
    """Put the rows of some methods into the table of every case."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tables import merge_rows

    cases = defaultdict(dict)
    for line in lines:
        if line["errors"] is not None and line["method"] in methods:
            cases[tuple(line["case"])][line["method"]] = line
    merge_rows(path, [dict(zip(HEAD, row)) for row in list_rows(cases)], HEAD[:6])


@charts.house_style()
def draw(cases: dict, path: Path) -> None:
    """Bars: the share of the possible gain, and how often clean data became worse."""
    names = sorted(list_methods(cases), key=lambda m: share(cases, m) or 0.0)
    height = 0.42 * len(names) + 1.1
    figure, (left, right) = charts.panels(2, 2, width=7.2, height=height, sharey=True)
    left.set_title("share of the possible gain")
    right.set_title("clean data made worse, %")
    for place, name in enumerate(names):
        own = name == "dross"
        for shift, noisy in ((0.2, False), (-0.2, True)):
            chosen = {case: found for case, found in cases.items() if case[2] == noisy}
            value = share(chosen, name) or 0.0
            colour = (charts.BLUE if own else charts.GREY) + ("" if not noisy else "99")
            left.barh(place + shift, value, 0.36, color=colour)
            text = f"{value:.2f} (validation labels {'noisy' if noisy else 'right'})"
            left.text(max(value, 0) + 0.02, place + shift, text, va="center", fontsize=6)
        worse, of = worse_on_clean(cases, name)
        value = 100 * worse / of if of else 0.0
        right.barh(place, value, 0.6, color=charts.BLUE if own else charts.GREY)
        right.text(value + 1, place, f"{worse} of {of}", va="center", fontsize=6)
    left.axvline(1, color="black", linewidth=0.6, linestyle=":")
    left.axvline(0, color="black", linewidth=0.6)
    left.set_xlim(-0.25, 1.6)
    known = lambda name: name + (" (told how many)" if name in TOLD else "")
    left.set_yticks(range(len(names)), [known(name) for name in names])
    figure.savefig(path)


def main() -> None:
    """Print the tables; write rows and the picture where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, help="a folder for outcome.csv and outcome.svg")
    options = parser.parse_args()
    lines = [line for path in options.results for line in read(path)]
    show(lines)
    if options.into is not None:
        cases = by_case(lines)
        write_rows(cases, options.into / "outcome.csv")
        draw(cases, options.into / "outcome.svg")


if __name__ == "__main__":
    main()
