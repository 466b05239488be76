"""Recorded runs, and the scores that they give."""

from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from dross.cleaning.label_noise import Rows
from dross.cleaning.modality import PreparedData, Source, assemble
from dross.cleaning.scoring import (
    InstanceScores,
    cut_for_runs,
    error_scale,
    record_run,
    score,
    split_half_agreement,
    verify,
)
from dross.cleaning.training import Recipe
from dross.cleaning.user_code import CUSTOM
from dross.data.seeds import mix_seeds
from dross.influence.query import expected_error, mean_loss
from dross.influence.scores import Scores


def make_data(count=50):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def test_a_recorded_run_is_the_plain_loop_with_its_schedule(tmp_path):
    x, y = make_data()
    recipe = Recipe("linear", (4,), 2, rate=0.1, epochs=3, batch_size=16)
    run = record_run(recipe, (x, y), 1, tmp_path / "run", seed=7, progress=False)
    model = recipe.build(mix_seeds(7, 1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * 4)
    for epoch in range(3):
        order = np.random.default_rng(mix_seeds(mix_seeds(7, 1, 2), epoch)).permutation(50)
        for ids in np.split(order, range(16, 50, 16)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[ids]), y[ids]).backward()
            optimizer.step()
            schedule.step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(run.parameters()[name], p.detach(), atol=1e-6)


