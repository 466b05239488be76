"""How often does `dross judge` call random removals an improvement?

Removing rows at random is no cleaning, so "improved" is then a false alarm. Every judgment has
fresh data, fresh removals and fresh seeds. Most use the parts of `judge` that train, measure and
decide (`Judgment`), with label noise that is known instead of estimated, because the estimate
takes most of the time. Some are whole calls: `dross.clean` on a small table, then `dross.judge`.

    python -m benchmarks.outcome.false_alarms --judgments 1200 --whole 40
"""

import argparse
import itertools
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas
import torch
from scipy.stats import beta
from sklearn.datasets import load_diabetes, load_digits, make_classification
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import dross
from dross.cleaning import judge
from dross.cleaning.edits import ChosenEdits
from dross.cleaning.estimators import find_model
from dross.cleaning.label_noise import PRIORS, LabelPosterior, NoiseModel, NumberNoiseModel, Rows
from dross.cleaning.modality import PreparedData, Source, assemble
from dross.cleaning.tables import TABLE
from dross.cleaning.training import Recipe
from dross.cleaning.verdict import FALSE_ALARMS, IMPROVED, WORSE, reach_verdict

SETS = ("overlap", "digits", "numbers")
SIZES = (120, 400)
SHARES = (0.03, 0.1, 0.3)
NOISE = (0.0, 0.2)
TESTED = 300


def draw(
    name: str, count: int, noise: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, int]:
    """Fresh rows: features, labels, and the number of classes; 0 for numbers."""
    if name == "overlap":
        x, y = make_classification(
            count,
            8,
            n_informative=4,
            flip_y=0.0,
            class_sep=0.8,
            n_clusters_per_class=1,
            random_state=int(rng.integers(1 << 31)),
        )
        classes = 2
    elif name == "digits":
        x, y = (np.asarray(part) for part in load_digits(return_X_y=True))
        chosen = rng.choice(len(x), count, replace=False)
        x, y, classes = x[chosen] / 16, y[chosen] % 3, 3
    else:
        x, y = (np.asarray(part) for part in load_diabetes(return_X_y=True))
        chosen = rng.choice(len(x), count)
        x, classes = 20 * x[chosen], 0
        x = x + rng.normal(0, 0.1, x.shape)
        y = y[chosen] + rng.normal(0, 20, count)
    x, y = np.asarray(x, dtype=np.float32), np.asarray(y)
    wrong = rng.random(count) < noise
    if classes:
        y = y.astype(np.int64)
        y[wrong] = (y[wrong] + rng.integers(1, classes, int(wrong.sum()))) % classes
    else:
        y[wrong] = rng.permutation(y)[wrong]
    return x, y, classes


def prepare(x: np.ndarray, y: np.ndarray, trained: int) -> PreparedData:
    """The data as `dross.clean` prepares them; the rows after `trained` are the test part."""
    labels = y.astype(str).astype(object) if y.dtype.kind == "i" else y
    frame = pandas.DataFrame(index=range(len(y)))
    source = Source(TABLE, "label", frame, labels, np.arange(len(y)))
    ids = np.arange(len(y))
    parts = {"train": ids[:trained], "validation": ids[:0], "test": ids[trained:]}
    inputs = torch.from_numpy(x)
    return assemble(source, parts, {part: inputs[own] for part, own in parts.items()})


def know_noise(rows: Rows, noise: float) -> LabelPosterior:
    """The label noise as it is, in place of an estimate."""
    rate = float(np.log(max(noise, 1e-6) / (1 - noise)))
    none = np.zeros(len(rows))
    if rows.classes:
        model = NoiseModel(1, rows.classes, 8, PRIORS["annotated"])
        model.rate = torch.tensor(rate, dtype=torch.float64)
        model.by_component = torch.zeros(min(8, rows.x.shape[1]), dtype=torch.float64)
        model.validation = torch.tensor(20.0, dtype=torch.float64)
        sure = np.eye(rows.classes)[rows.y]
        return LabelPosterior(none, rows.y, none, sure, sure, model)
    model = NumberNoiseModel(
        expert_weights=np.ones(1),
        freedom=5.0,
        scale=1.0,
        center=float(rows.y.mean()),
        spread=float(rows.y.std()),
        range=(float(rows.y.min()), float(rows.y.max())),
        rate=rate,
        by_component=np.zeros(min(8, rows.x.shape[1])),
        rho=1.0,
        usual=float(rows.y.std()),
    )
    both = np.column_stack([1 - none, none])
    return LabelPosterior(none, rows.y, none, both, both, model)


