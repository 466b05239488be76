"""Tables behind URLs that fsspec reads: a local web server, and fsspec's memory."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

import dross
from dross.cleaning.inputs import Request, digest_inputs, prepare
from dross.errors import InputChanged, InvalidInput
from tests.cleaning.made_inputs import QUICK, small_table


@pytest.fixture
def served(tmp_path):
    """A folder, and the URL of a server on this machine that serves it."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_project_of_a_url(served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, url = served
    small_table(folder / "pets.csv", 80)
    raw = (folder / "pets.csv").read_bytes()
    options = QUICK | {"repeats": 1, "epochs": 2, "check": 2, "model": "linear"}
    project = dross.clean(f"{url}/pets.csv", "kind", **options)
    assert project.folder == Path("runs/pets")
    done = project.export("cleaned.csv", remove=3)
    removed = set(project.table.sort_values("harm_rank")["row"].head(3))
    lines = raw.splitlines(keepends=True)
    kept = [line for k, line in enumerate(lines, 1) if k not in removed]
    assert done.cleaned.read_bytes() == b"".join(kept) and len(project.cleaned(remove=3)) == 77
    (folder / "pets.csv").write_bytes(raw + b"\n")
    with pytest.raises(InputChanged, match=r"pets\.csv has changed since dross clean read it"):
        project.export("other.csv", remove=3)


def test_what_a_server_does_not_have(served):
    _, url = served
    with pytest.raises(InvalidInput, match=r"There is no file at http://127.*/pets\.csv\."):
        prepare(Request(f"{url}/pets.csv", "kind"))
    with pytest.raises(InvalidInput, match=r"cannot be read .*Check the address"):
        prepare(Request("http://127.0.0.1:1/pets.csv", "kind"))


def test_buckets_and_file_urls(tmp_path):
    path = small_table(tmp_path / "pets.csv", 60)
    with fsspec.open("memory://bucket/pets.csv", "wb") as file:
        file.write(Path(path).read_bytes())
    local = prepare(Request(str(path), "kind"))
    for url in ("memory://bucket/pets.csv", f"file://{path}"):
        request = Request(url, "kind")
        assert prepare(request).source.content.equals(local.source.content)
        assert digest_inputs(request) == digest_inputs(Request(str(path), "kind"))
    with pytest.raises(InvalidInput, match="images must be on this machine"):
        prepare(Request("memory://bucket/pets.csv", "kind", images="x"))
