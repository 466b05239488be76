"""What each tool would do with a training part: what to remove, and what to relabel as what."""

import importlib
import runpy
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from . import rivals
from .cases import NOISY, RIGHT, Case

ROOT = Path(__file__).parents[2]


@dataclass
class Found:
    """What a tool would do, in places of the set."""

    removed: np.ndarray | list[int]
    relabeled: dict[int, float] = field(default_factory=dict)
    note: str = ""  # shown beside the results


@dataclass(frozen=True)
class Method:
    """A tool."""

    clean: Callable[[Case], Found | None]  # None: it cannot say anything here
    uses_validation: bool = False  # otherwise one run serves right and noisy validation labels


def do_nothing(case: Case) -> Found:
    """Train on what was given."""
    return Found([])


def remove_wrong(case: Case) -> Found:
    """Remove exactly the mislabeled rows: what is possible."""
    return Found(case.wrong)


@cache
def _dross():
    """The two modules of dross that decide, from this tree.

    The packages around them are not run: they need more than numpy, scikit-learn and torch.
    """
    for name in [name for name in sys.modules if name.split(".")[0] == "dross"]:
        del sys.modules[name]
    for name in ("dross", "dross.cleaning"):
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT / "src" / name.replace(".", "/"))]
        sys.modules[name] = package
    label_noise = importlib.import_module("dross.cleaning.label_noise")
    return label_noise, importlib.import_module("dross.cleaning.plans")


def estimate(case: Case):
    """The rows as dross sees them, their places, and the noise model; kept with the case."""
    label_noise, _ = _dross()
    if "dross" not in case.kept:
        places = np.concatenate([case.train, case.validation])
        rows = label_noise.Rows.of(
            case.x[places],
            case.given[places],
            case.classes,
            given=case.unchecked[places],
            validation=np.arange(len(places)) >= len(case.train),
            checked=case.checked[places],
        )
        prior = label_noise.PRIORS[case.labels]
        noise = label_noise.estimate_label_noise(rows, prior, seed=case.seed)
        case.kept["dross"] = rows, places, noise
    return case.kept["dross"]


def use_dross(case: Case) -> Found:
    """The recommended plan."""
    _, plans = _dross()
    rows, places, noise = estimate(case)
    weights = None
    if rows.checked.any():
        weights = np.where(rows.checked, len(rows) / rows.checked.sum(), np.nan)
    found = plans.recommend(
        rows,
        noise,
        case.labels,
        check_weights=weights,
        seed=case.seed,
    )
    if found.plan is None:
        return Found([], note=found.state)
    return _edited(found.plan, places, found.plan.name)


def use_dross_without_guard(case: Case) -> Found:
    """Everything that is wrong with more than 50 %: for the record."""
    _, plans = _dross()
    rows, places, noise = estimate(case)
    return _edited(plans.RULES["wrong-50"](noise, rows), places, "wrong-50")


def _edited(edits, places: np.ndarray, note: str) -> Found:
    relabeled = {int(places[id]): label for id, label in edits.relabeled.items()}
    return Found(places[edits.removed], relabeled, note)


def _rival(find: Callable[[Case], np.ndarray | None], of_numbers: bool) -> Callable:
    """A rival that removes what it finds; it is for numbers or for classes."""

    def clean(case: Case) -> Found | None:
        if case.is_regression != of_numbers:
            return None
        removed = find(case)
        return None if removed is None else Found(removed)

    return clean


def use_clean_learning(case: Case) -> Found | None:
    """CleanLearning around each of the user's models: run.py asks for them one by one."""
    return None if case.is_regression else Found([], note="by model")


def use_data_oob(case: Case) -> Found:
    """Data-OOB, of classes and of numbers."""
    return Found(rivals.data_oob(case))


NOTHING, BEST, DROSS = "nothing", "exactly the mislabeled rows", "dross"
CLEAN_LEARNING = "CleanLearning"
METHODS: dict[str, Method] = {
    NOTHING: Method(do_nothing),
    BEST: Method(remove_wrong),
    DROSS: Method(use_dross, uses_validation=True),
    "dross without guard": Method(use_dross_without_guard, uses_validation=True),
    "cleanlab, linear": Method(_rival(rivals.confident_linear, of_numbers=False)),
    "cleanlab, trees": Method(_rival(rivals.confident_trees, of_numbers=False)),
    "cleanlab, ensemble": Method(_rival(rivals.confident_ensemble, of_numbers=False)),
    "cleanlab, ensemble with validation": Method(
        _rival(rivals.confident_with_validation, of_numbers=False),
        uses_validation=True,
    ),
    "Datalab, neighbors": Method(_rival(rivals.datalab, of_numbers=False)),
    CLEAN_LEARNING: Method(use_clean_learning),
    "AUM": Method(_rival(rivals.area_under_margin, of_numbers=False)),
    "Data-OOB": Method(use_data_oob),
    "large residuals": Method(_rival(rivals.large_residuals, of_numbers=True)),
    "CleanLearning, numbers": Method(_rival(rivals.clean_learning_of_numbers, of_numbers=True)),
}


def discover() -> dict[str, Method]:
    """The tools of the folder tools/, a file for each: its function `clean` is called."""
    found = {}
    for path in sorted((Path(__file__).parent / "tools").glob("*.py")):

        def clean(case: Case, path: Path = path) -> Found | None:
            result = runpy.run_path(str(path))["clean"](case)
            return None if result is None else Found(*result)

        found[path.stem.replace("_", " ")] = Method(clean, uses_validation=True)
    return found


METHODS |= discover()


def is_shared(method: str, situation: str) -> bool:
    """Whether the result with right validation labels holds for noisy ones, too."""
    return not METHODS[method].uses_validation and situation in (RIGHT, NOISY)
