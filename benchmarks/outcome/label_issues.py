"""`dross.find_label_issues` and cleanlab's confident learning, given the same probabilities.

    python -m benchmarks.outcome.label_issues [--sets NAMES]

Wrong labels in the sets of sets.py, and undamaged sets whose classes overlap; cross-validated
probabilities of logistic regression and of trees. Precision, recall and F1 of the rows that are
called label issues, average precision of the ranking (for confident learning by self-confidence),
and on undamaged data the share of rows that are called issues.
"""

import argparse
import warnings
from collections import defaultdict

import numpy as np
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

import dross

from . import noise, rivals, sets
from .cases import ONE_FILE, make_case


def measure(mask: np.ndarray, quality: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """What one tool finds; of undamaged data only how much it calls an issue."""
    if not wrong.any():
        return {"flagged": float(mask.mean())}
    precision, recall, f1, _ = precision_recall_fscore_support(
        wrong, mask, average="binary", zero_division=0
    )
    ap = average_precision_score(wrong, -quality)
    return {"precision": precision, "recall": recall, "F1": f1, "average precision": float(ap)}


def main() -> None:
    """Measure both tools on every set, and print Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", nargs="+")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = defaultdict(list)
    for path in sorted((sets.FOLDER / "dev").glob("*.npz")):
        data = sets.load(path)
        if data.task != "classification" or (options.sets and path.stem not in options.sets):
            continue
        for kind in noise.kinds_of(data):
            case = make_case(path, kind, ONE_FILE, 0)
            y = case.given[case.train]
            wrong = y != case.truth[case.train]
            for model in ("linear", "trees"):
                p = rivals.cross_validate(case, model)[: len(y)]
                p = p / p.sum(1, keepdims=True)
                issues = dross.find_label_issues(y, p, kind=case.labels)
                ours = issues["is_label_issue"].to_numpy(), issues["label_quality"].to_numpy()
                theirs = rivals.find_label_issues(y, p), p[np.arange(len(y)), y]
                mask = np.zeros(len(y), dtype=bool)
                mask[theirs[0]] = True
                found["dross", kind].append(measure(*ours, wrong))
                found["confident learning", kind].append(measure(mask, theirs[1], wrong))
    columns = ("precision", "recall", "F1", "average precision", "flagged")
    print(f"| tool | noise | cases | {' | '.join(columns)} |")
    print("| --- | --- | --- |" + " --- |" * len(columns))
    for (tool, kind), each in sorted(found.items(), key=lambda item: item[0][::-1]):
        cells = [
            f"{np.mean([one[name] for one in each]):.3f}" if name in each[0] else ""
            for name in columns
        ]
        print(f"| {tool} | {kind} | {len(each)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
