"""Training loops as a user would write them, recorded by a Recorder."""

import numpy as np
import torch

import dross


def take_step(recorder, optimizer, ids, x, y, **options):
    """One step of a loop on one batch."""
    with recorder.step(ids, x, y, **options) as losses:
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def recorded_loop(p, folder, **options):
    """The problem's run, through a Recorder."""
    model, optimizer = p.start()
    model.train()
    options |= {"penalty": p.penalty, "seed": p.seed}
    recorder = dross.Recorder(model, p.loss, optimizer, path=folder, **options)
    for t, ids in enumerate(p.batches):
        if p.rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = p.rate(t)
        with recorder.step(ids, p.X[ids], p.Y[ids], epoch=t * p.epochs // len(p.batches)) as losses:
            losses.mean().backward()
            if p.clip_norm is not None:
                recorder.clip_grad_norm_(p.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
    return recorder, model


def close(found, expected, relative=1e-9):
    """Equal up to a part of the largest number."""
    absolute = relative * np.nanmax(np.abs(expected))
    np.testing.assert_allclose(found, expected, rtol=relative, atol=absolute)


def query(p):
    """The mean loss on the problem's validation set."""
    return dross.mean_loss((p.X_val, p.Y_val))


def check_bitwise(run):
    """Every state of a tape of checkpoints, replayed from the first, ends where the loop did."""
    recording = run.recording
    assert len(recording.tape.entries) == 1
    segment = recording.segment(0)
    with recording.executor.training():
        end = recording.segment_replay.state_after(segment, len(segment.steps))
    expected = recording.tape.end_state().tensors()
    for name, value in end.tensors().items():
        assert torch.equal(value.cpu(), expected[name].cpu()), name


def relative(found, expected):
    """The largest difference, as a part of the largest score."""
    return np.nanmax(np.abs(np.asarray(found) - np.asarray(expected))) / np.nanmax(np.abs(expected))
