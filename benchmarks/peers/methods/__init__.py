"""Every method, in the file of its library: `score(problem, kind) -> scores`.

The kind is "mean" for the mean validation loss (scores [N]) or "singles" for the single validation
losses (scores [Q, N]). All scores mean what dross' scores mean: the estimated change in the query
when the instance is removed, up to a positive factor.
"""

import ast
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..problem import Problem

Score = Callable[[Problem, str], np.ndarray]


@dataclass(frozen=True)
class Method:
    """Where a method lies, and what it computes with which settings."""

    file: str
    function: str
    library: str
    what: str


METHODS: dict[str, Method] = {
    "dross-retrace": Method("ours", "retrace", "dross", "exact retrace of the whole run"),
    "dross-last-epochs": Method(
        "ours", "last_epochs", "dross", "retrace of the last third of the epochs (at least one)"
    ),
    "dross-no-hessian": Method(
        "ours", "no_hessian", "dross", "retrace of every step without the Hessian"
    ),
    "dross-averaged": Method(
        "ours",
        "average_over_runs",
        "dross",
        "mean of the exact scores of 4 runs with different seeds (including this one)",
    ),
    "training-loss": Method(
        "ours", "training_loss", "dross", "control: minus the instance's own loss"
    ),
    "random": Method("ours", "chance", "dross", "control"),
    "bergson-magic": Method(
        "bergson_magic",
        "magic",
        "bergson",
        "MAGIC: backward through its own training, checkpoints in its sqrt mode",
    ),
    "captum-tracincp": Method(
        "captum_methods", "tracincp", "captum", "TracInCP over the checkpoints of all epochs"
    ),
    "captum-arnoldi": Method(
        "captum_methods",
        "arnoldi",
        "captum",
        "ArnoldiInfluenceFunction, defaults (50 of 200 dimensions, regularization 1e-3)",
    ),
    "dattri-if-cg": Method(
        "dattri_methods",
        "conjugate_gradients",
        "dattri",
        "IFAttributorCG, 10 iterations (default), regularization 0.01",
    ),
    "dattri-if-lissa": Method(
        "dattri_methods",
        "lissa",
        "dattri",
        "IFAttributorLiSSA, defaults (depth 5000, batch 1, scaling 50)",
    ),
    "dattri-if-arnoldi": Method(
        "dattri_methods",
        "arnoldi",
        "dattri",
        "IFAttributorArnoldi, 100 dimensions (default), regularization 0.01 (0.1 was tried too)",
    ),
    "dattri-if-ekfac": Method(
        "dattri_methods",
        "ekfac",
        "dattri",
        "IFAttributorEKFAC, linear layers (default), damping 0.01",
    ),
    "dattri-trak": Method(
        "dattri_methods", "trak", "dattri", "TRAK, one checkpoint, projection to 512 (default)"
    ),
    "dattri-tracin": Method(
        "dattri_methods", "tracin", "dattri", "TracIn, all epochs, projection to 512 (default)"
    ),
    "dattri-dvemb": Method(
        "dattri_methods",
        "dvemb",
        "dattri",
        "DVEmb, full gradients for small models, projected to 512 for the others; its own training "
        "included",
    ),
    "kronfluence-ekfac": Method(
        "kronfluence_methods",
        "ekfac",
        "kronfluence",
        "EK-FAC, defaults (true Fisher by sampled labels), heuristic damping",
    ),
    "pydvl-cg": Method(
        "pydvl_methods",
        "conjugate_gradients",
        "pyDVL",
        "CgInfluence, regularization 0.01, at most 100 iterations",
    ),
    "pydvl-lissa": Method(
        "pydvl_methods",
        "lissa",
        "pyDVL",
        "LissaInfluence, regularization 0.01, scale 10 and 1000 iterations (defaults)",
    ),
    "pydvl-arnoldi": Method(
        "pydvl_methods",
        "arnoldi",
        "pyDVL",
        "ArnoldiInfluence, rank 10 (default), regularization 0.01",
    ),
    "pydvl-nystroem": Method(
        "pydvl_methods",
        "nystroem",
        "pyDVL",
        "NystroemSketchInfluence, rank 10, regularization 0.01",
    ),
    "pydvl-ekfac": Method(
        "pydvl_methods", "ekfac", "pyDVL", "EkfacInfluence, regularization 0.01, diagonal updated"
    ),
    "traker": Method(
        "traker_methods", "trak", "traker", "TRAK, one checkpoint, projection to 512, float32"
    ),
}


def discover() -> dict[str, Method]:
    """The methods of files in this folder that METHODS does not name: one `score` in each.

    The file is read and not imported, because its library may not be here.
    """
    found = {}
    known = {method.file for method in METHODS.values()} | {"__init__"}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in known:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            what = (ast.get_docstring(tree) or path.stem).splitlines()[0].rstrip(".")
            named = [
                node.value.value
                for node in tree.body
                if isinstance(node, ast.Assign)
                and getattr(node.targets[0], "id", "") == "LIBRARY"
                and isinstance(node.value, ast.Constant)
            ]
            name = path.stem.replace("_", "-")
            found[name] = Method(path.stem, "score", str(named[0]) if named else "", what)
    return found


METHODS |= discover()


def find(name: str) -> Score:
    """Import a method by its name."""
    method = METHODS[name]
    return getattr(importlib.import_module(f"{__name__}.{method.file}"), method.function)
