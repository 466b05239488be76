"""Does the verdict of `dross compare` agree with the truth, for changes that other tools make?

    python -m benchmarks.outcome.compare [--sets NAMES] [--seeds 1] [--rows 1200] [--test]

Every change is judged from one file without a test set, as if it was blind; or with --test on half of
the test rows, whose labels are correct. The truth: the same model, trained on the rows before and after
the change, on the other test rows. It is clear
where the 95 % interval of the change, over test rows and ten bootstrap samples of the training rows,
does not contain 0. Results are kept line by line; the same command continues. It needs the sets of
sets.py.
"""

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dross.cleaning import compare
from dross.cleaning.estimators import find_model
from dross.cleaning.training import Recipe
from dross.cleaning.verdict import compare_metric, reach_verdict

from . import judges, noise, rivals, sets
from .cases import ONE_FILE, Case, make_case
from .false_alarms import prepare

SEEDS = 6
BOOTSTRAPS = 10
_LEAST = 1e-3  # probability


def _remove(ids: np.ndarray) -> dict:
    return {"removed": np.unique(ids)}


def _predicted(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Cross-validated probabilities of the training rows, and their given labels."""
    p = np.mean([rivals.cross_validate(case, name) for name in ("linear", "trees")], axis=0)
    return p[: len(case.train)], case.given[case.train]


def relabel_issues(case: Case) -> dict:
    """Confident learning, and the label that the models predict instead of a removal."""
    p, _ = _predicted(case)
    issues = np.flatnonzero(np.isin(case.train, rivals.confident_ensemble(case)))
    return {"relabeled": {int(case.train[i]): int(p[i].argmax()) for i in issues}}


def relabel_all(case: Case) -> dict:
    """Every label becomes what models predict, as a careless script would do it."""
    p, given = _predicted(case)
    best = p.argmax(1)
    return {"relabeled": {int(case.train[i]): int(best[i]) for i in np.flatnonzero(best != given)}}


def remove_unlikely(case: Case) -> dict:
    """The fifth of the rows whose labels models find least likely."""
    p, given = _predicted(case)
    order = np.argsort(p[np.arange(len(given)), given])
    return _remove(case.train[order[: len(order) // 5]])


def correct(case: Case) -> dict:
    """The correct labels for all wrong ones."""
    return {"relabeled": {int(i): int(case.truth[i]) for i in case.wrong}}


def correct_half(case: Case) -> dict:
    """The correct labels for half of the wrong ones."""
    return {"relabeled": {int(i): int(case.truth[i]) for i in case.wrong[::2]}}


def _draw(case: Case, share: float) -> np.ndarray:
    rng = np.random.default_rng([case.seed, 29])
    return rng.choice(case.train, round(share * len(case.train)), replace=False)


def remove_random(case: Case) -> dict:
    """A tenth of the rows, at random."""
    return _remove(_draw(case, 0.1))


def relabel_random(case: Case) -> dict:
    """Random other labels for a tenth of the rows."""
    rng = np.random.default_rng([case.seed, 30])
    other = lambda i: int((case.given[i] + rng.integers(1, case.classes)) % case.classes)
    return {"relabeled": {int(i): other(i) for i in _draw(case, 0.1)}}


def add_rows(case: Case) -> dict:
    """Half as many rows more, with correct labels, that were not used so far."""
    spare = np.setdiff1d(np.arange(len(case.truth)), [*case.train, *case.test])
    return {"added": spare[: len(case.train) // 2]}


def oversample(case: Case) -> dict:
    """Copies of random rows of the rare classes, until all are as frequent."""
    rng = np.random.default_rng([case.seed, 31])
    given = case.given[case.train]
    counts = np.bincount(given, minlength=case.classes)
    drawn = [
        rng.choice(case.train[given == c], counts.max() - count)
        for c, count in enumerate(counts)
        if count
    ]
    return {"added": np.concatenate(drawn)}


CHANGES: dict[str, Callable[[Case], dict]] = {
    "cleanlab, linear: removed": lambda case: _remove(rivals.confident_linear(case)),
    "cleanlab, ensemble: removed": lambda case: _remove(rivals.confident_ensemble(case)),
    "cleanlab, ensemble: relabeled": relabel_issues,
    "AUM: removed": lambda case: _remove(rivals.area_under_margin(case)),
    "Data-OOB: removed": lambda case: _remove(rivals.data_oob(case)),
    "least likely fifth removed": remove_unlikely,
    "everything relabeled as predicted": relabel_all,
    "wrong labels corrected": correct,
    "half of the wrong labels corrected": correct_half,
    "random tenth removed": remove_random,
    "random tenth relabeled": relabel_random,
    "rows added": add_rows,
    "rare classes oversampled": oversample,
}


def judge(case: Case, made: dict, model: str, with_test: bool) -> dict | None:
    """The verdict, and the truth; None where there is no change or the sets are too small."""
    removed = made.get("removed", np.zeros(0, dtype=int))
    relabeled = made.get("relabeled", {})
    added = made.get("added", np.zeros(0, dtype=int))
    if not len(removed) + len(relabeled) + len(added):
        return None
    place = {int(i): number for number, i in enumerate(case.train)}
    count = len(case.train)
    rows = np.concatenate([case.train, added])
    y = case.given[rows]
    y[count:] = np.where(np.isin(added, case.train), y[count:], case.truth[added])
    held = case.test[: len(case.test) // 2] if with_test else case.test[:0]
    data = prepare(
        case.x[np.concatenate([rows, held])], np.concatenate([y, case.truth[held]]), len(rows)
    )
    case.test = case.test[len(held) :]
    names = data.source.classes
    change = compare.Change(
        removed=sorted(place[int(i)] for i in removed),
        relabeled={place[i]: str(label) for i, label in relabeled.items() if str(label) in names},
        edited={},
        added=list(range(count, len(rows))),
    )
    groups = np.array([place.get(int(i), count + number) for number, i in enumerate(rows)])
    started = time.monotonic()
    judgment = compare.judge_change(
        data,
        change,
        Recipe("linear", (case.x.shape[1],), len(names)),
        groups=groups,
        what="a change",
        label_kind=case.labels,
        seeds=SEEDS,
        assignments=1,
        blind=True,
        model=find_model(judges.make(case)[model], data.source.task),
    )
    verdict = reach_verdict(judgment.measure(), judgment.setup)
    return {
        "verdict": verdict.verdict,
        "sentence": verdict.sentence,
        "seconds": round(time.monotonic() - started, 1),
        "counts": change.counts,
        "truth": find_truth(case, rows, y, change, model),
    }


def find_truth(case: Case, rows: np.ndarray, y: np.ndarray, change, model: str) -> dict:
    """How error and log loss on correct labels change: {measure: [change, low, high]}."""
    count = len(case.train)
    new = y.copy()
    for id, label in change.relabeled.items():
        new[id] = int(label)
    kept = np.setdiff1d(np.arange(len(rows)), change.removed)
    values: dict[str, list] = {"error": [], "log loss": []}
    truth = case.truth[case.test]
    for number in range(BOOTSTRAPS):
        rng = np.random.default_rng([number, 32])
        drawn = np.bincount(rng.integers(count, size=count), minlength=count)
        drawn = np.append(drawn, np.ones(len(rows) - count, dtype=int))
        measured = []
        for ids, labels in ((np.arange(count), y), (kept, new)):
            sample = np.repeat(ids, drawn[ids])
            learned = labels[sample]
            if len(np.unique(learned)) == 1:
                p = np.tile(np.eye(case.classes)[learned[0]], (len(truth), 1))
            else:
                fitted = judges.make(case)[model].fit(case.x[rows[sample]], learned)
                p = judges.predict(fitted, case.x[case.test], case.classes)
            p = np.clip(np.nan_to_num(p), _LEAST, None)
            p = p / p.sum(1, keepdims=True)
            measured.append((p.argmax(1) != truth, -np.log(p[np.arange(len(truth)), truth])))
        for name, (before, after) in zip(values, zip(*measured)):
            values[name].append([before, after, before])
    found = {}
    for name, each in values.items():
        metric = compare_metric(np.array(each, dtype=np.float64))
        found[name] = [metric.difference, *metric.interval]
    return found


def say_truth(truth: dict) -> str:
    """better, worse, mixed or unclear."""
    signs = {-1 if high < 0 else 1 for _, low, high in truth.values() if low > 0 or high < 0}
    return {(): "unclear", (-1,): "better", (1,): "worse"}.get(tuple(sorted(signs)), "mixed")


def show(lines: list[dict]) -> None:
    """Two tables of Markdown: verdict against truth, and by change."""
    lines = [line for line in lines if line["found"]]
    truths = ("better", "unclear", "mixed", "worse")
    verdicts = ("improved", "inconclusive", "worse")
    counts = Counter(
        (line["found"]["verdict"], say_truth(line["found"]["truth"])) for line in lines
    )
    print(f"| verdict | {' | '.join(f'truth: {name}' for name in truths)} |")
    print("| --- |" + " --- |" * len(truths))
    for verdict in verdicts:
        print(f"| {verdict} | {' | '.join(str(counts[verdict, name]) for name in truths)} |")
    print(
        "\n| change | judgments | improved: truth better, other, worse | inconclusive | worse: truth worse, other, better |"
    )
    print("| --- | --- | --- | --- | --- |")
    for name in CHANGES:
        own = [line["found"] for line in lines if line["change"] == name]
        found = Counter((one["verdict"], say_truth(one["truth"])) for one in own)
        other = {name: found[name, "unclear"] + found[name, "mixed"] for name in verdicts}
        print(
            f"| {name} | {len(own)} | {found['improved', 'better']}, {other['improved']}, "
            f"{found['improved', 'worse']} | {sum(found['inconclusive', t] for t in truths)} | "
            f"{found['worse', 'worse']}, {other['worse']}, {found['worse', 'better']} |"
        )


def main() -> None:
    """Judge what is missing, and print what is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1200)
    parser.add_argument("--models", nargs="+", default=["linear", "trees"])
    parser.add_argument("--test", action="store_true", help="judge on test rows")
    parser.add_argument("--shared-only", action="store_true", help="measure only unchanged rows")
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--out", type=Path, default=Path("runs/compare.jsonl"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.shared_only:
        choose = compare.choose_measured
        compare.choose_measured = lambda count, change: (
            choose(count, change) & ~np.isin(np.arange(count), [*change.removed, *change.relabeled])
        )
    folder = sets.FOLDER / ("held_out" if options.held_out else "dev")
    paths = [
        path
        for path in sorted(folder.glob("*.npz"))
        if sets.load(path).task == "classification"
        and (not options.sets or path.stem in options.sets)
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    text = options.out.read_text() if options.out.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    done = {tuple(line["about"]) for line in lines}
    work = [
        (seed, path, kind, name, model)
        for seed in range(options.seeds)
        for path in paths
        for kind in noise.kinds_of(sets.load(path))
        for name in CHANGES
        for model in options.models
    ]
    deadline = time.time() + 60 * options.minutes
    order = np.random.default_rng(0).permutation(len(work))
    with options.out.open("a") as file:
        for seed, path, kind, name, model in (work[i] for i in order):
            about = (path.stem, kind, seed, name, model)
            if about in done or time.time() > deadline:
                continue
            case = make_case(path, kind, ONE_FILE, seed)
            case.train = case.train[: options.rows]
            line = {
                "about": about,
                "change": name,
                "found": judge(case, CHANGES[name](case), model, options.test),
            }
            file.write(json.dumps(line) + "\n")
            file.flush()
            lines.append(line)
    show(lines)


if __name__ == "__main__":
    main()
