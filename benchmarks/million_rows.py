"""A large table through the whole journey: made up, cleaned with a linear model, judged.

    PYTHONPATH=src python benchmarks/million_rows.py [--rows 1000000] [--model linear]

It prints the time of each part and the largest amount of memory used.
"""

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from tables import make_parser

import dross


def make_table(rows: int) -> pd.DataFrame:
    """Eight numbers, a category, a date and a label.

    The label depends on some of them, on a product that no linear model knows, and on chance.
    """
    rng = np.random.default_rng(0)
    x, kind = rng.normal(size=(rows, 8)), rng.choice(list("abcdef"), rows)
    label = x[:, 0] + x[:, 1] * x[:, 2] + (kind == "a") + rng.normal(size=rows) > 0.3
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D")
    numbers = pd.DataFrame(x.round(4)).add_prefix("x")
    return numbers.assign(kind=kind, when=when, label=np.where(label, "yes", "no"))


def main() -> None:
    """Print the steps, the verdict and the costs."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--model", default="linear")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "table.csv", Path(folder) / "run"
        make_table(options.rows).to_csv(path, index=False)
        start = time.perf_counter()
        say = lambda line: print(f"{time.perf_counter() - start:6.1f} {line}")
        dross.clean(path, "label", out=out, model=options.model, say=say)
        cleaned = time.perf_counter() - start
        verdict = dross.judge(out, remove=options.rows // 200, quick=True)
        judged = time.perf_counter() - start - cleaned
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    costs = f"clean {cleaned:.0f} s, judge --quick {judged:.0f} s, at most {peak:.1f} GB"
    print(f"\n{verdict}\n\n{options.rows:,} rows, {options.model}: {costs}")


if __name__ == "__main__":
    main()
