"""Run the tutorials and write their pages and notebooks: text, code and the real output of each cell.

    python docs/tools/tutorials.py [NAMES]                  # what `make tutorials` does
    python docs/tools/tutorials.py --keep-outputs [NAMES]   # after a change of the text alone

A tutorial is a Python script. Its docstring begins the page; a line `# %% Heading` begins a cell,
and the comment right below it is the cell's text. What the cell prints is written below its code.
A tutorial that is started with `python` also gets a notebook with the same cells and outputs.
"""

import argparse
import ast
import contextlib
import datetime
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@dataclass(frozen=True)
class Tutorial:
    """Where a tutorial's script is, and how it is started."""

    script: str
    launcher: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # packages that dross itself does not bring

    @property
    def command(self) -> str:
        """What a reader types."""
        start = "torchrun --nproc-per-node 2" if self.launcher else "python"
        return f"{start} {self.script}"

    @property
    def has_notebook(self) -> bool:
        """Whether the script can run in a notebook: torchrun starts several processes."""
        return not self.launcher


TUTORIALS = {
    "table": Tutorial("docs/tutorials/table.py"),
    "images": Tutorial("docs/tutorials/images.py"),
    "texts": Tutorial("docs/tutorials/texts.py"),
    "loop": Tutorial("docs/tutorials/loop.py"),
    "trainer": Tutorial("examples/transformers_trainer.py", needs=("transformers",)),
    "lightning": Tutorial("examples/lightning_images.py", needs=("lightning",)),
    "sklearn": Tutorial("examples/sklearn_pipeline.py"),
    "many_gpus": Tutorial("docs/tutorials/many_gpus.py", launcher=TORCHRUN),
    "cluster": Tutorial("docs/tutorials/cluster.py", needs=("distributed",)),
    "object_storage": Tutorial("docs/tutorials/object_storage.py"),
}


@dataclass(frozen=True)
class Cell:
    """A part of a script: its heading, its text, its code and the line where the code begins."""

    heading: str
    text: str
    code: str
    line: int


