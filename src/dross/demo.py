"""The whole story in a minute, on scikit-learn's digits with some labels flipped on purpose."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ._figures import encode_png
from .cleaning.export import export
from .cleaning.judge import judge
from .cleaning.pipeline import clean
from .cleaning.plans import KEEP
from .cleaning.project import Project
from .cleaning.verdict import Verdict

FLIPPED_SHARE = 0.05
TRAIN, VALIDATION = 900, 400  # the other 497 digits are the test part


@dataclass(frozen=True)
class Digits:
    """Three parts, each (float32 [N, 64], int64 [N]); some labels of the first are wrong."""

    train: tuple[torch.Tensor, torch.Tensor]
    validation: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    true_labels: np.ndarray  # of the training part, before some were flipped
    flipped: np.ndarray  # bool [N]


@dataclass(frozen=True)
class DemoResult:
    """The project and the verdict, and how many of the flipped labels were found."""

    project: Project
    verdict: Verdict | None  # None: nothing is recommended
    flipped: int  # training labels that are wrong on purpose
    acted_on: int  # instances that the recommended plan removes or relabels
    found: int  # flipped ones among those
    copy: Path | None  # the cleaned folder; None: nothing is recommended
    written: int  # pictures in it
    wrong_left: int  # labels in it that are wrong; without it, in the input
    errors: tuple[float, float]  # of a model that learns the input, or the copy, on right labels


def load_flipped_digits(seed: int = 0) -> Digits:
    """Load and split the digits, and flip 5 % of the training labels."""
    from sklearn.datasets import load_digits

    x, y = (np.asarray(part) for part in load_digits(return_X_y=True))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    x, y = x[order] / 16, y[order].copy()
    true = y[:TRAIN].copy()
    flipped = np.zeros(TRAIN, dtype=bool)
    flipped[rng.choice(TRAIN, round(FLIPPED_SHARE * TRAIN), replace=False)] = True
    y[:TRAIN][flipped] = (true[flipped] + rng.integers(1, 10, flipped.sum())) % 10
    parts = [slice(0, TRAIN), slice(TRAIN, TRAIN + VALIDATION), slice(TRAIN + VALIDATION, None)]
    pairs = [(torch.tensor(x[part], dtype=torch.float32), torch.tensor(y[part])) for part in parts]
    return Digits(pairs[0], pairs[1], pairs[2], true, flipped)


def write_pictures(digits: Digits, folder: Path) -> dict[str, Path]:
    """Write the three parts as folders of PNG files, one folder per class; return the folders."""
    folders = {part: folder / part for part in ("train", "validation", "test")}
    for part, (x, y) in zip(folders, (digits.train, digits.validation, digits.test)):
        for k, (picture, label) in enumerate(zip(x, y.tolist())):
            path = folders[part] / str(label) / f"{k:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = (255 * picture.reshape(8, 8).numpy()).astype(np.uint8)
            path.write_bytes(encode_png(pixels))
    return folders


def run_demo(
    folder: Path, *, seeds: int = 10, progress: bool = True, say: Callable[[str], None] = print
) -> DemoResult:
    """Write the digits as pictures, clean and judge one folder, and compare with what was flipped.

    Only the training part is used, and no part of it is set aside: every label is examined, and
    the verdict holds one part after the other out.

    Arguments:
        folder: Where the project goes; the pictures and the cleaned copy go to folders beside it.
        seeds: How many fresh seeds the verdict rests on.
        progress: Whether to show progress bars.
        say: Called with each line that `clean` has to say.
    """
    digits = load_flipped_digits()
    folders = write_pictures(digits, folder.with_name(f"{folder.name}-digits"))
    project = clean(
        folders["train"],
        model="mlp",
        out=folder,
        progress=progress,
        say=say,
        overwrite=True,
    )
    recommended = project.recommended is not None
    verdict = judge(project.folder, seeds=seeds, progress=progress) if recommended else None
    instances = project.instances
    numbers = [int(Path(source).stem) for source in instances["source"]]
    flipped = digits.flipped[numbers]
    acted_on = (instances["action"] != KEEP).to_numpy()
    copy, labels = None, digits.train[1].numpy()[numbers]
    kept = np.array(numbers)
    if recommended:
        copy = folder.with_name(f"{folder.name}-cleaned")
        export(project.folder, copy, overwrite=True)
        left = sorted(copy.glob("*/*.png"))
        kept = np.array([int(path.stem) for path in left])
        labels = np.array([int(path.parent.name) for path in left])
    return DemoResult(
        project,
        verdict,
        flipped=int(flipped.sum()),
        acted_on=int(acted_on.sum()),
        found=int((flipped & acted_on).sum()),
        copy=copy,
        written=len(kept),
        wrong_left=int((labels != digits.true_labels[kept]).sum()),
        errors=(
            _measure_error(digits, np.array(numbers), digits.train[1].numpy()[numbers]),
            _measure_error(digits, kept, labels),
        ),
    )


def _measure_error(digits: Digits, kept: np.ndarray, labels: np.ndarray) -> float:
    """The error on the test part, whose labels are right, of a model that learns some digits."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(digits.train[0].numpy()[kept], labels)
    x, y = (part.numpy() for part in digits.test)
    return float((model.predict(x) != y).mean())