def make_numbers(count=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return x, x[:, :1] + 0.3 * torch.randn(count, 1, generator=generator)


CLASSES = Recipe("linear", (4,), 2, rate=0.05, epochs=4, batch_size=16)
NUMBERS = Recipe("linear", (4,), 1, "squared_error", rate=0.02, epochs=4, batch_size=16)
CASES = {"classes": (CLASSES, make_data), "numbers": (NUMBERS, make_numbers)}


def prepare(*pairs) -> PreparedData:
    """The pairs are the training part, and the validation part if there is one."""
    x, y = (torch.cat([pair[k] for pair in pairs]) for k in (0, 1))
    labels = y[:, 0].double().numpy() if y.dim() > 1 else np.array(list(map(str, y.tolist())), "O")
    ids = np.split(np.arange(len(x)), np.cumsum([len(pair[0]) for pair in pairs]))
    parts = dict(zip(("train", "validation", "test"), [*ids[:-1], ids[-1], ids[-1]]))
    source = Source(
        modality=CUSTOM,
        label="y",
        content=pandas.DataFrame(x.numpy()),
        labels=labels,
        rows=np.arange(len(x)),
    )
    return assemble(source, parts, {part: x[ids] for part, ids in parts.items()})


def cut(data: PreparedData, runs: int, groups=None):
    count = len(data.y["train"]) + len(data.y["validation"])
    flat = torch.cat([data.x["train"], data.x["validation"]]).numpy()
    y = torch.cat([data.y["train"], data.y["validation"]]).reshape(count).numpy()
    rows = Rows.of(flat, y, len(data.source.classes), groups=groups)
    return cut_for_runs(data, runs, rows, seed=0)


# --- what a run learns ---


def test_with_a_validation_file_every_run_learns_all_and_is_scored_on_it():
    data = prepare(make_data(60), make_data(31))
    for part in cut(data, 3):
        assert part.held_out_part == "validation" and len(part.held_out) == 31
        assert part.learned.tolist() == list(range(60))


@pytest.mark.parametrize(("runs", "share"), [(1, 3 / 4), (3, 3 / 4), (6, 5 / 6)])
def test_without_one_every_run_holds_another_part_out(runs, share):
    data = prepare(make_data(60))
    parts = cut(data, runs)
    for part in parts:
        assert part.held_out_part == "train" and len(part.learned) == pytest.approx(60 * share)
        assert sorted([*part.learned, *part.held_out]) == list(range(60))
    held_out = np.concatenate([part.held_out for part in parts])
    assert len(held_out) == len(set(held_out))


def test_duplicates_are_held_out_together():
    data = prepare(make_data(80))
    pairs = np.arange(80) // 2  # every instance is there twice
    for part in cut(data, 4, pairs):
        assert not set(pairs[part.learned]) & set(pairs[part.held_out])


# --- scores ---


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("file", [True, False])
def test_scores_are_for_the_expected_error_of_what_the_run_held_out(tmp_path, kind, file):
    recipe, make = CASES[kind]
    data = prepare(make(60), make(31)) if file else prepare(make(60))
    parts, scale = cut(data, 2), 1.0 if kind == "classes" else 0.2
    runs, found = score(recipe, data, parts, tmp_path, scale=scale, seed=3, progress=False)
    for place, (part, run) in enumerate(zip(parts, runs)):
        query = expected_error(part.held_out_pair(data), scale=scale)
        expected = np.full(60, np.nan)
        expected[part.learned] = run.influence(query).values
        np.testing.assert_allclose(found.by_run[place], expected, atol=1e-7)
    held_out = np.concatenate([part.held_out for part in parts])
    assert (found.runs == (2 if file else 2 - np.isin(np.arange(60), held_out))).all()
    assert (np.isnan(found.losses) == np.isnan(found.by_run)).all()
    options = {"count": 4, "scale": scale, "seed": 0, "progress": False}
    first = found.by_run[0][parts[0].learned]
    pair = parts[0].held_out_pair(data)
    checked = verify(runs[0], first, parts[0].held_out, pair, **options)
    whole = expected_error(pair, scale=scale)
    truth = runs[0].leave_one_out(whole, checked.verification.instances)
    np.testing.assert_allclose(checked.verification.actual, truth, atol=1e-7)
    assert checked.verification.tau > 0.6 and set(checked.queries) <= set(parts[0].held_out)


def test_the_mean_is_over_the_runs_that_learned_an_instance():
    by_run = np.array([[1.0, np.nan, np.nan], [3.0, 2.0, np.nan]])
    scored = InstanceScores(by_run, by_run)
    np.testing.assert_array_equal(scored.scores, [2.0, 2.0, np.nan])
    np.testing.assert_array_equal(scored.spread, [1.0, 0.0, np.nan])
    assert scored.runs.tolist() == [2, 1, 0]


def test_the_scale_is_that_of_the_usual_error_of_numbers():
    errors = 0.2 * np.random.default_rng(0).normal(size=5000)
    assert error_scale(errors) == pytest.approx(2 * 0.2**2, rel=0.1)
    wild = np.where(np.arange(5000) % 10 == 0, 1000.0, errors)  # a tenth is nonsense
    assert error_scale(wild) == pytest.approx(2 * 0.2**2, rel=0.4)
    assert error_scale(np.zeros(9)) > 0


def test_scores_that_an_earlier_attempt_kept_are_used_unless_they_answer_another_question(tmp_path):
    data = prepare(make_data(60), make_data(31))
    parts = cut(data, 1)
    ask = lambda: score(CLASSES, data, parts, tmp_path, scale=1.0, seed=3, progress=False)
    runs, found = ask()
    kept = tmp_path / "run-0-scores.safetensors"
    before = kept.stat().st_mtime_ns
    np.testing.assert_array_equal(ask()[1].by_run, found.by_run)
    assert kept.stat().st_mtime_ns == before
    runs[0].influence(mean_loss(data.pair("validation"))).save(kept)
    np.testing.assert_array_equal(ask()[1].by_run, found.by_run)
    assert Scores.load(kept).query.name == expected_error(data.pair("validation"), scale=1.0).name


def test_wrong_validation_labels_do_not_turn_the_scores_around(tmp_path):
    """A third of the validation labels are wrong. The mean loss blames what is right."""
    x, y = make_data(200)
    wrong = torch.arange(200) % 10 == 0
    given = torch.where(wrong, 1 - y, y)
    x_val, y_val = x.flip(0) + 0.1, y.flip(0)
    y_val = torch.where(torch.arange(200) % 3 == 0, 1 - y_val, y_val)
    recipe, data = replace(CLASSES, epochs=20, rate=0.1), prepare((x, given), (x_val, y_val))
    parts = cut(data, 1)
    _, found = score(recipe, data, parts, tmp_path, scale=1.0, seed=0, progress=False)
    ranks = np.argsort(np.argsort(found.scores))
    assert ranks[wrong.numpy()].mean() < 0.3 * 200


# --- how far runs agree ---


def noisy_runs(noise, runs=4, count=3000):
    rng = np.random.default_rng(0)
    return rng.normal(size=count) + noise * rng.normal(size=(runs, count))


def test_the_agreement_is_the_mean_rank_correlation_over_all_cuts():
    by_run = noisy_runs(1.0)
    cuts = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    mean = lambda half: by_run[list(half)].mean(0)
    expected = np.mean([spearmanr(mean(a), mean(b)).statistic for a, b in cuts])
    assert split_half_agreement(by_run) == pytest.approx(expected)
    assert split_half_agreement(by_run[:3]) == pytest.approx(
        np.mean([spearmanr(mean((k,)), mean({0, 1, 2} - {k})).statistic for k in range(3)])
    )


def test_instances_that_a_half_held_out_are_left_out_of_the_agreement():
    by_run = noisy_runs(1.0)
    spoilt = np.where(np.arange(3000) % 10 == 0, np.nan, by_run[0])
    holding = np.stack([spoilt, *by_run[1:]])
    assert split_half_agreement(holding) == pytest.approx(split_half_agreement(by_run), abs=0.03)
    disjoint = np.full((2, 40), np.nan)
    disjoint[0, :20] = disjoint[1, 20:] = np.arange(20)
    assert split_half_agreement(disjoint) is None


def test_runs_that_say_nothing_about_each_other_have_no_agreement():
    assert split_half_agreement(noisy_runs(1.0, runs=1)) is None
    assert split_half_agreement(np.zeros((4, 10))) is None
    assert split_half_agreement(noisy_runs(1.0, count=2)) is None
