"""The log of decisions against a plain list; with killed and competing writers and bad files."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dross.cleaning.decisions import Decisions
from dross.errors import CorruptFile, DrossError, InvalidInput

DECISION = st.sampled_from(
    [("keep", None), ("remove", None), ("undecided", None), ("relabel", "cat"), ("relabel", "dog")]
)
PEOPLE = st.sampled_from(["", "ana", "ben"])
STEP = st.one_of(
    st.tuples(
        st.just("record"),
        PEOPLE,
        st.dictionaries(st.integers(0, 5), DECISION, min_size=1, max_size=4),
    ),
    st.tuples(st.just("undo"), PEOPLE, st.none()),
    st.tuples(st.just("redo"), PEOPLE, st.none()),
)


class ListModel:
    """The same by lists alone: what holds is folded from the start each time."""

    def __init__(self):
        self.holding, self.undone = [], []  # [(who, changes)], [(undoer, (who, changes))]

    def do(self, verb, who, changes):
        if verb == "record":
            self.holding.append((who, changes))
            self.undone = [entry for entry in self.undone if entry[0] != who]
        elif verb == "undo":
            mine = [entry for entry in self.holding if who in ("", entry[0])]
            if mine:
                self.holding = [entry for entry in self.holding if entry is not mine[-1]]
                self.undone.append((who, mine[-1]))
        else:
            mine = [entry for entry in self.undone if who in ("", entry[0])]
            if mine:
                self.undone = [entry for entry in self.undone if entry is not mine[-1]]
                self.holding.append(mine[-1][1])

    def current(self):
        state = {}
        for _, changes in self.holding:
            state.update(changes)
        return {id: decision for id, decision in state.items() if decision[0] != "undecided"}


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=25))
def test_the_log_is_the_list_also_for_a_second_reader_and_after_reopening(steps):
    with tempfile.TemporaryDirectory() as folder:
        path, model = Path(folder) / "d.sqlite", ListModel()
        log, other = Decisions(path), Decisions(path)
        for place, (verb, who, changes) in enumerate(steps):
            writer = (log, other)[place % 2]
            writer.record(changes, who) if verb == "record" else getattr(writer, verb)(who)
            model.do(verb, who, changes)
            assert log.current() == model.current()
            assert log.undoable("ana") == any(entry[0] == "ana" for entry in model.holding)
        again = Decisions(path)
        assert again.current() == other.current() == model.current()
        assert again.revision == log.revision and again.since(0) == log.since(0)
        assert again.since(again.revision) == []
        for decisions in (log, other, again):
            decisions.close()


def test_a_bulk_decision_is_one_event_and_is_undone_as_one(tmp_path):
    log = Decisions(tmp_path / "d.sqlite")
    log.record({3: ("keep", None)})
    bulk = dict.fromkeys(range(1000), ("remove", None))
    revision = log.record(bulk, who="ana", why="all of class 3")
    assert [event.revision for event in log.since(revision - 1)] == [revision]
    undone = log.undo()
    assert undone is not None and undone.target == revision
    assert set(undone.changes) == set(range(1000))
    assert log.current() == {3: ("keep", None)}
    log.redo()
    assert len(log.current()) == 1000
    history = log.history()
    assert [entry["action"] for entry in history] == ["keep", "remove", "undo", "redo"]
    assert history[1]["ids"] == list(range(1000))
    assert (history[1]["who"], history[1]["why"]) == ("ana", "all of class 3")
    assert log.undo("nobody") is None and log.redo() is None


def test_a_person_takes_back_only_what_that_person_decided(tmp_path):
    log = Decisions(tmp_path / "d.sqlite")
    log.record({1: ("keep", None)}, who="ana")
    log.record({1: ("remove", None), 2: ("remove", None)}, who="ben")
    log.undo(who="ana")
    assert log.current() == {1: ("remove", None), 2: ("remove", None)}
    log.redo(who="ana")
    # said again, later than what ben said
    assert log.current() == {1: ("keep", None), 2: ("remove", None)}


def test_a_request_sent_twice_is_carried_out_once(tmp_path):
    log = Decisions(tmp_path / "d.sqlite")
    first = log.record({1: ("keep", None)}, once="a")
    log.record({2: ("keep", None)}, once="b")
    assert log.record({1: ("keep", None)}, once="a") == first
    undone = log.undo(once="c")
    assert log.undo(once="c") == undone and log.current() == {1: ("keep", None)}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {1: ("delete", None)},
        {1: ("relabel", None)},
        {1: ("keep", "cat")},
        {-1: ("keep", None)},
        {1: ("relabel", 3)},
        {1: ("keep", 3)},
    ],
)
def test_nonsense_is_refused_and_leaves_no_trace(tmp_path, changes):
    log = Decisions(tmp_path / "d.sqlite")
    with pytest.raises(InvalidInput):
        log.record(changes)
    assert log.revision == 0


def test_rows_are_never_changed_or_deleted(tmp_path):
    log = Decisions(tmp_path / "d.sqlite")
    seen = []
    for step in range(12):
        verbs = (lambda step=step: log.record({step: ("keep", None)}), log.undo, log.redo)
        verbs[step % 3]()
        rows = sqlite3.connect(tmp_path / "d.sqlite")
        now = rows.execute("SELECT * FROM events ORDER BY revision").fetchall()
        rows.close()
        assert now[: len(seen)] == seen and len(now) == len(seen) + 1
        seen = now


def test_threads_take_turns(tmp_path):
    log = Decisions(tmp_path / "d.sqlite")

    def write(person):
        for id in range(20):
            log.record({person * 100 + id: ("remove", None)}, who=str(person))

    threads = [threading.Thread(target=write, args=(person,)) for person in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert log.current().keys() == {person * 100 + id for person in range(4) for id in range(20)}


WRITER = """
import sys
from dross.cleaning.decisions import Decisions
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = Decisions(path)
for id in range(first, first + count):
    log.record({id: ("remove", None)}, who=str(first))
    print(id, flush=True)
