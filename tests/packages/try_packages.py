"""Try the built packages as a user gets them: `make package` runs it.

The wheel goes into a fresh environment with everything that it needs: help, demo, a table cleaned,
judged and exported. The sdist goes into another one with what the engine needs alone, where it must
run. torch comes in the version of constraints.txt.

With --others, Pythons that have no torch here install the wheel without what it needs but for the
command line, and show its help.
"""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINE = ("torch", "numpy", "safetensors", "msgspec", "filelock")
CONSTRAINTS = ("--constraint", str(ROOT / "constraints.txt"))


def run(*command: object, cwd: Path) -> str:
    """What it prints; whatever it says is shown where it fails."""
    words = [str(word) for word in command]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{' '.join(words)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def make_environment(folder: Path, python: str, *install: object) -> Path:
    """The folder of its programs."""
    began = time.monotonic()
    run(python, "-m", "venv", folder, cwd=folder.parent)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    run(programs / "python", "-m", "pip", "install", "--quiet", *install, cwd=folder.parent)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    print(f"{folder.name}: installed in {time.monotonic() - began:.0f} s, {size:,.0f} MB")
    return programs


def list_files(programs: Path, place: Path) -> list[str]:
    """The files of the installed package."""
    code = "import dross, pathlib; r = pathlib.Path(dross.__file__).parent\n"
    code += "print(*sorted(str(p.relative_to(r)) for p in r.rglob('*') if p.suffix != '.pyc'))"
    return run(programs / "python", "-c", code, cwd=place).split()


def write_table(path: Path) -> None:
    """Two classes that a line parts, with some labels wrong."""
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["width", "height", "kind"])
        for k in range(300):
            x, y = draw.gauss(0, 1), draw.gauss(0, 1)
            kind = (x + y > 0) != (k % 15 == 0)
            rows.writerow([f"{x:.3f}", f"{y:.3f}", "big" if kind else "small"])


def try_wheel(programs: Path, place: Path) -> None:
    """Everything that a person types, from a folder that is not the repository."""
    dross = programs / "dross"
    version = run(dross, "--version", cwd=place)
    assert "Exit codes" in run(dross, "--help", cwd=place)
    write_table(place / "table.csv")
    quick = ("--repeats", 1, "--epochs", 4, "--lr", 0.1, "--check", 2, "--json", "--quiet")
    found = run(dross, "clean", "table.csv", "--label", "kind", *quick, cwd=place)
    assert json.loads(found)["counts"], found
    verdict = run(
        dross, "judge", "runs/table", "--remove", 5, "--seeds", 3, "--json", "-q", cwd=place
    )
    assert json.loads(verdict)["removed"] == 5, verdict
    run(dross, "export", "runs/table", "cleaned.csv", "--remove", 5, cwd=place)
    assert len((place / "cleaned.csv").read_text().splitlines()) == 296
    demo = run(dross, "demo", "--seeds", 6, cwd=place)
    assert "Improved." in demo and (place / "runs" / "demo" / "report.html").exists(), demo
    print(f"{version.strip()}: help, clean, judge, export and demo work from the wheel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--others", nargs="*", default=[], help="other Pythons, without torch")
    options = parser.parse_args()
    (wheel,), (sdist,) = (list(options.dist.resolve().glob(end)) for end in ("*.whl", "*.tar.gz"))
    with tempfile.TemporaryDirectory(prefix="dross-packages-") as name:
        place = Path(name)
        for number, python in enumerate(options.others):
            few = ("typer", "rich")
            programs = make_environment(place / f"other-{number}", python, *few)
            pip = (programs / "python", "-m", "pip", "install", "--quiet")
            run(*pip, "--no-deps", wheel, cwd=place)
            assert "Exit codes" in run(programs / "dross", "--help", cwd=place)
            version = run(programs / "python", "--version", cwd=place).strip()
            run(programs / "python", "-m", "compileall", "-q", place / f"other-{number}", cwd=place)
            print(f"{version}: installs, compiles, and shows its help; there is no torch to run it")
        if options.others:
            return
        full = make_environment(place / "wheel", sys.executable, *CONSTRAINTS, wheel)
        try_wheel(full, place)
        alone = make_environment(place / "engine", sys.executable, *CONSTRAINTS, *ENGINE)
        run(alone / "python", "-m", "pip", "install", "--quiet", "--no-deps", sdist, cwd=place)
        assert list_files(alone, place) == list_files(full, place), "wheel and sdist differ"
        engine = ROOT / "tests" / "packages" / "engine_alone.py"
        print(run(alone / "python", engine, cwd=place).strip(), "(from the sdist)")


main()
