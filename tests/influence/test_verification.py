"""Scores beside the truth: what agrees, and which scores are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import dross
from dross.engine.executor import Executor
from dross.errors import InvalidInput
from dross.influence.counterfactual import CounterfactualRuns, SweepCost
from dross.influence.verify import (
    KENDALL,
    SPEARMAN,
    _judge,
    affordable_count,
    choose,
    compare,
    describe_cost,
    fisher_interval,
)
from dross.replay.schedule import choose_steps
from tests.oracles import literal_run, validation_loss
from tests.zoo import problem


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


def test_verification(record):
    p = problem("mlp", "sgd", count=40, epochs=4)
    run = record(p)
    scores = run.influence(query(p))
    check = run.verify(scores, n=20)
    assert len(check.instances) == 20
    assert set(scores.most_harmful(2)) | set(scores.most_helpful(2)) <= set(check.instances)
    np.testing.assert_array_equal(check.estimated, scores.values[check.instances])
    np.testing.assert_allclose(
        check.actual, run.leave_one_out(query(p), check.instances), rtol=1e-12
    )
    assert check.tau > 0.8 and 0 < check.jaccard <= 1
    sample = check.drawn
    assert 16 <= sample.sum() < 20
    tau = stats.kendalltau(check.estimated[sample], check.actual[sample]).statistic
    assert check.tau == tau and f"for the {sample.sum()} drawn at random" in check.sentence
    tau = stats.kendalltau(check.estimated, check.actual).statistic
    assert check.tau_of_all == tau and f"{tau:.2f} with the {20 - sample.sum()} most" in (
        check.sentence
    )
    assert "trust the ranking" in run.verify(scores).sentence
    assert list(check.to_frame()) == ["id", "estimated", "actual"]
    with pytest.raises(InvalidInput, match="not ndarray"):
        run.verify(scores.values)
    wrong = replace(scores, values=-scores.values)
    assert "do not act on them" in run.verify(wrong, n=20).sentence
    assert list(run.verify(scores, [3, 0, 3, 3]).instances) == [3, 0]
    several = run.verify(run.influence(dross.losses((p.X_val, p.Y_val))), [0, 1, 2, 3])
    assert several.actual.shape == (9, 4) and np.isfinite(several.tau)
    last = run.verify(run.influence(query(p), epochs=1), np.arange(12))
    assert last.tau > 0.8  # the truth is then that of the last epoch, too
    with pytest.raises(InvalidInput, match="the run has 40"):
        run.verify(dross.Scores(np.zeros(3), np.zeros((1, 3)), query(p)))


def test_a_check_costs_a_few_trainings_or_a_few_seconds():
    cheap = SweepCost(training=0.1, each=0.05)
    assert affordable_count(cheap) == 64
    side_by_side = SweepCost(training=100.0, each=20.0)
    assert affordable_count(side_by_side) == 24 and side_by_side.seconds(24) == 500.0
    one_by_one = SweepCost(training=100.0, each=100.0)
    assert affordable_count(one_by_one) == 6
    assert affordable_count(SweepCost(training=100.0, each=101.0)) == 6
    said = describe_cost(one_by_one, 6, "without one instance")
    assert (
        said
        == "Retraining 6 times without one instance: about 12 minutes, 7.0 times as long as one training run."
    )


def test_the_time_is_measured_and_said_beforehand(record, monkeypatch, capsys):
    """By a terminal or a notebook alone, as a bar."""
    p = problem("mlp", "momentum", count=40, epochs=4)
    run = record(p)
    scores = run.influence(query(p))
    run.verify(scores)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("dross._progress._has_reader", lambda: True)
    check = replace(run, progress=True).verify(scores, n=12)
    assert len(check.instances) == 12
    said = capsys.readouterr().err
    assert said.startswith("Retraining 12 times without one instance: about ")
    assert "times as long as one training run" in said.splitlines()[0]
    cost = CounterfactualRuns(run.recording, choose_steps(run.recording.tape), "loss").measure()
    assert cost.each > 0 and 0 < cost.training < 5


def test_the_default_number_of_instances_follows_the_time(record, monkeypatch):
    p = problem("mlp", "momentum", count=40, epochs=4)
    run = record(p)
    scores = run.influence(query(p))
    assert len(run.verify(scores).instances) == 39  # all that were used
    slow = SweepCost(training=10.0, each=10.0)
    monkeypatch.setattr(CounterfactualRuns, "measure", lambda self: slow)
    check = run.verify(scores)
    assert len(check.instances) == 6 and check.drawn.all()
    assert "use them to choose" in check.sentence and "Check more instances" in check.sentence
    assert len(run.verify(scores, n=30).instances) == 30


def test_models_that_cannot_run_side_by_side_take_a_training_each(record, monkeypatch):
    run = record(problem("mlp", "sgd"))

    def refuse(*_):
        raise RuntimeError("not side by side")

    monkeypatch.setattr(Executor, "gradients", refuse)
    cost = CounterfactualRuns(run.recording, choose_steps(run.recording.tape), "loss").measure()
    assert cost.each == cost.training > 0


def test_intervals_of_rank_correlations_hold_what_they_promise():
    """Of normal pairs with a correlation of 0.8, 19 of 20 intervals contain the true value."""
    rng = np.random.default_rng(0)
    truths = (2 / np.pi * np.arcsin(0.8), 6 / np.pi * np.arcsin(0.4))  # tau, rho
    for of, variance, truth in ((0, KENDALL, truths[0]), (1, SPEARMAN, truths[1])):
        inside = 0
        for _ in range(400):
            one = rng.normal(size=20)
            other = 0.8 * one + 0.6 * rng.normal(size=20)
            found = (stats.kendalltau, stats.spearmanr)[of](one, other).statistic
            low, high = fisher_interval(found, 20, variance)
            inside += low <= truth <= high
        assert 0.9 <= inside / 400 <= 0.99
    assert fisher_interval(0.5, 4, KENDALL) == (-1.0, 1.0)
    low, high = fisher_interval(1.0, 6, KENDALL)  # a perfect order of six is no certainty
    assert 0.5 < low < 0.8 and high == 1.0
    assert np.isnan(fisher_interval(np.nan, 20, KENDALL)).all()


def test_extreme_scores_do_not_raise_the_agreement():
    """Where only the extremes are predicted, the rest are not: tau of a random sample says so."""
    rng = np.random.default_rng(0)
    count = 4000
    truth = rng.normal(size=count) * 0.1
    truth[:100] += np.repeat([-5.0, 5.0], 50)
    values = np.where(np.arange(count) < 100, truth, rng.normal(size=count) * 0.1)
    whole = stats.kendalltau(values, truth).statistic
    taus, of_all = [], []
    scores = dross.Scores(values, values[None], dross.mean_loss(()))
    for seed in range(20):
        ids, drawn = choose(scores, 64, seed)
        check = compare(ids, values[ids], truth[ids], drawn)
        assert len(ids) == 64 and 48 <= drawn.sum() <= 64
        taus.append(check.tau)
        of_all.append(check.tau_of_all)
    assert abs(np.mean(taus) - whole) < 0.06 and np.mean(of_all) > whole + 0.15


@pytest.mark.parametrize(
    ("tau", "interval", "verdict", "limited"),
    [
        (0.9, (0.85, 0.95), "trust the ranking", False),
        (0.9, (0.75, 0.95), "trust the extremes", True),
        (0.6, (0.4, 0.7), "choose instances to look at", True),
        (0.7, (-0.1, 0.9), "too few to tell", True),
        (0.1, (-0.6, 0.7), "too few to tell", True),
        (0.1, (-0.1, 0.3), "do not describe this run", False),
    ],
)
def test_a_verdict_is_what_the_whole_interval_supports(tau, interval, verdict, limited):
    found, is_limited = _judge(tau, interval)
    assert verdict in found and is_limited == limited


class TestOwnScores:
    """Numbers of another method as scores of a run."""

    def test_they_are_compared_like_those_of_a_retrace(self, record):
        p = problem("mlp", "sgd", count=40, epochs=3)
        run = record(p)
        for asked in (query(p), dross.losses((p.X_val, p.Y_val))):
            expected = run.influence(asked)
            found = run.scores(torch.from_numpy(expected.values), asked)
            np.testing.assert_array_equal(found.values, expected.values)
            np.testing.assert_array_equal(found.query_value, expected.query_value)
            ids = np.arange(12)
            assert run.verify(found, ids).tau == run.verify(expected, ids).tau
            assert run.lds(found, 6).value == run.lds(expected, 6).value

    def test_they_may_be_about_the_last_epochs_alone(self, record):
        p = problem("mlp", "sgd", count=40, epochs=3)
        for run in (record(p), record(p, keep=dross.tape.LastEpochs(2))):
            last = run.influence(query(p), epochs=1)
            found = run.scores(np.nan_to_num(last.values), query(p), epochs=1)
            assert found.first_epoch == last.first_epoch == 2
            expected = run.verify(last, [0, 1, 2, 3])
            np.testing.assert_array_equal(run.verify(found, [0, 1, 2, 3]).actual, expected.actual)

    def test_refusals(self, record):
        p = problem("mlp", "sgd")
        run = record(p)
        nan = np.full(15, np.nan)
        for values, asked, sentence in (
            (np.zeros(14), query(p), r"shape \[15\], not \[14\]: .*15 instances.* one value"),
            (np.zeros((9, 15)), query(p), r"shape \[15\], not \[9, 15\]"),
            (np.zeros(15), dross.losses((p.X_val, p.Y_val)), r"shape \[9, 15\], not \[15\]"),
            (nan, query(p), "finite .* instance 0 is not"),
            (["a"] * 15, query(p), "values must be numbers"),
            (np.zeros(15), p.X_val, r"built with dross\.mean_loss"),
        ):
            with pytest.raises(InvalidInput, match=sentence):
                run.scores(values, asked)


class TestLinearDatamodelingScore:
    def test_one_where_scores_are_exact_and_none_where_they_are_shuffled(self, record):
        """One step of all instances and a linear query: sums of scores are the changes."""
        p = problem("linear", "sgd", count=400, batches=[np.arange(399)], epochs=1)
        run = record(p)
        linear = dross.query(lambda params, _: params["weight"].sum() + params["bias"][0])
        scores = run.influence(linear)
        found = run.lds(scores)
        np.testing.assert_allclose(found.actual, found.estimated, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(found.value, 1.0)
        assert found.interval[0] > 0.999 and len(found.subsets) == 32
        assert all(len(np.unique(ids)) == 200 and 399 not in ids for ids in found.subsets)
        order = np.random.default_rng(1).permutation(399)
        shuffled = replace(scores, values=np.append(scores.values[order], np.nan))
        nothing = run.lds(shuffled, subsets=100)
        assert nothing.interval[0] < 0 < nothing.interval[1] and abs(nothing.value) < 0.25
        assert "100 runs that each left out 200 random instances" in repr(nothing)

    def test_the_changes_are_those_of_literal_runs(self, record):
        p = problem("mlp", "momentum", epochs=2)
        run = record(p)
        scores = run.influence(query(p))
        found = run.lds(scores, subsets=6, share=0.2, seed=3)
        whole = validation_loss(p, literal_run(p))
        for ids, estimated, actual in zip(found.subsets, found.estimated, found.actual):
            weights = torch.ones(len(p.X), dtype=torch.float64)
            weights[ids] = 0
            literal = validation_loss(p, literal_run(p, weights)) - whole
            np.testing.assert_allclose(actual, literal, rtol=1e-8)
            np.testing.assert_allclose(estimated, scores.values[ids].sum())
        assert found.value == stats.spearmanr(found.estimated, found.actual).statistic
        found.plot()

    def test_several_queries_and_the_last_epochs(self, record, tmp_path):
        p = problem("mlp", "sgd", epochs=3)
        run = record(p)
        scores = run.influence(dross.losses((p.X_val, p.Y_val)), epochs=1)
        found = run.lds(scores, subsets=8, share=0.3, folder=tmp_path / "kept")
        assert found.actual.shape == found.estimated.shape == (9, 8)
        assert found.value == found.by_query.mean() > 0.8
        expected = run.counterfactual(found.subsets, epochs=1).changes(scores.query)
        np.testing.assert_allclose(found.actual, expected, rtol=1e-9, atol=1e-14)

    def test_truth_of_more_epochs_than_the_scores(self, record):
        p = problem("mlp", "sgd", count=40, epochs=3)
        run = record(p)
        last = run.influence(query(p), epochs=1)
        found = run.lds(last, subsets=4, epochs=3)
        expected = run.counterfactual(found.subsets).changes(query(p))
        np.testing.assert_allclose(found.actual, expected, rtol=1e-9, atol=1e-14)
        assert abs(found.actual - run.lds(last, subsets=4).actual).max() > 1e-3
        check = run.verify(last, [0, 3], epochs=3)
        expected = run.leave_one_out(query(p), [0, 3])
        np.testing.assert_allclose(check.actual, expected, rtol=1e-9, atol=1e-14)

    def test_refusals(self, record):
        p = problem("mlp", "sgd")
        run = record(p)
        scores = run.influence(query(p))
        for options, sentence in (
            ({"subsets": 3}, "at least 4 subsets, not 3"),
            ({"share": 0.0}, "share=0 of 14 instances must leave out at least one"),
            ({"share": 1.0}, "and keep at least one"),
            ({"share": float("nan")}, "share=nan"),
        ):
            with pytest.raises(InvalidInput, match=sentence):
                run.lds(scores, **options)
        with pytest.raises(InvalidInput, match="Pass the Scores of this run, not ndarray"):
            run.lds(scores.values)


def test_a_verification_of_nothing_says_so(record):
    p = problem("mlp", "sgd")
    p.batches = [ids[ids < 3] for ids in p.batches]
    run = record(p, keep=dross.tape.EveryStep())
    scores = run.influence(query(p))
    assert np.isnan(scores.values[3:]).all()
    assert "used none of these instances" in run.verify(scores, np.arange(3, 15)).sentence
    some = run.verify(scores, np.arange(15))
    assert some.sentence.startswith("Checked by retraining without each of 3 instances:")
    assert np.isnan(some.actual[3:]).all() and some.interval == (-1.0, 1.0)
    still = record(problem("mlp", "sgd", rate=lambda t: 0.0))
    zeros = still.scores(np.zeros(15), query(p))
    assert "cannot be judged" in still.verify(zeros, [0, 1, 2]).sentence


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
    message = "a different value for this model.*on other data"
    with pytest.raises(InvalidInput, match=message):
        run.verify(dross.Scores.load(path, other), [0, 1])
    with pytest.raises(InvalidInput, match=message):
        run.verify(dross.Scores.load(path, other).last_epochs(1), [0, 1])


def test_scores_of_another_run_are_refused(case, record):
    _, _, scores = case
    other = record(problem("mlp", "momentum", epochs=2))
    with pytest.raises(InvalidInput, match="the scores belong to another run"):
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
        InvalidInput, match="query has 3 values, but the scores have one value: they"
    ):
        run.verify(one, [0, 1])


def test_a_reversed_order_is_named():
    """Another library's scores may have the other sign."""
    assert "Negate" in _judge(-0.95, (-0.98, -0.88))[0]
    assert "Negate" not in _judge(-0.3, (-0.6, 0.1))[0]
