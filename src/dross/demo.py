"""The whole story in a minute, on scikit-learn's digits with some labels flipped on purpose."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ._figures import encode_png
from ._io import write_bytes
from .cleaning.export import export
from .cleaning.judge import judge
from .cleaning.pipeline import clean
from .cleaning.plans import KEEP
from .cleaning.project import Project
from .cleaning.verdict import Verdict
from .errors import InvalidInput

FLIPPED_SHARE = 0.05
TRAIN, VALIDATION = 900, 400  # the other 497 digits are the test set


@dataclass(frozen=True)
class Digits:
    """Three parts, each (float32 [N, 64], int64 [N]); some labels of the first are wrong."""

    train: tuple[torch.Tensor, torch.Tensor]
    validation: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    true_labels: np.ndarray  # of the training set, before some were flipped
    flipped: np.ndarray  # bool [N]


@dataclass(frozen=True)
class DemoResult:
    """The project, the verdict and the cleaned copy, compared with what was flipped."""

    project: Project
    verdict: Verdict
    copy: Path
    flipped: int  # training labels that are wrong on purpose
    acted_on: int  # instances that the recommended plan removes or relabels
    found: int  # flipped ones among those
    written: int  # images in the copy
    wrong_left: int  # labels in the copy that are wrong
    errors: tuple[float, float]  # of a model trained on the input, or on the copy; on right labels


def load_flipped_digits(seed: int = 0) -> Digits:
    """Load and split the digits, and flip 5 % of the training labels."""
    from sklearn.datasets import load_digits

    x, y = (np.asarray(part) for part in load_digits(return_X_y=True))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    x = x[order] / 16
    y = y[order].copy()
    true = y[:TRAIN].copy()
    flipped = np.zeros(TRAIN, dtype=bool)
    flipped[rng.choice(TRAIN, round(FLIPPED_SHARE * TRAIN), replace=False)] = True
    y[:TRAIN][flipped] = (true[flipped] + rng.integers(1, 10, flipped.sum())) % 10
    parts = [slice(0, TRAIN), slice(TRAIN, TRAIN + VALIDATION), slice(TRAIN + VALIDATION, None)]
    pairs = [(torch.tensor(x[part], dtype=torch.float32), torch.tensor(y[part])) for part in parts]
    return Digits(pairs[0], pairs[1], pairs[2], true, flipped)


def write_images(digits: Digits, folder: Path) -> dict[str, Path]:
    """Write the three parts as folders of PNG files, one folder per class; return the folders.

    Raises:
        InvalidInput: the folder holds something else.
        DrossError: it cannot be written.
    """
    parts = {"train": digits.train, "validation": digits.validation, "test": digits.test}
    images = {}
    for part, (x, y) in parts.items():
        for k, (image, label) in enumerate(zip(x, y.tolist())):
            path = folder / part / str(label) / f"{k:04d}.png"
            pixels = (255 * image.reshape(8, 8).numpy()).astype(np.uint8)
            images[path] = encode_png(pixels)
    for path in folder.rglob("*"):
        is_folder = path.is_dir() and not path.is_symlink()
        if not is_folder and (path not in images or path.read_bytes() != images[path]):
            raise InvalidInput(
                f"{path} was not written by the demo, and the demo does not replace other files. "
                "Choose another folder with `out`."
            )
    for path, raw in images.items():
        write_bytes(path, raw, sync=False)
    return {part: folder / part for part in parts}


def run_demo(
    folder: Path, *, seeds: int = 10, progress: bool = True, say: Callable[[str], None] = print
) -> DemoResult:
    """Write the digits as images, clean, judge and export one folder, and compare.

    Only the training set is used, and no part of it is set aside: every label is examined, and the
        verdict holds out one fold after the other.

    Arguments:
        folder: Where the project goes; the images and the cleaned copy go to folders beside it.
        seeds: The number of new seeds in the comparison.
        progress: Whether to show progress bars.
        say: Called with each line that `clean` prints.
    """
    digits = load_flipped_digits()
    folders = write_images(digits, folder.with_name(f"{folder.name}-digits"))
    project = clean(
        folders["train"],
        model="mlp",
        labels="annotated",
        out=folder,
        progress=progress,
        say=say,
        overwrite=True,
    )
    verdict = judge(project.folder, seeds=seeds, progress=progress)
    names = (f"{folder.name}-cleaned{number}" for number in ("", *range(2, 1000)))
    copy = next(path for path in map(folder.with_name, names) if not path.exists())
    export(project.folder, copy)
    instances = project.table
    numbers = np.array([int(Path(source).stem) for source in instances["source"]])
    flipped = digits.flipped[numbers]
    acted_on = (instances["action"] != KEEP).to_numpy()
    paths = sorted(copy.glob("*/*.png"))
    left = np.array([int(path.stem) for path in paths])
    labels = np.array([int(path.parent.name) for path in paths])
    return DemoResult(
        project,
        verdict,
        copy,
        flipped=int(flipped.sum()),
        acted_on=int(acted_on.sum()),
        found=int((flipped & acted_on).sum()),
        written=len(left),
        wrong_left=int((labels != digits.true_labels[left]).sum()),
        errors=(
            _measure_error(digits, numbers, digits.train[1].numpy()[numbers]),
            _measure_error(digits, left, labels),
        ),
    )


def _measure_error(digits: Digits, kept: np.ndarray, labels: np.ndarray) -> float:
    """The error on the test set, whose labels are right, of a model trained on some digits."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(digits.train[0].numpy()[kept], labels)
    x, y = (part.numpy() for part in digits.test)
    return float((model.predict(x) != y).mean())