"""


def writer(path, first, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, path, str(first), str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_at_once_lose_nothing(tmp_path):
    processes = [writer(tmp_path / "d.sqlite", first, 60) for first in (0, 1000)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert Decisions(tmp_path / "d.sqlite").current().keys() == {*range(60), *range(1000, 1060)}


def test_everything_acknowledged_survives_kill_9(tmp_path):
    for round in range(3):
        process = writer(tmp_path / "d.sqlite", round * 10_000, 10_000)
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(15 + 7 * round)]
        os.kill(process.pid, signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout.read().split()]
        process.wait()
        process.stdout.close()
        found = Decisions(tmp_path / "d.sqlite").current().keys()
        mine = sorted(id for id in found if id // 10_000 == round)
        assert mine[: len(acknowledged)] == acknowledged
        assert len(mine) <= len(acknowledged) + 1  # one may be written but not yet said


def test_a_foreign_or_damaged_file_is_refused_and_left_as_it_is(tmp_path):
    text, foreign, cut = (tmp_path / name for name in ("text", "foreign", "cut"))
    text.write_text("not a database, but somebody's notes " * 50)
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    log = Decisions(cut)
    for id in range(200):
        log.record({id: ("remove", None)}, why="a long reason " * 20)
    log.close()
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    for path in (text, foreign, cut):
        before = path.read_bytes()
        with pytest.raises(CorruptFile, match=str(path)):
            Decisions(path)
        assert path.read_bytes() == before


def test_a_row_that_dross_did_not_write_is_named(tmp_path):
    log = Decisions(tmp_path / "d.sqlite")
    log.record({1: ("keep", None)})
    connection = sqlite3.connect(tmp_path / "d.sqlite")
    connection.execute("UPDATE events SET changes = '[[1'")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptFile, match="Row 1 of"):
        Decisions(tmp_path / "d.sqlite")


def test_a_full_disk_and_a_missing_folder_say_so(tmp_path):
    log = Decisions(tmp_path / "d.sqlite")
    log.record({1: ("keep", None)})
    pages = log._connection.execute("PRAGMA page_count").fetchone()[0]
    log._connection.execute(f"PRAGMA max_page_count={pages}")  # what SQLite reports of a full disk
    with pytest.raises(DrossError, match="disk is full"):
        log.record(dict.fromkeys(range(20000), ("remove", None)))
    assert log.current() == {1: ("keep", None)}
    log._connection.execute("PRAGMA max_page_count=1000000")
    log.record({2: ("keep", None)})
    assert set(Decisions(tmp_path / "d.sqlite").current()) == {1, 2}
    with pytest.raises(DrossError, match="folder"):
        Decisions(tmp_path / "nowhere" / "d.sqlite")


def test_validation_instances_are_decided_about_in_the_same_log(tmp_path):
    log = Decisions(tmp_path / "d.sqlite")
    log.record({3: ("keep", None)})
    log.record({3: ("relabel", "cat"), 5: ("remove", None)}, who="ana", part="validation")
    log.record({5: ("remove", None)})
    wanted = {3: ("relabel", "cat"), 5: ("remove", None)}, {3: ("keep", None), 5: ("remove", None)}
    again = Decisions(tmp_path / "d.sqlite")
    for reader in (log, again):
        assert (reader.current("validation"), reader.current()) == wanted
    parts = [entry["part"] for entry in log.history()]
    assert parts == ["train", "validation", "validation", "train"]
    undone = log.undo(who="ana")
    assert undone is not None and undone.part == "validation"
    assert (again.current("validation"), again.current()) == ({}, wanted[1])
    assert log.redo() is not None and again.current("validation") == wanted[0]
    with pytest.raises(InvalidInput, match="'train' or 'validation' set, not 'test'"):
        log.record({1: ("keep", None)}, part="test")


def test_a_validation_decision_survives_kill_9(tmp_path):
    script = f"""
import os, signal
from dross.cleaning.decisions import Decisions
log = Decisions({str(tmp_path / "d.sqlite")!r})
log.record({{2: ("remove", None)}}, part="validation")
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False)
    assert ended.returncode == -9
    assert Decisions(tmp_path / "d.sqlite").current("validation") == {2: ("remove", None)}
