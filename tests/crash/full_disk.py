"""Let the disk run full while dross writes, make room, and compare with a run that had it.

    python tests/crash/full_disk.py [--sizes 20] [--only record,clean,judge,export,review]
                                    [--disk tmpfs|limit]

The sizes go from "nothing fits" to all that the job needed when it had room. A job whose disk is
full must end with a DrossError, and leave no part of a file under a final name. The same call, once
there is room, must give the same bits. The page's server must acknowledge nothing that is not
saved, and save what it refused when it is asked again.
"""

import argparse
import io
import json
import os
import re
import secrets
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pandas
import torch
from jobs import JOBS, REFUSED, clean_first, digest_inputs, export, finish, fork
from PIL import Image
from safetensors.torch import load
from small_disk import SmallDisk, make_small_disk

from dross.cleaning.decisions import Decisions
from dross.cleaning.project_files import read_sealed
from dross.review.server import serve
from dross.tape.format import MANIFEST, decode_manifest

_MAX_DECISIONS = 1000
Work = Callable[[Path], None]


def run_full(name: str, sizes: int, disk: SmallDisk) -> tuple[int, int]:
    """How often the disk was too small, at how many sizes.

    Raises AssertionError where anything is lost.
    """
    job, refused, folder = JOBS[name], 0, disk.folder
    with tempfile.TemporaryDirectory() as aside:
        begun = Path(aside) / "begun"
        folder.mkdir()
        job.prepare(folder)
        shutil.copytree(folder, begun)
        job.work(folder)  # here: what is imported now, every process has from the beginning
        put_back(begun, folder)
        needed = measure(job.work, disk)
        expected, inputs = job.result(folder), digest_inputs(folder)
        tried = spread(sizes, needed)
        for free in tried:
            about = f"{name} with {free} of {needed} pages"
            put_back(begun, folder)
            disk.shrink(free)
            code, said = attempt(job.work, disk)
            assert code in (0, REFUSED), f"{about} ended with {code}: {said}"
            if code == REFUSED:
                refused += 1
                assert re.match(r"DrossError: .{20}", said), f"{about} says {said}"
                check_files(folder, begun)
            disk.grow()
            finish(job.work, folder)
            assert job.result(folder) == expected, f"{about}: other bits afterwards"
            assert digest_inputs(folder) == inputs, f"{about}: the input was written"
        shutil.rmtree(folder)
    return refused, len(tried)


def spread(sizes: int, needed: int) -> list[int]:
    """Free pages, from none to all that are needed; never the same twice."""
    return sorted({round(k * needed / max(1, sizes - 1)) for k in range(sizes)})


def put_back(begun: Path, folder: Path) -> None:
    """Begin anew, at the place where the job was prepared: a project knows where its input is."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(begun, folder)


def measure(work: Work, disk: SmallDisk) -> int:
    """The most pages that the job needs at one time, beside what is there.

    Everything that dross writes is renamed in the end, so it is enough to look before each rename.
    """
    taken, rename = disk.taken(), os.replace
    reading, writing = os.pipe()

    def replace(*paths) -> None:
        os.write(writing, f"{disk.pages()}\n".encode())
        rename(*paths)

    def work_watched() -> None:
        os.replace = replace
        work(disk.folder)

    pid = fork(work_watched)
    os.close(writing)
    with open(reading) as seen:
        most = max(map(int, seen))
    assert os.waitpid(pid, 0)[1] == 0
    return max(most, disk.pages()) - taken


def attempt(work: Work, disk: SmallDisk) -> tuple[int, str]:
    """How a process ends whose disk may be full, and what it says."""

    def meet_full_disk() -> None:
        disk.limit_writer()
        work(disk.folder)

    reading, writing = os.pipe()  # a file of its own could be full, too
    pid = fork(meet_full_disk, errors=writing)
    os.close(writing)
    with open(reading) as errors:
        said = errors.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


# --- files ---------------------------------------------------------------------------------------


def check_files(folder: Path, begun: Path) -> None:
    """Every file is whole: one that was there before, or one that its reader takes."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        assert not path.name.endswith(".tmp"), f"{path} is left behind"
        raw, before = path.read_bytes(), begun / path.relative_to(folder)
        if not before.exists() or before.read_bytes() != raw:
            try:
                read_whole(path, raw)
            except Exception as error:
                raise AssertionError(f"{path} is not whole: {error}") from error
    if (folder / "cleaned.csv").exists():  # the copy and its list belong together
        names = ("cleaned.csv", "cleaned-decisions.csv")
        assert all((folder / name).read_bytes() == (begun / name).read_bytes() for name in names)


