import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, make_classification

from dross.cleaning.label_noise import (
    PRIORS,
    Evidence,
    LabelPrior,
    NoiseModel,
    Rows,
    assign_folds,
    estimate_label_noise,
    fit_noise_model,
    log_likelihood,
    principal_components,
)

ANNOTATED = PRIORS["annotated"]
OBSERVED = PRIORS["observed"]


def flip_uniformly(y, classes, share, rng):
    flipped = rng.random(len(y)) < share
    given = y.copy()
    given[flipped] = (y[flipped] + rng.integers(1, classes, flipped.sum())) % classes
    return given


def digits(count, seed=0):
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))[:count]
    return x[order] / 16, y[order]


def overlapping(count, seed=0, gap=1.0):
    """Two Gaussians: their labels overlap, and not one of them is wrong."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    x = rng.normal(size=(count, 5))
    x[:, 0] += gap * y
    return x, y


# --- the likelihood against a slow and obvious version --------------------------------------------


def random_evidence(rng, *, experts=3, count=12, classes=4, components=2):
    logs = np.log(rng.dirichlet(np.ones(classes), (experts, count)))
    validation = rng.random(count) < 0.3
    checked = np.zeros(count, dtype=bool)
    checked[:3] = True
    truth = rng.integers(0, classes, count)
    given = rng.integers(0, classes, count)
    rows = Rows.of(
        np.zeros((count, 1)),
        np.where(checked, truth, given),
        classes,
        validation=validation,
        checked=checked,
        given=given,
    )
    return logs, rows, rng.normal(size=(count, components))


def random_model(rng, prior, *, experts=3, classes=4, components=2):
    model = NoiseModel(experts, classes, components, prior, rng.normal(size=(classes, classes)))
    for parameter in model.parameters:
        if parameter is not model.pairs:
            parameter += torch.from_numpy(rng.normal(size=tuple(parameter.shape)))
    return model


def slow_joint(model, logs, rows, z):
    """q_i(t) P(given label | t) by loops, [N, classes]."""
    softplus = np.log1p(np.exp(model.exponents.numpy()))
    pairs = model.pairs.numpy()
    found = np.zeros((len(rows), rows.classes))
    for i in range(len(rows)):
        powers = [
            np.prod([np.exp(logs[m, i, t]) ** softplus[m] for m in range(len(logs))])
            for t in range(rows.classes)
        ]
        for t in range(rows.classes):
            odds = float(model.rate) + model.by_class[t].item() + z[i] @ model.by_component.numpy()
            rate = 1 / (1 + np.exp(-odds))
            if rows.validation[i]:
                rate *= 1 / (1 + np.exp(-float(model.validation)))
            others = sum(np.exp(pairs[t, y]) for y in range(rows.classes) if y != t)
            label = rows.given[i]
            right = 1 - rate if label == t else rate * np.exp(pairs[t, label]) / others
            found[i, t] = powers[t] / sum(powers) * right
    return found


def test_likelihood_is_bayes_rule():
    rng = np.random.default_rng(0)
    logs, rows, z = random_evidence(rng)
    model = random_model(rng, OBSERVED)
    joint = slow_joint(model, logs, rows, z)
    expected = sum(
        np.log(joint[i, rows.y[i]] if rows.checked[i] else joint[i].sum()) for i in range(len(rows))
    )
    found = float(log_likelihood(model, Evidence.of(logs, rows, z)))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("prior", [OBSERVED, ANNOTATED])
def test_gradient_is_that_of_finite_differences(prior):
    rng = np.random.default_rng(1)
    logs, rows, z = random_evidence(rng)
    model = random_model(rng, prior)
    evidence = Evidence.of(logs, rows, z)

    def cost():
        return model.penalty() - log_likelihood(model, evidence)

    for parameter in model.parameters:
        parameter.requires_grad_()
    gradients = torch.autograd.grad(cost(), model.parameters)
    step = 1e-6
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters, gradients):
            flat = parameter.view(-1)
            for place in range(flat.numel()):
                before = flat[place].item()
                flat[place] = before + step
                above = float(cost())
                flat[place] = before - step
                below = float(cost())
                flat[place] = before
                slope = (above - below) / (2 * step)
                assert gradient.view(-1)[place].item() == pytest.approx(slope, abs=1e-4)


def test_without_given_labels_checked_rows_never_flip():
    rng = np.random.default_rng(2)
    logs, rows, z = random_evidence(rng)
    blind = Rows.of(rows.x, rows.y, rows.classes, checked=rows.checked)
    model = random_model(rng, OBSERVED)
    evidence = Evidence.of(logs, blind, z)
    rates = model.flip_rates(evidence.z, model.factors(evidence.validation, evidence.certain))
    assert (rates[torch.from_numpy(rows.checked)] == 0).all()
    joint = model.log_joint(evidence.logs, evidence.given, rates)
    posterior = torch.softmax(joint, 1).numpy()[rows.checked]
    assert posterior[np.arange(3), rows.y[:3]] == pytest.approx(1, abs=1e-4)


# --- calibration ----------------------------------------------------------------------------------


def test_posterior_is_calibrated_for_labels_drawn_from_the_model():
    rng = np.random.default_rng(3)
    count, classes = 20_000, 3
    clean = rng.dirichlet(np.full(classes, 0.3), count)
    z = rng.normal(size=(count, 2))
    truth = np.array([rng.choice(classes, p=p) for p in clean])
    rate = 1 / (1 + np.exp(1.7 - 0.7 * z[:, 0]))
    flipped = rng.random(count) < rate
    given = np.where(flipped, (truth + 1 + (rng.random(count) < 0.2)) % classes, truth)
    rows = Rows.of(np.zeros((count, 1)), given, classes)
    logs = np.log(np.maximum(clean, 1e-6))[None]
    evidence = Evidence.of(logs, rows, z)
    model = fit_noise_model(evidence, LabelPrior(-2.2, 0.05), np.zeros((classes, classes)))
    rates = model.flip_rates(evidence.z, model.factors(evidence.validation, evidence.certain))
    joint = model.log_joint(evidence.logs, evidence.given, rates)
    wrong = 1 - torch.softmax(joint, 1).numpy()[np.arange(count), given]
    for low, high in ((0.05, 0.3), (0.3, 0.6), (0.6, 0.9), (0.9, 1.0)):
        inside = (wrong > low) & (wrong <= high)
        assert flipped[inside].mean() == pytest.approx(wrong[inside].mean(), abs=0.06)
    assert model.by_component[0] == pytest.approx(0.7, abs=0.15)
    confusions = model.confusions().numpy()
    assert confusions[0, 1] == pytest.approx(0.8, abs=0.08)


def test_labels_called_wrong_are_wrong_as_often_on_damaged_digits():
    rng = np.random.default_rng(4)
    x, y = digits(1_000)
    given = flip_uniformly(y, 10, 0.2, rng)
    wrong = estimate_label_noise(Rows.of(x, given, 10), OBSERVED).p_wrong
    flipped = given != y
    assert wrong.sum() == pytest.approx(flipped.sum(), rel=0.2)
    high = wrong > 0.8
    assert flipped[high].mean() > 0.9
    assert flipped[wrong < 0.2].mean() < 0.05


def test_best_other_label_is_the_true_one_on_damaged_digits():
    rng = np.random.default_rng(5)
    x, y = digits(800)
    given = np.where(rng.random(len(y)) < 0.15, (y + 1) % 10, y)
    noise = estimate_label_noise(Rows.of(x, given, 10), OBSERVED)
    other, probability = noise.best_other, noise.p_best_other
    sure = probability > 0.9
    assert sure.sum() > 60
    assert (other[sure] == y[sure]).mean() > 0.9


def test_overlapping_classes_are_not_called_wrong():
    x, y = overlapping(1_500)
    noise = estimate_label_noise(Rows.of(x, y, 2), OBSERVED)
    assert (noise.p_wrong > 0.5).mean() < 0.03


def test_annotated_labels_are_doubted_more_often_than_observed_ones():
    x, y = overlapping(800, gap=1.5)
    rows = Rows.of(x, y, 2)
    annotated = estimate_label_noise(rows, ANNOTATED)
    observed = estimate_label_noise(rows, OBSERVED)
    assert annotated.p_wrong.mean() > observed.p_wrong.mean()


# --- validation rows and checked rows -------------------------------------------------------------


def test_right_validation_labels_are_recognized():
    rng = np.random.default_rng(6)
    x, y = digits(1_000)
    validation = np.arange(len(y)) >= 700
    given = np.where(validation, y, flip_uniformly(y, 10, 0.2, rng))
    right = estimate_label_noise(Rows.of(x, given, 10, validation=validation), OBSERVED)
    given = flip_uniformly(y, 10, 0.2, rng)
    noisy = estimate_label_noise(Rows.of(x, given, 10, validation=validation), OBSERVED)
    assert right.model.rho < 0.2
    assert noisy.model.rho > 0.6
    assert right.p_wrong[validation].mean() < 0.03


def test_checks_tell_noise_from_overlap():
    rng = np.random.default_rng(7)
    x, y = overlapping(1_200, gap=2.0)
    given = flip_uniformly(y, 2, 0.2, rng)
    checked = rng.random(len(y)) < 0.15
    noisy = Rows.of(x, np.where(checked, y, given), 2, checked=checked, given=given)
    clean = Rows.of(x, given, 2, checked=checked, given=given)  # a person confirmed every label
    found = estimate_label_noise(noisy, OBSERVED).p_wrong
    kept = estimate_label_noise(clean, OBSERVED).p_wrong
    assert found[checked].max() == 0
    assert found[~checked].mean() > 0.1
    assert kept[~checked].mean() < 0.04


# --- numbers --------------------------------------------------------------------------------------


def test_wild_numbers_are_found_and_predicted():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(800, 6))
    y = x[:, 0] * 3 + np.sin(2 * x[:, 1]) + 0.3 * rng.normal(size=800)
    wild = rng.random(800) < 0.1
    given = np.where(wild, rng.permutation(y), y)
    noise = estimate_label_noise(Rows.of(x, given, 0), OBSERVED)
    far = wild & (np.abs(given - y) > 3)
    assert (noise.p_wrong[far] > 0.5).mean() > 0.8
    assert wild[noise.p_wrong > 0.8].mean() > 0.9
    prediction = noise.best_other
    assert np.abs(prediction - y)[far].mean() < 0.3 * np.abs(given - y)[far].mean()


def test_heavy_tails_are_not_called_wrong():
    rng = np.random.default_rng(9)
    x = rng.normal(size=(800, 4))
    y = x[:, 0] + rng.standard_t(2.5, size=800) * 0.3
    noise = estimate_label_noise(Rows.of(x, y, 0), OBSERVED)
    assert (noise.p_wrong > 0.5).mean() < 0.02


def test_numbers_do_not_depend_on_their_unit():
    x, y = load_diabetes(return_X_y=True)
    y = y.copy()
    y[:10] += 600
    first = estimate_label_noise(Rows.of(x, y, 0), OBSERVED).p_wrong
    second = estimate_label_noise(Rows.of(x, y * 1e4 - 7, 0), OBSERVED).p_wrong
    assert second == pytest.approx(first, abs=0.1)  # trees split ties by rounding


# --- folds and odd inputs -------------------------------------------------------------------------


def test_folds_keep_groups_together_and_labels_even():
    rng = np.random.default_rng(10)
    y = rng.integers(0, 3, 300)
    groups = np.repeat(np.arange(150), 2)
    fold = assign_folds(Rows.of(rng.normal(size=(300, 2)), y, 3, groups=groups), 5, 0)
    assert (fold[::2] == fold[1::2]).all()
    assert np.bincount(fold).min() >= 56


def test_same_seed_same_estimate():
    x, y = load_breast_cancer(return_X_y=True)
    rows = Rows.of(x, y, 2)
    first = estimate_label_noise(rows, OBSERVED, seed=3)
    second = estimate_label_noise(rows, OBSERVED, seed=3)
    assert (first.p_wrong == second.p_wrong).all()


def odd_inputs():
    rng = np.random.default_rng(11)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    few = np.arange(60) >= 57
    yield "one class", Rows.of(x, np.zeros(60), 1)
    yield "one class of two", Rows.of(x, np.zeros(60), 2)
    yield "three validation rows", Rows.of(x, y, 2, validation=few)
    yield "classes of one row", Rows.of(x, np.where(few, np.arange(60) - 55, y), 5)
    yield "two rows of each class", Rows.of(x, np.arange(60) // 2, 30)
    yield "constant features", Rows.of(np.ones((60, 3)), y, 2)
    yield "one feature", Rows.of(x[:, :1], y, 2)
    yield "four rows", Rows.of(x[:4], np.array([0, 1, 0, 1]), 2)
    yield "all validation", Rows.of(x, y, 2, validation=np.ones(60, dtype=bool))
    yield "all checked", Rows.of(x, y, 2, checked=np.ones(60, dtype=bool), given=1 - y)
    yield "one group", Rows.of(x, y, 2, groups=np.zeros(60, dtype=np.int64))
    yield "constant numbers", Rows.of(x, np.ones(60), 0)
    yield "four numbers", Rows.of(x[:4], np.arange(4.0), 0)
    yield "checked numbers", Rows.of(x, x[:, 0], 0, checked=np.ones(60, dtype=bool))


@pytest.mark.parametrize("rows", [pytest.param(rows, id=name) for name, rows in odd_inputs()])
def test_odd_inputs_give_probabilities(rows):
    noise = estimate_label_noise(rows, ANNOTATED)
    assert noise.p_wrong.shape == (len(rows),)
    assert np.isfinite(noise.p_wrong).all()
    assert ((noise.p_wrong >= -1e-6) & (noise.p_wrong <= 1 + 1e-6)).all()


def test_very_many_rows_are_all_examined(monkeypatch):
    monkeypatch.setattr("dross.cleaning.label_noise.MOST_LEARNED", 1_000)
    rng = np.random.default_rng(12)
    x, y = make_classification(4_000, 8, n_informative=6, class_sep=2, flip_y=0, random_state=0)
    given = flip_uniformly(y, 2, 0.1, rng)
    noise = estimate_label_noise(Rows.of(x, given, 2), OBSERVED)
    flipped = given != y
    for part in (slice(0, 2_000), slice(2_000, 4_000)):
        assert (noise.p_wrong[part] > 0.5)[flipped[part]].mean() > 0.5
        assert (noise.p_wrong[part] > 0.5)[~flipped[part]].mean() < 0.05


def test_components_are_standardized_and_clipped():
    x = np.random.default_rng(13).standard_cauchy(size=(500, 20))
    z = principal_components(x)
    assert z.shape == (500, 8)
    assert np.abs(z).max() <= 3


def test_added_noise_keeps_sums():
    x, y = digits(400)
    rows = Rows.of(x, y, 10)
    noise = estimate_label_noise(rows, OBSERVED)
    z = principal_components(rows.x)
    rates = noise.flip_rates(z, rows.validation, rows.checked)
    assert noise.add_noise(noise.p_clean, rates).sum(1) == pytest.approx(1, abs=1e-5)
