"""Whatever happens to a file of a project: what it says is the same, or it is named as damaged.

With DROSS_FUZZ_SECONDS the test goes on for that long.
"""

import asyncio
import faulthandler
import json
import shutil

import httpx
import pytest

import dross
from dross.cleaning.decisions import Decisions
from dross.cleaning.project import Project
from dross.cleaning.project_files import to_json
from dross.errors import DrossError
from dross.review.server import Keys, create_app
from tests.cleaning.made_inputs import QUICK, small_table
from tests.fuzz.effort import rounds
from tests.fuzz.mutate import damage
from tests.quick_cleaning import quick_cleaning

HANG = 60  # seconds for one example, which takes a fraction of one
TOKEN = "the-token"
ADDRESSES = [
    "/api/project",
    "/api/list?tab=all",
    "/api/list?tab=mislabeled&state=undecided",
    "/api/list?tab=all&state=remove&q=n1",
    "/api/items?ids=0,1,2,30",
    "/api/why?id=0",
    "/api/since?revision=0",
    "/api/verdicts",
]


@pytest.fixture(scope="module", autouse=True)
def _clean_quickly():
    with quick_cleaning():
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project with decisions and a verdict."""
    folder = tmp_path_factory.mktemp("project")
    small_table(folder / "table.csv", 120, note=[f"n{k}" for k in range(120)])
    options = QUICK | {"repeats": 1, "epochs": 3, "check": 2, "model": "linear"}
    project = dross.clean(folder / "table.csv", "kind", out=folder / "run", **options)
    log, other = project.decisions, project.classes[0]
    log.record(dict.fromkeys(range(5), ("remove", None)), "ann", "these look wrong")
    log.record({7: ("relabel", other), 8: ("keep", None)}, "bob", once="a request")
    log.record({9: ("remove", None)}, "bob")
    log.undo("ann")
    log.redo("ann")
    log.undo("bob")
    log.close()
    dross.judge(folder / "run", seeds=2, quick=True, progress=False)
    shutil.copytree(folder, folder.with_name("whole"))
    return folder, folder.with_name("whole")


def read_all(folder):
    """All that a project has to say."""
    project = Project.open(folder / "run")
    try:
        tables = [project.table, project.content, project.validation, project.label_table]
        said = [to_json(project.info), project.verdicts(), *map(project.why, range(20))]
        decided = [project.current_decisions(), project.decisions.history()]
        return [table.to_csv() for table in tables], said, decided
    finally:
        close(project)


def export(folder):
    """The bytes of the cleaned copy and of its list."""
    dross.export(folder / "run", folder / "copy.csv", overwrite=True)
    return [(folder / name).read_bytes() for name in ("copy.csv", "copy-decisions.csv")]


def judge(folder):
    """What the verdict says, but for its time."""
    verdict = dross.judge(folder / "run", seeds=2, quick=True, progress=False)
    return json.dumps(verdict.to_json() | {"made": ""})


def review(folder):
    """What the page's server answers; one that refuses answers with a sentence."""
    project = Project.open(folder / "run")
    try:
        app = create_app(project, Keys(TOKEN))
        return asyncio.run(ask(app))
    finally:
        close(project)


async def ask(app):
    transport = httpx.ASGITransport(app)  # raises what the server would have to print
    headers = {"X-Dross-Token": TOKEN}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers=headers
    ) as page:
        answers = [await page.get(address) for address in ADDRESSES]
    refused = [answer.json()["error"] for answer in answers if answer.status_code >= 400]
    if refused:
        assert not any("An internal error occurred" in sentence for sentence in refused)
        raise DrossError(refused[0])
    return [answer.json() for answer in answers]


def close(project):
    log = project.__dict__.get("decisions")
    if isinstance(log, Decisions):
        log.close()


USES = {"read": read_all, "export": export, "review": review, "judge": judge}


def test_damaged_project_files(made):
    folder, whole = made
    put_back(whole, folder)
    expected = {name: use(folder) for name, use in USES.items()}
    names = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    # the table is an input, and SQLite has no digests of what people decided
    names = [name for name in names if name.suffix not in (".csv", ".sqlite")]
    often = [name for name in names if name.suffix in (".json", ".parquet")]
    same = refused = 0
    for random_ in rounds("project files", quick=60):
        put_back(whole, folder)
        name = random_.choice(random_.choice([names, often, often]))
        (folder / name).write_bytes(damage((whole / name).read_bytes(), random_))
        uses = ["read", "export", "review"]
        if random_.random() < 0.05:
            uses.append("judge")
        for use in uses:
            faulthandler.dump_traceback_later(HANG, exit=True)
            try:
                found = USES[use](folder)
            except DrossError as error:
                assert len(str(error)) > 10, (random_, name)
                refused += 1
            else:
                assert found == expected[use], (random_, name, use)
                same += 1
            finally:
                faulthandler.cancel_dump_traceback_later()
    assert same > 0 and refused > 0


def put_back(whole, folder):
    """The project as it was."""
    shutil.rmtree(folder)
    shutil.copytree(whole, folder)