def read_cells(source: str) -> tuple[str, str, list[Cell]]:
    """Return the title of a script, the rest of its docstring, and its cells."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    title, _, intro = docstring.partition("\n")
    lines = source.splitlines()
    starts = [k for k, line in enumerate(lines) if line.startswith("# %%")]
    first = ast.parse(source).body[0].end_lineno or 0
    if not starts or any(line.strip() for line in lines[first : starts[0]]):
        starts = [first, *starts]  # code before the first heading: the imports of an example
    cells = []
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        heading, k = "", start
        if lines[start].startswith("# %%"):
            heading, k = lines[start].removeprefix("# %%").strip(), start + 1
        text = []
        while heading and k < end and lines[k].startswith("#"):
            text.append(lines[k].removeprefix("#").removeprefix(" "))
            k += 1
        code = "\n".join(lines[k:end])
        skipped = len(code) - len(code.lstrip("\n"))
        cells.append(Cell(heading, "\n".join(text), code.strip("\n"), k + skipped))
    return title.rstrip("."), intro.strip("\n"), cells


def run_cells(cells: list[Cell], path: str) -> list[str]:
    """Run cells one after the other; return what each printed."""
    names: dict = {"__name__": "__main__", "__file__": path}
    printed = []
    for cell in cells:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            exec(compile("\n" * cell.line + cell.code, path, "exec"), names)
        printed.append(text.getvalue().rstrip())
    return printed


def write_page(name: str, outputs: list[str], ran: str) -> str:
    """Return the page of a tutorial with these outputs."""
    tutorial = TUTORIALS[name]
    title, intro, cells = read_cells((ROOT / tutorial.script).read_text(encoding="utf-8"))
    link = os.path.relpath(ROOT / tutorial.script, FOLDER)
    parts = [f"# {title}", _as_markdown(intro)]
    for cell, output in zip(cells, outputs):
        if cell.heading:
            parts += [f"## {cell.heading}", cell.text]
        if cell.code:
            parts.append(f"```python\n{cell.code}\n```")
        if output:
            parts.append(f"It prints\n\n```text\n{output}\n```")
    notebook = (
        f"The same cells are in a [notebook]({name}.ipynb). " if tutorial.has_notebook else ""
    )
    script = f"The script is [{tutorial.script}]({link}): `{tutorial.command}`. {ran}"
    parts.append(f"---\n\n{notebook}{script}")
    return "\n\n".join(part for part in parts if part) + "\n"


def write_notebook(name: str, outputs: list[str]) -> str:
    """Return the notebook of a tutorial with these outputs, as JSON."""
    title, intro, cells = read_cells((ROOT / TUTORIALS[name].script).read_text(encoding="utf-8"))
    contents = [_markdown_cell(f"# {title}", _as_markdown(intro))]
    for cell, output in zip(cells, outputs):
        if cell.heading:
            contents.append(_markdown_cell(f"## {cell.heading}", cell.text))
        if cell.code:
            contents.append(_code_cell(cell.code, output))
    for number, content in enumerate(contents):
        content["id"] = f"{name}-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": contents, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _markdown_cell(*parts: str) -> dict:
    text = "\n\n".join(part for part in parts if part)
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def _code_cell(code: str, output: str) -> dict:
    stream = {"output_type": "stream", "name": "stdout", "text": output.splitlines(keepends=True)}
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [stream] if output else [],
        "source": code.splitlines(keepends=True),
    }


def _as_markdown(intro: str) -> str:
    """Leave out commands and outputs, which are indented, and the sentence that announces them."""
    kept = [part for part in intro.split("\n\n") if not part.startswith("    ")]
    announced = re.compile(r"(?:(?<=\.\s)|^)[^.]*(?:prints|:)$", flags=re.DOTALL)
    return "\n\n".join(filter(None, (announced.sub("", part).strip() for part in kept)))


def read_outputs(page: str, count: int) -> tuple[list[str], str]:
    """Return the outputs that a page shows, cell by cell, and its last sentence."""
    code = r"```python\n.*?\n```(?:\n\nIt prints\n\n```text\n(?P<output>.*?)\n```)?"
    found = [match["output"] or "" for match in re.finditer(code, page, flags=re.DOTALL)]
    ran = page.rstrip().rpartition("`. ")[2]
    return found + [""] * (count - len(found)), ran


def run(name: str) -> None:
    """Run a tutorial in a process and a folder of its own, and write its page."""
    tutorial = TUTORIALS[name]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    environment |= {"COLUMNS": "80", "TQDM_DISABLE": "1"}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, *tutorial.launcher, __file__, "--cells", name, str(results)]
        done = subprocess.run(command, cwd=folder, env=environment, check=False)
        if done.returncode != 0:
            sys.exit(f"{tutorial.script} failed.")
        outputs = json.loads(results.read_text(encoding="utf-8"))
    seconds = time.monotonic() - started
    import torch

    today = datetime.date.today().isoformat()
    ran = (
        f"The output was produced on {today} in {seconds:.0f} s on {os.cpu_count()} shared cores "
        f"without a GPU (load average {os.getloadavg()[0]:.0f}), with torch {torch.__version__} "
        f"and Python {platform.python_version()}."
    )
    write_files(name, outputs, ran)
    print(f"{name}: {seconds:.0f} s", flush=True)


def keep_outputs(name: str) -> None:
    """Write the page and the notebook of a tutorial again, with the outputs that the page shows."""
    cells = read_cells((ROOT / TUTORIALS[name].script).read_text(encoding="utf-8"))[2]
    page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)\n```$", page, flags=re.DOTALL | re.MULTILINE)
    if shown != [cell.code for cell in cells if cell.code]:
        sys.exit(f"The code of {TUTORIALS[name].script} has changed. Run it.")
    write_files(name, *read_outputs(page, len(cells)))


def write_files(name: str, outputs: list[str], ran: str) -> None:
    """Write the page of a tutorial and, if it can have one, its notebook."""
    (FOLDER / f"{name}.md").write_text(write_page(name, outputs, ran), encoding="utf-8")
    if TUTORIALS[name].has_notebook:
        (FOLDER / f"{name}.ipynb").write_text(write_notebook(name, outputs), encoding="utf-8")


def main() -> None:
    """Run the tutorials that are named, or all whose packages are here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(TUTORIALS))
    parser.add_argument(
        "--keep-outputs",
        action="store_true",
        help="run nothing: write the pages again with the outputs that they show",
    )
    parser.add_argument("--cells", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cells:
        name, results = options.cells
        script = ROOT / TUTORIALS[name].script
        outputs = run_cells(read_cells(script.read_text(encoding="utf-8"))[2], str(script))
        if os.environ.get("RANK", "0") == "0":
            Path(results).write_text(json.dumps(outputs), encoding="utf-8")
        return
    from importlib.util import find_spec

    for name in options.names or TUTORIALS:
        if options.keep_outputs:
            keep_outputs(name)
        elif missing := [each for each in TUTORIALS[name].needs if find_spec(each) is None]:
            print(f"{name}: skipped, {', '.join(missing)} is not installed")
        else:
            run(name)


if __name__ == "__main__":
    main()