def read_whole(path: Path, raw: bytes) -> None:
    """Read a file as its kind is read; raises whatever the reader does."""
    match path.suffix:
        case ".json" if path.name == MANIFEST:
            decode_manifest(raw, path.name)  # compares its digest
        case ".json" if path.name == "why.json":
            json.loads(raw)  # its digest is in project.json, which comes last
        case ".json":
            read_sealed(path, dict)  # so does this
        case ".safetensors":
            load(raw)
        case ".parquet":
            pandas.read_parquet(io.BytesIO(raw))
        case ".csv":
            assert raw.endswith(b"\n") and len(set(map(len, pandas.read_csv(path).values))) == 1
        case ".html":
            assert raw.rstrip().endswith(b"</html>")
        case ".png":
            Image.open(io.BytesIO(raw)).load()
        case ".sqlite":
            with sqlite3.connect(path) as log:
                assert log.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        case other:
            raise AssertionError(f"nobody knows a file {other}")


# --- review --------------------------------------------------------------------------------------


def review_full(sizes: int, disk: SmallDisk) -> tuple[int, int]:
    """How many requests to decide, or starts of the server, were refused; at how many sizes."""
    refused, folder = 0, disk.folder
    with tempfile.TemporaryDirectory() as aside:
        begun, alone = Path(aside) / "begun", Path(aside) / "alone.sqlite"
        folder.mkdir()
        clean_first(folder)
        shutil.copytree(folder, begun)
        for free in range(sizes):
            about = f"review with {free} pages"
            put_back(begun, folder)
            disk.shrink(free)
            said, acknowledged = review(folder / "run", disk)
            refused += len(said)
            for sentence in said:
                assert "decisions.sqlite" in sentence, f"{about} says {sentence}"
            log = Decisions(folder / "run" / "decisions.sqlite")  # checks itself
            # An undisturbed log with the same decisions says the same, and so does an export.
            other = Decisions(alone)
            for action, id, why in acknowledged:
                other.record({id: (action, None)}, why=why)
            same = lambda log: [(event.kind, event.changes, event.why) for event in log.since(0)]
            assert same(log) == same(other), f"{about}: other decisions"
            assert log.current() == other.current() and len(acknowledged) > 0
            log.close()
            other.close()
            alone.unlink()
            finish(export, folder)
        shutil.rmtree(folder)
    return refused, sizes


def review(project: Path, disk: SmallDisk) -> tuple[list[str], list[tuple[str, int, str]]]:
    """Decide until the disk is full, make room, and repeat the request that was refused.

    Returns what the server said when it refused, and what it acknowledged.
    """
    said, acknowledged = [], []
    pid, address = start_server(project, disk)
    if pid is None:  # not even an empty log fits
        said.append(address)
        disk.grow()
        pid, address = start_server(project, disk)
    assert pid is not None, address
    origin, token = re.fullmatch(r"(http://\S+?)/\?token=(\S+)", address).groups()
    headers, revision = {"X-Dross-Token": token}, 0
    try:
        with httpx.Client(base_url=origin, headers=headers, trust_env=False, timeout=60) as page:
            while len(acknowledged) < _MAX_DECISIONS:
                number = len(acknowledged)
                decision = ("remove" if number % 3 else "keep", number % 80, secrets.token_hex(80))
                changes = [[decision[0], None, [decision[1]]]]
                body = {"changes": changes, "revision": revision, "why": decision[2]}
                body["once"] = decision[2]
                answer = page.post("/api/decide", json=body)
                if answer.status_code == 507:
                    said.append(answer.json()["error"])
                    assert page.get("/api/list").status_code == 200  # the page goes on
                    disk.grow(pid)
                    answer = page.post("/api/decide", json=body)
                revision = answer.raise_for_status().json()["revision"]
                acknowledged.append(decision)
                if said and len(acknowledged) >= 3:
                    break
    finally:
        os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM, f"the server ended with {status}"
    disk.grow()
    return said, acknowledged


def start_server(project: Path, disk: SmallDisk) -> tuple[int | None, str]:
    """A server's process and the address that it prints; or None and why it ended."""
    reading, writing = os.pipe()

    def serve_here() -> None:
        disk.limit_writer()
        serve(project, open_browser=False)

    pid = fork(serve_here, out=writing, errors=writing)
    os.close(writing)
    with open(reading, "rb", buffering=0) as printed:
        text = b""
        while b"Ctrl-C" not in text and (piece := printed.read(4096)):
            text += piece
        found = re.search(r"http://\S+", text.decode())
        if found:
            return pid, found[0]
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == REFUSED, text.decode()
    return None, text.decode()


def main() -> None:
    """Print how often the disk of each job was full."""
    names = [*JOBS, "review"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, default=20)
    parser.add_argument("--only", default=",".join(names))
    parser.add_argument("--disk", choices=["tmpfs", "limit"], default="")
    options = parser.parse_args()
    torch.set_num_threads(1)  # before anything forks
    for name in options.only.split(","):
        start = time.monotonic()
        with make_small_disk(options.disk) as disk:
            full = review_full if name == "review" else partial(run_full, name)
            refused, tried = full(options.sizes, disk)
            kind = type(disk).__name__
        took = time.monotonic() - start
        print(
            f"{name}: full {refused} times at {tried} sizes ({kind}), "
            f"same bits afterwards ({took:.0f} s)"
        )


if __name__ == "__main__":
    main()
