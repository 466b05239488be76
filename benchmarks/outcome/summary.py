"""Pooled shares of the possible gain, by method, kind of noise and judging model.

python benchmarks/outcome/summary.py runs/outcome.jsonl
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

BEST = "exactly the wrong ones"
WORSE = 0.005  # of the error, which counts as harm on clean data
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


def show(lines: list[dict]) -> None:
    """Print everything as tables in Markdown."""
    cases = by_case(lines)
    methods = [
        m for m in dict.fromkeys(line["method"] for line in lines) if m not in ("nothing", BEST)
    ]
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


if __name__ == "__main__":
    show(read(Path(sys.argv[1])))
