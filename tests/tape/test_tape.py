"""What is on disk survives crashes, and what is damaged is refused."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dross
from dross.errors import BadInput, StorageFailed, TapeDamaged, TapeError, TapeExists, TapeMismatch
from dross.replay.recording import Recording
from dross.tape.reader import Tape
from zoo import MODELS, problem


@pytest.fixture(autouse=True)
def _every_segment_is_committed(monkeypatch):
    """These problems are over before the first half second is."""
    monkeypatch.setattr("dross.tape.writer._BETWEEN_COMMITS", 0.0)


def final(run):
    return run.recording.state_at(run.steps)


def reopened(p, run, **changes):
    model, _ = p.start()
    options = {
        "model": model,
        "train_set": (p.X, p.Y),
        "loss": p.loss,
        "penalty": p.penalty,
        "progress": False,
    } | changes
    return dross.Run.open(run.tape, **options)


@pytest.mark.parametrize("optimizer", ["momentum", "amsgrad", "nadam"])
def test_opened_in_another_process_it_says_the_same(record, optimizer):
    p = problem("batchnorm", optimizer, epochs=3)
    run = record(p)
    query = dross.mean_loss((p.X_val, p.Y_val))
    again = reopened(p, run)
    np.testing.assert_array_equal(again.influence(query).values, run.influence(query).values)
    assert again.steps == len(p.batches) and again.complete


@pytest.mark.parametrize(
    "keep",
    [dross.EveryStep(), dross.Checkpoints(every=4), dross.LastEpochs(2), dross.Budget(60_000)],
)
def test_an_interrupted_run_continues_to_the_same_bits(tmp_path, keep):
    p = problem("dropout", "adam", epochs=4)

    class Stop(Exception):
        pass

    class Failing:
        """A data set that breaks once it has been read often enough."""

        def __init__(self, pair):
            self.pair, self.left, self.stored = pair, 10**9, None

        def __len__(self):
            return len(self.pair[0])

        def __getitem__(self, i):
            return self.pair[0][i], self.pair[1][i]

    def train(folder, stop_at=None, **options):
        model, optimizer = p.start()
        calls = iter(range(10**9))

        def rate(t):
            return 0.02 / (1 + t)

        def loss(out, y):
            if stop_at is not None and next(calls) == stop_at:
                raise Stop
            return p.loss(out, y)

        loss.__module__, loss.__name__ = "tests", "loss"
        run = dross.train(
            model,
            Failing((p.X, p.Y)),
            loss,
            optimizer,
            tape=tmp_path / folder,
            batches=p.batches,
            epochs=p.epochs,
            eta=rate,
            keep=keep,
            progress=False,
            **options,
        )
        return run, model

    undisturbed, model = train("whole")
    with pytest.raises(Stop):
        train("broken", stop_at=9)
    assert not Tape(tmp_path / "broken").complete
    continued, same_model = train("broken", resume=True)
    assert continued.complete and continued.steps == undisturbed.steps
    for name, value in final(undisturbed).tensors().items():
        assert torch.equal(final(continued).tensors()[name], value), name
    for one, other in zip(model.parameters(), same_model.parameters()):
        assert torch.equal(one, other)
    query = dross.mean_loss((p.X_val, p.Y_val))
    np.testing.assert_array_equal(
        continued.influence(query).values, undisturbed.influence(query).values
    )


SCRIPT = textwrap.dedent(
    """
    import sys, time, numpy as np, torch, dross
    torch.set_num_threads(1); torch.manual_seed(0)
    X = torch.randn(200, 6, dtype=torch.float64); Y = torch.randint(0, 3, (200,))
    model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    print("ready", flush=True)
    run = dross.train(model, (X, Y), "cross_entropy", optimizer, tape=sys.argv[1], epochs=40, batch_size=10, progress=False,
                      resume="resume" in sys.argv, keep=dross.Checkpoints(every=7))
    print(run.recording.state_at(run.steps).theta.numpy().tobytes().hex())
    """
)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_kill_at_any_moment(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(SCRIPT)

    def launch(folder, *arguments):
        return subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / folder), *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )

    undisturbed = launch("whole").communicate()[0].split()[-1]
    rng = np.random.default_rng(0)
    killed = 0
    for attempt in range(20):
        process = launch("killed", *(["resume"] if attempt else []))
        assert process.stdout is not None and process.stdout.readline().strip() == "ready"
        time.sleep(float(rng.uniform(0.02, 0.35)))
        process.kill()
        output = process.communicate()[0]
        if output.strip():
            break
        killed += 1
        if (tmp_path / "killed" / "manifest.json").exists():
            tape = Tape(tmp_path / "killed")  # opens, and says how far it got
            assert not tape.complete and tape.steps <= 800
            for index in range(len(tape.entries)):
                tape.read(index)
            tape.end_state()
        elif not attempt:
            launch("killed").communicate()
            break
    else:
        output = launch("killed", "resume").communicate()[0]
    assert killed
    finished = (
        output.split()[-1]
        if output.strip()
        else launch("killed", "resume").communicate()[0].split()[-1]
    )
    assert finished == undisturbed


@pytest.mark.parametrize("after", [True, False], ids=["after the rename", "before it"])
@pytest.mark.parametrize(
    "seconds, nth", [(0.0, nth) for nth in range(3, 15)] + [(60.0, nth) for nth in range(3, 9)]
)
def test_an_interrupt_while_the_tape_is_written(tmp_path, monkeypatch, seconds, nth, after):
    """Ctrl-C just before or just after any file appears: the tape opens, replays and continues to the same bits."""
    p = problem("batchnorm", "adam", epochs=2)
    query = dross.mean_loss((p.X_val, p.Y_val))

    def train(folder, **options):
        model, optimizer = p.start()
        return dross.train(
            model,
            (p.X, p.Y),
            p.loss,
            optimizer,
            tape=tmp_path / folder,
            batches=p.batches,
            progress=False,
            keep=dross.Checkpoints(every=2),
            **options,
        )

    expected = train("whole").influence(query).values
    rename, calls = os.replace, iter(range(1000))
    monkeypatch.setattr(
        "dross.tape.writer._BETWEEN_COMMITS", seconds
    )  # after every segment, or only at the end

    def interrupted(source, target):
        strike = next(calls) == nth
        if strike and not after:
            raise KeyboardInterrupt
        rename(source, target)
        if strike:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train("struck")
    monkeypatch.undo()
    tape = Tape(tmp_path / "struck")
    if tape.steps and not tape.complete:
        with pytest.warns(dross.DrossWarning, match="not complete"):
            part = reopened(p, SimpleNamespace(tape=tmp_path / "struck"))
        assert np.isfinite(part.influence(query).values).all()
    np.testing.assert_array_equal(train("struck", resume=True).influence(query).values, expected)


def test_keyboard_interrupt_leaves_a_usable_tape(tmp_path):
    p = problem("mlp", "sgd", epochs=4)
    model, optimizer = p.start()
    calls = iter(range(1000))

    def loss(out, y):
        if next(calls) == 10:
            raise KeyboardInterrupt
        return p.loss(out, y)

    with pytest.raises(KeyboardInterrupt):
        dross.train(
            model,
            (p.X, p.Y),
            loss,
            optimizer,
            tape=tmp_path / "t",
            batches=p.batches,
            progress=False,
        )
    steps = Tape(tmp_path / "t").steps
    assert 0 < steps < len(p.batches)
    with pytest.warns(dross.DrossWarning, match=f"{steps} of {len(p.batches)} planned steps"):
        run = dross.Run.open(tmp_path / "t", model, (p.X, p.Y), loss, progress=False)
    assert not run.complete
    assert run.influence(dross.mean_loss((p.X_val, p.Y_val))).values.any()


def test_an_existing_tape_is_not_overwritten_unless_asked(record, tmp_path):
    p = problem("mlp", "sgd")
    run = record(p)
    with pytest.raises(TapeExists, match=r"resume=True.*overwrite=True"):
        record(p, tape=run.tape)
    assert record(p, tape=run.tape, overwrite=True).complete
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    for asked in ({}, {"overwrite": True}):
        with pytest.raises(TapeExists, match="not a tape"):
            record(p, tape=tmp_path / "mine", **asked)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    with pytest.raises(BadInput, match="exclude"):
        record(p, tape=run.tape, overwrite=True, resume=True)


def test_a_tape_is_only_continued_with_the_settings_it_was_started_with(record):
    p = problem("mlp", "sgd")
    run = record(p)
    with pytest.raises(TapeMismatch, match="seed was 0 and is 5"):
        record(p, tape=run.tape, resume=True, seed=5)
    with pytest.raises(TapeMismatch, match="optimizer"):
        p.optimizer = problem("mlp", "adam").optimizer
        record(p, tape=run.tape, resume=True)


def test_what_belongs_to_another_run_is_refused(record):
    def penalty(params):
        return sum((value**2).sum() for value in params.values())

    p = problem("mlp", "sgd")
    run = record(p)
    wider = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    ).double()
    with pytest.raises(
        TapeMismatch, match=r"'0.weight' is \(7, 6\) float64 on the tape and \(8, 6\) float64 here"
    ):
        reopened(p, run, model=wider)
    with pytest.raises(TapeMismatch, match="float32"):
        reopened(p, run, model=MODELS["mlp"]())
    with pytest.raises(TapeMismatch, match="loss"):
        reopened(p, run, loss="cross_entropy")
    with pytest.raises(TapeMismatch, match="penalty"):
        reopened(p, run, penalty=penalty)
    changed = p.Y.clone()
    changed[3] = (changed[3] + 1) % 3
    with pytest.raises(TapeMismatch, match="data set"):
        reopened(p, run, train_set=(p.X, changed))
    with pytest.raises(TapeMismatch, match="data set"):
        reopened(p, run, train_set=(p.X[:-1], p.Y[:-1]))


def test_frozen_weights_must_be_the_recorded_ones(record):
    p = problem("partly_used", "sgd")
    run = record(p)
    other, _ = p.start()
    with torch.no_grad():
        other.frozen.weight.add_(1)
    with pytest.raises(TapeMismatch, match="frozen"):
        reopened(p, run, model=other)


@pytest.mark.parametrize("keep", [dross.EveryStep(), dross.Checkpoints()])
def test_what_is_changed_under_a_live_run_is_found_out(record, keep):
    p = problem("partly_used", "sgd")
    query = dross.mean_loss((p.X_val, p.Y_val))
    run = record(p, keep=keep)
    expected = run.influence(query).values
    p.Y[3] = (p.Y[3] + 1) % 3  # in place: the run holds the same tensor
    for ask in (
        lambda: run.influence(query),
        lambda: run.leave_one_out(query, [0]),
        lambda: run.parameter_influence([0]),
    ):
        with pytest.raises(TapeMismatch, match=r"changed in place|other inputs or labels"):
            ask()
    p.Y[3] = (p.Y[3] + 2) % 3
    np.testing.assert_array_equal(run.influence(query).values, expected)
    with torch.no_grad():
        run.recording.objective.model.frozen.weight.add_(1)
    with pytest.raises(TapeMismatch, match="leave them alone"):
        run.influence(query)
    with torch.no_grad():
        run.recording.objective.model.frozen.weight.sub_(1)
    for parameter in (
        run.recording.objective.model.head.parameters()
    ):  # the trained ones are the user's to change
        parameter.data.zero_()
    np.testing.assert_array_equal(run.influence(query).values, expected)


def test_a_resumed_run_needs_the_same_frozen_weights(record):
    p = problem("partly_used", "sgd")
    run = record(p)
    start = p.start

    def other():
        model, optimizer = start()
        with torch.no_grad():
            model.frozen.weight.add_(1)
        return model, optimizer

    p.start = other
    with pytest.raises(TapeMismatch, match="model was"):
        record(p, tape=run.tape, resume=True)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_segments_too_long_for_memory_are_replayed_in_blocks(record, monkeypatch, optimizer):
    p = problem("batchnorm", optimizer, epochs=5)
    query = dross.mean_loss((p.X_val, p.Y_val))
    run = record(p, keep=dross.Checkpoints(every=100))
    whole = run.influence(query)
    monkeypatch.setattr("dross.replay.recording._STATES_AT_ONCE", 1)
    for options in ({}, {"epochs": 2}, {"at": 13}):
        monkeypatch.setattr("dross.replay.recording._STATES_AT_ONCE", 1 << 30)
        expected = run.influence(query, **options).values
        monkeypatch.setattr("dross.replay.recording._STATES_AT_ONCE", 1)
        np.testing.assert_array_equal(run.influence(query, **options).values, expected)
    assert whole.values.any()


@pytest.mark.parametrize("in_states", [1, 3, 8, 20])
def test_a_budget_holds_in_memory(record, monkeypatch, in_states):
    p = problem("mlp", "momentum", epochs=40)
    query = dross.mean_loss((p.X_val, p.Y_val))
    expected = record(p, keep=dross.EveryStep()).influence(query).values
    size = record(p).recording.state_at(0).nbytes
    room = dross.Budget(12_000 + 3 * (size + 4096), in_memory=in_states * size)
    run = record(p, keep=room)
    assert len(run.recording.tape.entries) < run.steps / 30  # long segments
    made, most, row = [], 0, Recording._row

    def watched(self, steps, state, feeds):
        nonlocal most
        states, gradients, end = row(self, steps, state, feeds)
        made.extend(weakref.ref(s.theta) for s in [*states, end])
        most = max(most, len({id(theta) for theta in (ref() for ref in made) if theta is not None}))
        return states, gradients, end

    monkeypatch.setattr(Recording, "_row", watched)
    told = (
        pytest.warns(dross.DrossWarning, match="states, in_memory=.* would do with 8")
        if in_states == 1
        else nullcontext()
    )
    with told:
        np.testing.assert_array_equal(run.influence(query).values, expected)
    assert most <= in_states + 2  # and those before and after the step in hand


def test_a_replay_that_goes_elsewhere_names_the_step(record, monkeypatch):
    p = problem("mlp", "sgd")
    run = record(p, keep=dross.Checkpoints(every=3))
    recording = run.recording
    feed = type(recording.instances).feed
    # the same inputs, but a loss that is not the recorded one
    monkeypatch.setattr(recording.objective, "loss", lambda out, y: 2 * p.loss(out, y))
    with pytest.raises(
        TapeMismatch, match=r"Step \d+ replayed to a different theta \(largest difference"
    ):
        run.influence(dross.mean_loss((p.X_val, p.Y_val)))
    assert feed is type(recording.instances).feed


def test_a_data_set_that_changes_between_two_looks_is_found_out(tmp_path, monkeypatch):
    class Drifting:
        """Gives the same instance twice in a row, and another one after the training."""

        def __init__(self, p):
            self.p, self.offset = p, 0.0

        def __len__(self):
            return len(self.p.X)

        def __getitem__(self, i):
            return self.p.X[i] + self.offset, self.p.Y[i]

    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    monkeypatch.setattr(
        "dross.data.dataset._HELD_IN_MEMORY", 0
    )  # as if the set were too large to be read once
    drifting = Drifting(p)
    run = dross.train(
        model, drifting, p.loss, optimizer, tape=tmp_path / "t", batches=p.batches, progress=False
    )
    drifting.offset = 1.0
    with pytest.raises(TapeMismatch, match="must look the same twice"):
        run.influence(dross.mean_loss((p.X_val, p.Y_val)))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_anywhere_is_noticed(tmp_path_factory, data):
    p = problem("batchnorm", "adam")
    model, optimizer = p.start()
    folder = tmp_path_factory.mktemp("tape") / "t"
    run = dross.train(
        model, (p.X, p.Y), p.loss, optimizer, tape=folder, batches=p.batches, progress=False
    )
    files = sorted(folder.glob("*.safetensors"))
    victim = data.draw(st.sampled_from(files))
    raw = bytearray(victim.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "truncate", "foreign", "missing", "empty"]))
    if kind == "flip":
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "truncate":
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    victim.write_bytes({"foreign": b"PK\x03\x04 not a tensor", "empty": b""}.get(kind, bytes(raw)))
    if kind == "missing":
        victim.unlink()
    with pytest.raises(TapeDamaged, match=victim.name):
        fresh, _ = p.start()
        again = dross.Run.open(folder, fresh, (p.X, p.Y), p.loss, progress=False)
        again.influence(dross.mean_loss((p.X_val, p.Y_val)))
    assert run.steps == len(p.batches)


@settings(max_examples=60, deadline=None)
@given(
    raw=st.one_of(
        st.binary(max_size=200),
        st.text(max_size=80).map(str.encode),
        st.sampled_from(
            [b"[]", b"{}", b'{"made_by": "dross"}', b'{"made_by": "dross", "format": 1}']
        ),
    )
)
def test_any_manifest_that_is_not_ours_is_refused(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("tape")
    (folder / "manifest.json").write_bytes(raw)
    with pytest.raises(TapeError):
        Tape(folder)


def test_versions_and_paths_of_a_manifest_are_checked(record, tmp_path):
    p = problem("mlp", "sgd")
    run = record(p)
    path = run.tape / "manifest.json"
    good = json.loads(path.read_text())
    path.write_text(json.dumps(good | {"format": 99}))
    with pytest.raises(TapeMismatch, match="format 99; this dross reads format 1"):
        Tape(run.tape)
    path.write_text(json.dumps(good | {"end": good["end"] | {"file": "../../etc/passwd"}}))
    with pytest.raises(TapeDamaged, match="outside the tape"):
        Tape(run.tape)
    with pytest.raises(TapeError, match="no tape"):
        Tape(tmp_path / "nowhere")


def test_a_full_disk_loses_nothing_that_was_there(tmp_path, monkeypatch):
    p = problem("mlp", "sgd", epochs=4)
    model, optimizer = p.start()
    replace, calls = os.replace, iter(range(1000))

    def full(source, target):
        if next(calls) > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        StorageFailed, match=r"the disk is full.*The tape is whole up to step \d+"
    ) as caught:
        dross.train(
            model,
            (p.X, p.Y),
            p.loss,
            optimizer,
            tape=tmp_path / "t",
            batches=p.batches,
            progress=False,
            keep=dross.Checkpoints(every=2),
        )
    monkeypatch.undo()
    assert isinstance(caught.value, OSError)
    tape = Tape(tmp_path / "t")
    assert 0 < tape.steps < len(p.batches)
    assert not list(Path(tmp_path / "t").glob("*.tmp"))
    model, optimizer = p.start()
    run = dross.train(
        model,
        (p.X, p.Y),
        p.loss,
        optimizer,
        tape=tmp_path / "t",
        batches=p.batches,
        progress=False,
        keep=dross.Checkpoints(every=2),
        resume=True,
    )
    assert run.complete


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    p = problem("mlp", "sgd")
    model, optimizer = p.start()

    def denied(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(
        Path, "mkdir", denied
    )  # the tests may run as root, for whom every folder is writable
    with pytest.raises(StorageFailed, match="may not be written to"):
        dross.train(
            model,
            (p.X, p.Y),
            p.loss,
            optimizer,
            tape=tmp_path / "t",
            batches=p.batches,
            progress=False,
        )


def test_last_epochs_keeps_exactly_those(record):
    p = problem("mlp", "momentum", epochs=4)
    query = dross.mean_loss((p.X_val, p.Y_val))
    whole = record(p).influence(query)
    for inside in (dross.EveryStep(), dross.Checkpoints(every=3)):
        run = record(p, keep=dross.LastEpochs(2, inside))
        assert run.recording.tape.first == len(p.batches) // 2
        scores = run.influence(query)
        np.testing.assert_array_equal(scores.by_epoch, whole.by_epoch[2:])
        np.testing.assert_array_equal(scores.values, whole.last_epochs(2).values)
        with pytest.raises(BadInput, match="not among them"):
            run.parameters(at=0)
        with pytest.raises(BadInput, match="keeps only the last 2 epochs; 3 were asked for"):
            run.influence(query, epochs=3)


def test_budgets_are_kept(record, tmp_path):
    p = problem("mlp", "adam", epochs=20)
    state = record(p).recording.state_at(0).nbytes
    for budget in (20_000, 60_000, 400_000):
        run = record(p, keep=dross.Budget(budget))
        assert run.recording.tape.nbytes <= budget
    with pytest.raises(BadInput, match="give at least"):
        record(p, keep=dross.Budget(state))


@pytest.mark.parametrize(
    "bad",
    [lambda: dross.Checkpoints(every=0), lambda: dross.LastEpochs(0), lambda: dross.Budget(0)],
)
def test_policies_refuse_nonsense(bad):
    with pytest.raises(BadInput):
        bad()
