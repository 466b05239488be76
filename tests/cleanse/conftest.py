"""One cleaned project that several test modules look at."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import dross
from cleanse.made_inputs import other_parts, write_parts


@pytest.fixture(scope="session")
def cancer(tmp_path_factory):
    """A table with flipped labels, cleaned: its folder, the project, and which are flipped."""
    folder = tmp_path_factory.mktemp("cancer")
    data = load_breast_cancer(as_frame=True)
    frame = data.data.assign(diagnosis=np.array(["malignant", "benign"])[data.target])
    bad = write_parts(frame, "diagnosis", folder, 0.12)
    project = dross.clean(
        folder / "train.csv",
        "diagnosis",
        out=folder / "run",
        runs=3,
        rate=0.02,
        epochs=12,
        progress=False,
        **other_parts(folder),
    )
    return folder, project, bad