def judge_once(name: str, size: int, share: float, noise: float, nested: bool, number: int) -> str:
    """The verdict on one random removal."""
    rng = np.random.default_rng([number, 26])
    x, y, classes = draw(name, size if nested else size + TESTED, noise, rng)
    data = prepare(x, y, size)
    models = [LogisticRegression(), GaussianNB(), DecisionTreeClassifier(max_depth=4)]
    if not classes:
        models = [Ridge(), DecisionTreeRegressor(max_depth=3)]
    model = find_model(models[number % len(models)], data.source.task)
    removed = rng.choice(size, max(1, round(share * size)), replace=False)
    judge.estimate_label_noise = lambda rows, prior, **options: know_noise(rows, noise)
    judgment = judge.judge_rows(
        data,
        Rows.of(x[:size], y[:size], classes),
        Recipe("linear", (x.shape[1],), max(1, classes)),
        ChosenEdits(removed, {}, "random removals"),
        label_kind="annotated",
        seeds=judge.QUICK_SEEDS,
        assignments=1,
        model=model,
    )
    return reach_verdict(judgment.measure(), judgment.setup).verdict


def judge_whole(number: int, folder: Path) -> str:
    """The verdict of `dross.judge` on a random removal from a small table, from start to end."""
    rng = np.random.default_rng([number, 27])
    x, y, _ = draw("overlap", 200, 0.1, rng)
    frame = pandas.DataFrame(x).add_prefix("x").assign(label=np.array(["no", "yes"])[y])
    frame.to_csv(folder / "rows.csv", index=False)
    project = dross.clean(
        folder / "rows.csv", "label", out=folder / "run", repeats=1, progress=False, seed=number
    )
    chosen = rng.choice(len(project.table), 20, replace=False)
    project.decisions.record({int(id): ("remove", None) for id in chosen})
    verdict = dross.judge(
        folder / "run", decisions=True, quick=True, progress=False, estimator=LogisticRegression()
    )
    return verdict.verdict


def bound(count: int, total: int) -> float:
    """The upper end of the exact 95 % interval of a share, one-sided."""
    return float(beta.ppf(0.95, count + 1, total - count)) if count < total else 1.0


def print_table(title: str, found: dict[str, Counter]) -> None:
    """One line per setting: how many judgments, and how many say improved or worse."""
    print(f"\n| {title} | judgments | improved | at most (95 %) | worse |")
    print("| --- | --- | --- | --- | --- |")
    for name, counts in found.items():
        total, improved = counts.total(), counts[IMPROVED]
        print(
            f"| {name} | {total:,} | {improved} ({100 * improved / total:.1f} %) | "
            f"{100 * bound(improved, total):.1f} % | {counts[WORSE]} |"
        )


def main() -> None:
    """Judge, count, and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judgments", type=int, default=1200)
    parser.add_argument("--whole", type=int, default=0, help="whole calls of dross.judge")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    started, found = time.monotonic(), []
    settings = list(itertools.product(SETS, SIZES, SHARES, NOISE, (True, False)))
    estimate = judge.estimate_label_noise
    for number in range(options.judgments):
        setting = settings[number % len(settings)]
        found.append((*setting, judge_once(*setting, number // len(settings) + 1000 * number)))
    judge.estimate_label_noise = estimate
    whole = Counter()
    for number in range(options.whole):
        with tempfile.TemporaryDirectory() as folder:
            whole[judge_whole(number, Path(folder))] += 1
    print("# False alarms: random removals that are called an improvement")
    print(
        f"\n{time.strftime('%Y-%m-%d')}, dross {dross.__version__}, "
        f"{time.monotonic() - started:.0f} s on one core. Stated: at most "
        f"{100 * FALSE_ALARMS:.1f} %."
    )
    columns = {"data": 0, "training rows": 1, "removed": 2, "wrong labels": 3}
    everything = Counter(row[-1] for row in found)
    nested = {True: "no test file: nested folds", False: "a test file of 300 rows"}
    modes = {
        name: Counter(row[-1] for row in found if row[4] == value) for value, name in nested.items()
    }
    print_table("all", {"quick judgments": everything} | modes)
    for title, place in columns.items():
        values = dict.fromkeys(row[place] for row in found)
        counts = {v: Counter(row[-1] for row in found if row[place] == v) for v in values}
        print_table(title, {str(value): count for value, count in counts.items()})
    if options.whole:
        print_table("from start to end", {"dross.clean, then dross.judge": whole})


if __name__ == "__main__":
    main()
