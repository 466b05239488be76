"""Which plan wins."""

import re

import numpy as np
import pytest
import torch

from dross.cleanse.learning.recipe import Recipe
from dross.cleanse.learning.score import InstanceScores, cross_fit
from dross.cleanse.opinions.ask import ask_models
from dross.cleanse.plans import compete as competing
from dross.cleanse.plans.candidates import Plan
from dross.cleanse.plans.compete import compete
from dross.cleanse.plans.trials import Competition, Entry, compare, standard_error

RECIPE = Recipe("linear", (5,), 3, rate=0.1, epochs=5, batch_size=16)


def make_data(count: int, wrong: float, seed: int, apart: float = 2.2):
    """Three clusters; some of the labels are those of the next one."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, count)
    x = rng.normal(0, 1, (count, 5)) + apart * np.eye(3, 5)[truth]
    flipped = rng.random(count) < wrong
    y = np.where(flipped, (truth + 1) % 3, truth)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y), flipped


def scores_of(data, validation, harm):
    """Scores that rank as `harm` does, and real cross-fitted models."""
    asked = cross_fit(RECIPE, data, validation[0], repeats=1, seed=0, progress=False)
    outputs = asked.outputs
    halves = np.stack([np.stack([harm, harm])])
    held_out = RECIPE.losses(outputs, data[1]).double().numpy()
    others = asked.on_others.numpy()
    rest = (held_out, outputs.numpy(), held_out, others)
    return InstanceScores(halves, np.full(2, 0.5), *rest)


def compete_with(data, validation, harm):
    scored = scores_of(data, validation, harm)
    answers = ask_models(RECIPE, data, validation, scored, seed=0, progress=False)
    return compete(RECIPE, data, validation, scored, answers.training, seed=0, progress=False)


@pytest.mark.parametrize("noisy_validation", [False, True])
def test_wrong_labels_are_acted_on(noisy_validation):
    x, y, flipped = make_data(400, 0.35, 0)
    wrong = 0.35 if noisy_validation else 0.0
    validation = make_data(600, wrong, 1)[:2]
    harm = -1.0 * flipped + np.random.default_rng(2).normal(0, 0.3, len(y))
    found = compete_with((x, y), validation, harm)
    assert found.recommended is not None, found.reason
    touched = np.concatenate([found.recommended.removed, found.recommended.relabelled])
    assert flipped[touched].mean() > 0.7
    assert Competition.from_json(found.to_json()).recommended.name == found.recommended.name


def test_nothing_is_recommended_where_nothing_is_wrong():
    x, y, _ = make_data(300, 0.0, 3, apart=3.5)
    harm = np.random.default_rng(4).normal(size=len(y))
    validation = make_data(300, 0.0, 5, apart=3.5)[:2]
    found = compete_with((x, y), validation, harm)
    assert found.recommended is None and "than chance" in found.reason
    assert len(found.tried) > 20 and found.finalists[0].seeds > 5


def entry(kind: str, change: float):
    """A plan of one instance that changes the measure by this, give or take 0.01."""
    plan = Plan(kind, np.array([0]), np.zeros(0, dtype=np.int64))
    noise = np.random.default_rng(len(kind)).normal(0, 0.1, (4, 400))
    return Entry(plan, None, list(noise - noise.mean() + change))


@pytest.mark.parametrize(
    "usual, other, chosen",
    [
        (-0.05, -0.03, "likely-wrong"),
        (-0.05, -0.2, "both"),
        (0.1, 0.001, None),  # the usual plan does harm, and no other is any good
        (0.1, -0.05, "both"),
        (0.001, 0.0, "likely-wrong"),  # nothing speaks against it
        (None, -0.001, None),
        (None, -0.05, "both"),
    ],
)
def test_a_plan_must_be_better_than_the_usual_one_and_than_nothing(usual, other, chosen):
    finalists = [entry("both", other)]
    if usual is not None:
        finalists.append(entry("likely-wrong", usual))
    found = competing._choose(finalists)
    assert (None if found is None else found.plan.kind) == chosen


def test_what_helps_the_network_alone_does_not_win():
    """Other kinds of models count as much as the network."""
    usual, other = entry("likely-wrong", -0.05), entry("both", -0.2)
    assert competing._choose([usual, other]) is other
    for kind in ("a linear model", "trees"):
        usual.by_kind[kind] = [change - 0.05 for change in entry("harmful", 0.0).changes]
        other.by_kind[kind] = [change + 0.15 for change in entry("mislabelled", 0.0).changes]
    assert competing._choose([usual, other]) is usual
    worse, error = compare(other, None)
    assert np.isclose(worse, (-0.2 + 0.15 + 0.15) / 3) and 0 < error < 0.01


def test_finalists_were_tried_with_models_of_other_kinds():
    x, y, flipped = make_data(300, 0.3, 6)
    found = compete_with((x, y), make_data(300, 0.0, 7)[:2], -1.0 * flipped)
    assert all(set(trial.by_kind) == {"a linear model", "trees"} for trial in found.finalists)
    assert found.finalists[0].by_kind["trees"] < 0
    said = r"dross' model makes [\d.]+ % fewer mistakes \(.*\), a linear model [\d.]+ % fewer and "
    assert re.search(said + r"trees [\d.]+ % fewer, on data that had no part", found.reason)


def test_a_standard_error_covers_instances_and_seeds():
    rng = np.random.default_rng(0)
    drawn = rng.normal(0, 1, (2000, 1, 50)) + rng.normal(0, 0.2, (2000, 6, 1))
    errors = np.array([standard_error(one) for one in drawn])
    assert np.isclose(drawn.mean((1, 2)).std(), np.sqrt(np.mean(errors**2)), rtol=0.05)


def test_more_confidence_alone_is_no_gain():
    """Oracle: the same predictions, surer, change the sharpened measure by little."""
    logits = torch.randn(1, 4000, 3, generator=torch.Generator().manual_seed(0)) * 3
    y = torch.randint(0, 3, (4000,), generator=torch.Generator().manual_seed(1))
    y[:3600] = logits[0, :3600].argmax(-1)
    plain = lambda o: (1 - torch.softmax(o, -1)[0, torch.arange(4000), y]).mean()
    surer = 1.5 * logits
    by_plain = float(plain(logits) - plain(surer))
    by_sharp = float(plain(competing.SHARPER * logits) - plain(competing.SHARPER * surer))
    assert by_plain > 0 and abs(by_sharp) < 0.4 * by_plain
