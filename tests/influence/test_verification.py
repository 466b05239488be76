"""Scores beside the truth: what agrees, and which scores are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import dross
from dross.errors import InvalidInput
from tests.zoo import problem


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


def test_verification(record):
    p = problem("mlp", "sgd", count=40, epochs=4)
    run = record(p)
    scores = run.influence(query(p))
    check = run.verify(scores, n=20)
    assert len(check.instances) == 20
    assert set(scores.most_harmful(5)) | set(scores.most_helpful(5)) <= set(check.instances)
    np.testing.assert_array_equal(check.estimated, scores.values[check.instances])
    np.testing.assert_allclose(
        check.actual, run.leave_one_out(query(p), check.instances), rtol=1e-12
    )
    assert check.tau > 0.8 and "trust the ranking" in check.sentence and 0 < check.jaccard <= 1
    assert list(check.to_frame()) == ["id", "estimated", "actual"]
    with pytest.raises(InvalidInput, match="not ndarray"):
        run.verify(scores.values)
    wrong = replace(scores, values=-scores.values)
    assert "do not act on them" in run.verify(wrong, n=20).sentence
    several = run.verify(run.influence(dross.losses((p.X_val, p.Y_val))), [0, 1, 2, 3])
    assert several.actual.shape == (9, 4) and np.isfinite(several.tau)
    last = run.verify(run.influence(query(p), epochs=1), np.arange(12))
    assert last.tau > 0.8  # the truth is then that of the last epoch, too
    with pytest.raises(InvalidInput, match="the run has 40"):
        run.verify(dross.Scores(np.zeros(3), np.zeros((1, 3)), query(p)))


def test_a_verification_of_nothing_says_so(record):
    p = problem("mlp", "sgd")
    p.batches = [ids[ids < 3] for ids in p.batches]
    run = record(p, keep=dross.tape.EveryStep())
    scores = run.influence(query(p))
    assert np.isnan(scores.values[3:]).all()
    assert "cannot be judged" in run.verify(scores, np.arange(3, 15)).sentence


@pytest.fixture
def case(record):
    p = problem("mlp", "momentum", epochs=3)
    run = record(p)
    return p, run, run.influence(query(p))


def other_data(p):
    """Queries of the same name and shape, on other data than the validation set."""
    labels = p.Y_val.clone()
    labels[0] = (labels[0] + 1) % 3
    return {
        "one label": dross.mean_loss((p.X_val, labels)),
        "one input": dross.mean_loss((torch.cat([p.X_val[:-1], p.X_val[:1]]), p.Y_val)),
        "one instance less": dross.mean_loss((p.X_val[:-1], p.Y_val[:-1])),
        "the training set": dross.mean_loss((p.X, p.Y)),
    }


@pytest.mark.parametrize(
    "what", ["one label", "one input", "one instance less", "the training set"]
)
def test_scores_from_a_file_are_not_verified_on_other_data(case, tmp_path, what):
    p, run, scores = case
    other = other_data(p)[what]
    assert other.name == scores.query.name
    path = scores.save(tmp_path / "scores.safetensors")
    message = "another value at this model.*of other data"
    with pytest.raises(InvalidInput, match=message):
        run.verify(dross.Scores.load(path, other), [0, 1])
    with pytest.raises(InvalidInput, match=message):
        run.verify(dross.Scores.load(path, other).last_epochs(1), [0, 1])


def test_scores_of_another_run_are_refused(case, record):
    _, _, scores = case
    other = record(problem("mlp", "momentum", epochs=2))
    with pytest.raises(InvalidInput, match="the scores of another run"):
        other.verify(replace(scores, step=other.steps), [0, 1])


def test_the_same_data_in_another_order_ask_the_same(case, tmp_path):
    """Their mean loss rounds differently, and is no other query for that."""
    p, run, scores = case
    order = torch.randperm(len(p.X_val), generator=torch.Generator().manual_seed(0))
    shuffled = dross.mean_loss((p.X_val[order], p.Y_val[order]))
    loaded = dross.Scores.load(scores.save(tmp_path / "scores.safetensors"), shuffled)
    assert run.verify(loaded, [0, 1, 2, 3]).tau > 0


@pytest.mark.parametrize("several", [False, True])
def test_scores_from_a_file_are_verified_like_those_in_memory(case, tmp_path, several):
    p, run, scores = case
    asked = dross.losses((p.X_val, p.Y_val)) if several else query(p)
    scores = run.influence(asked) if several else scores
    path = scores.save(tmp_path / "scores.safetensors")
    found = run.verify(dross.Scores.load(path, asked), [0, 1, 5])
    expected = run.verify(scores, [0, 1, 5])
    np.testing.assert_array_equal(found.estimated, expected.estimated)
    np.testing.assert_array_equal(found.actual, expected.actual)
    with pytest.raises(InvalidInput, match=r"pass the query to Scores.load\(path, query\)"):
        run.verify(dross.Scores.load(path), [0, 1])


def test_scores_of_another_number_of_values_are_refused(case):
    p, run, scores = case
    one = replace(scores, query=dross.losses((p.X_val[:3], p.Y_val[:3])))
    with pytest.raises(
        InvalidInput, match="query has 3 values and the scores have one value: they"
    ):
        run.verify(one, [0, 1])
