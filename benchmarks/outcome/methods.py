"""What each tool would do with a training part: what to remove, and what to relabel as what.

cleanlab is used as its documentation advises: `find_label_issues` with cross-validated
probabilities, of a logistic regression and of the network that dross would train, and
`CleanLearning`, which finds the issues by itself. What they find is removed.
"""

import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from cases import Case

import dross

Found = tuple[np.ndarray | list[int], dict[int, str]]  # removed, {relabelled: label}


def do_nothing(case: Case) -> Found:
    """Train on what was given."""
    return [], {}


def remove_wrong(case: Case) -> Found:
    """Remove exactly the wrong ones: what is possible."""
    return case.wrong, {}


def remove_random(case: Case) -> Found:
    """Remove as many as are wrong, at random."""
    rng = np.random.default_rng(case.seed)
    return rng.choice(len(case.train), len(case.wrong), replace=False), {}


def remove_by_loss(case: Case) -> Found:
    """Remove those with the highest loss in training: as many as are wrong, which nobody knows."""
    recipe, (x, y) = case.network
    from dross.cleanse.learning.train_many import ModelSpec, train_many

    trained = train_many(recipe, x, y, [ModelSpec(case.seed, np.arange(len(y)), recipe.rate)])
    losses = recipe.losses(trained.outputs(x), y)[0]
    return torch.argsort(losses, descending=True)[: len(case.wrong)].numpy(), {}


def use_cleanlab(case: Case) -> Found | None:
    """`find_label_issues` with the cross-validated probabilities of a logistic regression."""
    if case.is_regression:
        return None
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    model, x = LogisticRegression(max_iter=300), case.x[case.train]
    y = case.classes_of(case.train)
    return _issues(y, cross_val_predict(model, x, y, cv=5, method="predict_proba"))


def use_cleanlab_network(case: Case) -> Found | None:
    """`find_label_issues` with the cross-validated probabilities of dross' own network."""
    if case.is_regression:
        return None
    from dross.cleanse.learning.score import cross_fit

    recipe, data = case.network
    found = cross_fit(recipe, data, data[0][:1], repeats=1, seed=case.seed, progress=False)
    return _issues(data[1].numpy(), torch.softmax(found.outputs[0], -1).numpy())


def use_clean_learning(case: Case) -> Found | None:
    """`CleanLearning`, for numbers that of regression, with a linear model."""
    from sklearn.linear_model import LogisticRegression, Ridge

    x = case.x[case.train]
    if case.is_regression:
        from cleanlab.regression.learn import CleanLearning as OfNumbers

        found = OfNumbers(Ridge(), seed=case.seed)
        issues = found.find_label_issues(x, case.labels[case.train].astype(float))
        return np.flatnonzero(issues["is_label_issue"]), {}
    from cleanlab.classification import CleanLearning

    one_process = {"n_jobs": 1}  # cases run side by side
    model = LogisticRegression(max_iter=300)
    found = CleanLearning(model, seed=case.seed, find_label_issues_kwargs=one_process)
    issues = found.find_label_issues(x, case.classes_of(case.train))
    return np.flatnonzero(issues["is_label_issue"]), {}


def _issues(y: np.ndarray, chances: np.ndarray) -> Found:
    from cleanlab.filter import find_label_issues

    return np.flatnonzero(find_label_issues(y, chances, n_jobs=1)), {}


def use_dross(case: Case) -> Found:
    """The recommended plan of `dross.clean`."""
    x, y = case.given(case.train)
    options = {"text": "text"} if case.data.kind == "text" else {}
    folder = Path(tempfile.mkdtemp(prefix="dross-outcome-"))
    try:
        project = dross.clean(
            x,
            y,
            validation=case.given(case.validation),
            test=case.given(case.test),
            task=case.data.task,
            out=folder / "run",
            seed=case.seed,
            device=os.environ.get("DROSS_OUTCOME_DEVICE", "cpu"),
            progress=False,
            **options,
        )
        places = [int(source.split()[-1]) for source in project.instances["source"]]
        plan = project.recommended
        if plan is None:
            return [], {}
        relabelled = {places[id]: label for id, label in plan.relabelled.items()}
        return [places[id] for id in plan.removed], relabelled
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_BEFORE = """
import json, sys, dross
folder, options = sys.argv[1], json.loads(sys.argv[2])
project = dross.clean(folder + "/train.csv", "label", validation=folder + "/validation.csv",
                      test=folder + "/test.csv", out=folder + "/run", progress=False, **options)
harm = project.instances.sort_values("harm_rank")["source"].tolist()
json.dump(harm[: project.about["suggested"]["m"]], open(folder + "/found.json", "w"))
"""


def use_dross_before(case: Case) -> Found | None:
    """What an earlier version recommended, in the tree DROSS_BEFORE; tables and texts only."""
    tree = os.environ.get("DROSS_BEFORE")
    if tree is None or case.data.kind == "images":
        return None
    folder = Path(tempfile.mkdtemp(prefix="dross-outcome-"))
    try:
        for name in ("train", "validation", "test"):
            x, y = case.given(getattr(case, name))
            x.assign(label=y).to_csv(folder / f"{name}.csv", index=False)
        options = {"seed": case.seed, "task": case.data.task}
        options |= {"text": "text"} if case.data.kind == "text" else {}
        environment = os.environ | {"PYTHONPATH": f"{tree}/src"}
        command = [sys.executable, "-W", "ignore", "-c", _BEFORE, str(folder), json.dumps(options)]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        found = json.loads((folder / "found.json").read_text())
        return [int(source.rsplit(" ", 1)[-1]) - 2 for source in found], {}  # line 2 is the first
    finally:
        shutil.rmtree(folder, ignore_errors=True)


METHODS = {
    "nothing": do_nothing,
    "exactly the wrong ones": remove_wrong,
    "random": remove_random,
    "training loss": remove_by_loss,
    "cleanlab, logistic regression": use_cleanlab,
    "cleanlab, the same network": use_cleanlab_network,
    "CleanLearning": use_clean_learning,
    "dross before": use_dross_before,
    "dross": use_dross,
}


def discover() -> dict:
    """The tools of the folder tools/, a file for each: its function `clean` is called."""
    found = {}
    for path in sorted((Path(__file__).parent / "tools").glob("*.py")):

        def clean(case: Case, path: Path = path) -> Found | None:
            return runpy.run_path(str(path))["clean"](case)

        found[path.stem.replace("_", " ")] = clean
    return found


METHODS |= discover()
