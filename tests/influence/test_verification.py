"""Scores beside the truth: what agrees, and which scores are refused."""

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
    check = run.verify(scores, query(p), n=20)
    assert len(check.instances) == 20
    assert set(scores.most_harmful(5)) | set(scores.most_helpful(5)) <= set(check.instances)
    np.testing.assert_array_equal(check.estimated, scores.values[check.instances])
    np.testing.assert_allclose(
        check.actual, run.leave_one_out(query(p), check.instances), rtol=1e-12
    )
    assert check.tau > 0.8 and "trust the ranking" in check.sentence and 0 < check.jaccard <= 1
    assert list(check.to_frame()) == ["id", "estimated", "actual"]
    wrong = dross.Scores(-scores.values, -scores.by_epoch, scores.query, at=scores.at)
    with pytest.raises(
        InvalidInput, match="scores of mean_loss, and this losses asks something else"
    ):
        run.verify(scores, dross.losses((p.X_val, p.Y_val)))
    with pytest.raises(InvalidInput, match="not ndarray"):
        run.verify(scores.values, query(p))
    assert "do not act on them" in run.verify(wrong, query(p), n=20).sentence
    vector = dross.losses((p.X_val, p.Y_val))
    several = run.verify(run.influence(vector), vector, [0, 1, 2, 3])
    assert several.actual.shape == (9, 4) and np.isfinite(several.tau)
    last = run.verify(run.influence(query(p), epochs=1), query(p), np.arange(12))
    assert last.tau > 0.8  # the truth is then that of the last epoch, too
    with pytest.raises(InvalidInput, match="the run has 40"):
        run.verify(dross.Scores(np.zeros(3), np.zeros((1, 3)), "mean_loss"), query(p))


def test_a_verification_of_nothing_says_so(record):
    p = problem("mlp", "sgd")
    p.batches = [ids[ids < 3] for ids in p.batches]
    run = record(p, keep=dross.tape.EveryStep())
    scores = run.influence(query(p))
    assert not scores.values[3:].any()
    assert "cannot be judged" in run.verify(scores, query(p), np.arange(3, 15)).sentence


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
def test_scores_of_other_data_are_refused_under_the_same_name(case, what):
    p, run, scores = case
    other = other_data(p)[what]
    assert other.name == scores.query
    assert run.influence(other).values.shape == scores.values.shape
    message = "scores of mean_loss, and this mean_loss asks something else.*on the same data"
    with pytest.raises(InvalidInput, match=message):
        run.verify(scores, other, [0, 1])
    with pytest.raises(InvalidInput, match=message):
        run.verify(scores.last_epochs(1), other, [0, 1])
    with pytest.raises(InvalidInput, match=message):
        run.verify(run.influence(other), query(p), [0, 1])


def test_the_same_data_in_another_order_ask_the_same(case):
    """Their mean loss rounds differently, and is no other query for that."""
    p, run, scores = case
    order = torch.randperm(len(p.X_val), generator=torch.Generator().manual_seed(0))
    shuffled = dross.mean_loss((p.X_val[order], p.Y_val[order]))
    assert run.verify(scores, shuffled, [0, 1, 2, 3]).tau > 0


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".safetensors"])
@pytest.mark.parametrize("several", [False, True])
def test_scores_from_a_file_are_verified_like_those_in_memory(case, tmp_path, suffix, several):
    p, run, scores = case
    asked = dross.losses((p.X_val, p.Y_val)) if several else query(p)
    scores = run.influence(asked) if several else scores
    loaded = dross.Scores.load(scores.save(tmp_path / f"scores{suffix}"))
    assert loaded.query_sketch == scores.query_sketch is not None
    found, expected = run.verify(loaded, asked, [0, 1, 5]), run.verify(scores, asked, [0, 1, 5])
    np.testing.assert_array_equal(found.estimated, expected.estimated)
    np.testing.assert_array_equal(found.actual, expected.actual)
    other = dross.losses((p.X_val + 0.1, p.Y_val)) if several else other_data(p)["one label"]
    with pytest.raises(InvalidInput, match="asks something else"):
        run.verify(loaded, other, [0, 1])


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".safetensors"])
def test_scores_of_an_older_file_are_known_by_the_name_of_their_query(
    case, tmp_path, monkeypatch, suffix
):
    p, run, scores = case
    about = dross.Scores._about

    def without_sketch(self):
        return {name: value for name, value in about(self).items() if name != "query_sketch"}

    with monkeypatch.context() as patch:
        patch.setattr(dross.Scores, "_about", without_sketch)
        path = scores.save(tmp_path / f"older{suffix}")
    older = dross.Scores.load(path)
    assert older.query_sketch is None
    np.testing.assert_array_equal(older.values, scores.values)
    assert run.verify(older, query(p), [0, 1, 2, 3]).estimated.shape == (4,)

    def size(params, buffers):
        return sum(value.square().sum() for value in params.values())

    with pytest.raises(
        InvalidInput, match="scores of mean_loss, and this size asks something else"
    ):
        run.verify(older, dross.query(size), [0, 1])


def test_scores_of_another_number_of_values_are_refused(case):
    p, run, scores = case
    asked = dross.losses((p.X_val[:3], p.Y_val[:3]))
    one = dross.Scores(scores.values, scores.by_epoch, asked.name, at=scores.at)
    with pytest.raises(
        InvalidInput, match="query has 3 values and the scores have one value: they"
    ):
        run.verify(one, asked, [0, 1])
