import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB

from dross.cleaning import label_noise, plans
from dross.cleaning.label_noise import (
    PRIORS,
    Expert,
    Rows,
    estimate_label_noise,
    list_experts,
    principal_components,
)
from dross.cleaning.plans import (
    NO_EDITS,
    NOTHING,
    RULES,
    STRICTNESS,
    Edits,
    Measured,
    compare,
    draw_checks,
    edits_without,
    held_out_losses,
    learned_something,
    measure_rules,
    recommend,
)

OBSERVED = PRIORS["observed"]


def blobs(count, *, gap=4.0, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count)
    x = rng.normal(size=(count, 5))
    x[np.arange(count), y] += gap
    return x, y


def flip(y, classes, share, seed=1):
    rng = np.random.default_rng(seed)
    flipped = rng.random(len(y)) < share
    given = y.copy()
    given[flipped] = (y[flipped] + rng.integers(1, classes, flipped.sum())) % classes
    return given


def advise(rows, labels="observed", **more):
    noise = estimate_label_noise(rows, PRIORS[labels])
    return recommend(rows, noise, labels, **more)


# --- edits and rules ------------------------------------------------------------------------------


def test_edits_apply_to_ids_and_labels():
    edits = Edits(np.array([1]), {2: 7})
    left, labels = edits.apply(np.zeros(4, dtype=np.int64), np.arange(4))
    assert left.tolist() == [0, 2, 3]
    assert labels.tolist() == [0, 0, 7, 0]
    assert len(edits) == 2
    assert len(NO_EDITS) == 0


def test_rules_leave_weak_cases_validation_rows_and_checked_rows():
    x, y = blobs(600)
    given = flip(y, 3, 0.2)
    validation = np.arange(600) >= 500
    checked = np.arange(600) < 50
    rows = Rows.of(x, given, 3, validation=validation, checked=checked)
    noise = estimate_label_noise(rows, OBSERVED)
    for rule in RULES.values():
        edits = rule(noise, rows)
        touched = edits.ids
        assert len(touched)
        assert not rows.anchors[touched].any()
        assert noise.p_wrong[touched].min() > 0.5
        assert all(label != given[id] for id, label in edits.relabeled.items())


def test_no_rule_removes_a_whole_class():
    x, y = blobs(300, classes=2)
    odd = np.arange(6)
    y[odd] = 2  # six rows of a third class, which nobody believes
    rows = Rows.of(x, y, 3)
    noise = estimate_label_noise(rows, PRIORS["annotated"])
    for rule in RULES.values():
        left, labels = rule(noise, rows).apply(y, np.arange(300))
        assert (labels[left] == 2).sum() >= 5


# --- measures -------------------------------------------------------------------------------------


def test_noise_aware_losses_are_least_for_the_truth():
    x, y = blobs(500, gap=1.5)
    rows = Rows.of(x, flip(y, 3, 0.3), 3)
    noise = estimate_label_noise(rows, OBSERVED)
    z = principal_components(rows.x)
    rates = noise.flip_rates(z, rows.validation, rows.checked)
    clean = np.random.default_rng(0).dirichlet(np.ones(3), 500)
    given = noise.add_noise(clean, rates)

    def expected(predicted, name):
        total = 0.0
        for label in range(3):
            labels = np.full(500, label)
            losses = held_out_losses(predicted, labels, noise, rates)[name]
            total += (given[:, label] * losses).mean()
        return total

    sharper = clean**2 / (clean**2).sum(1, keepdims=True)
    for name in ("brier", "log loss"):
        assert expected(clean, name) < expected(sharper, name)
        assert expected(clean, name) < expected(given, name)


def test_plain_losses():
    predicted = np.array([[[0.8, 0.2], [0.4, 0.6]]])  # one model, two rows
    losses = held_out_losses(predicted, np.array([0, 0]))
    assert losses["error"].tolist() == [[0, 1]]
    assert losses["brier"] == pytest.approx(np.array([[0.08, 0.72]]))
    assert losses["log loss"] == pytest.approx(-np.log([[0.8, 0.4]]))


def test_wild_numbers_count_for_a_bounded_error():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = x[:, 0] + 0.1 * rng.normal(size=300)
    y[:20] += 30
    rows = Rows.of(x, y, 0)
    noise = estimate_label_noise(rows, OBSERVED)
    rates = noise.flip_rates(principal_components(rows.x), rows.validation, rows.checked)
    plain = held_out_losses(x[:, 0], y)["absolute error"]
    bounded = held_out_losses(x[:, 0], y, noise, rates)["absolute error"]
    assert bounded[:20].max() < 5
    assert np.median(np.abs(plain - bounded)[20:]) == 0


def test_duplicates_count_as_one_draw():
    rng = np.random.default_rng(1)
    before = rng.random(100)
    after = before + rng.normal(size=100)
    once = compare(before, after, np.arange(100))
    twice = compare(np.tile(before, 2), np.tile(after, 2), np.tile(np.arange(100), 2))
    assert twice.change == pytest.approx(once.change)
    assert twice.interval == pytest.approx(once.interval)


def test_weights_undo_how_checks_were_drawn():
    rng = np.random.default_rng(2)
    change = np.concatenate([np.full(2_000, -0.5), np.full(8_000, 0.1)])
    chance = np.concatenate([np.full(2_000, 0.2), np.full(8_000, 0.02)])
    drawn = rng.random(10_000) < chance
    weights = 1 / chance[drawn]
    figure = compare(np.zeros(drawn.sum()), change[drawn], np.arange(drawn.sum()), weights)
    assert figure.change == pytest.approx(change.mean(), abs=0.05)


# --- the plan comparison --------------------------------------------------------------------------


def made_measurement(rows, changes):
    """Losses where one rule changes each loss by so much, with a little noise."""
    rng = np.random.default_rng(3)
    count = len(rows)
    names = ("error", "brier", "log loss")
    before = {name: np.full(count, 0.5) for name in names}
    after = {name: 0.5 + changes[name] + 0.05 * rng.normal(size=count) for name in names}
    losses = {NOTHING: before, "wrong-50": after}
    for by_name in losses.values():
        by_name |= {f"noise-aware {name}": values for name, values in by_name.items()}
    return Measured(np.arange(count), losses)


@pytest.mark.parametrize(
    ("changes", "recommended"),
    [
        ({"error": -0.05, "brier": -0.05, "log loss": -0.05}, True),
        ({"error": -0.05, "brier": 0.05, "log loss": 0.05}, False),  # overconfident
        ({"error": -0.05, "brier": -0.05, "log loss": 0.05}, False),
        ({"error": 0.05, "brier": -0.05, "log loss": -0.05}, False),
        ({"error": -0.05, "brier": -0.005, "log loss": -0.05}, False),  # too small to matter
    ],
)
def test_error_and_probabilities_must_both_improve(monkeypatch, changes, recommended):
    x, y = blobs(300)
    rows = Rows.of(x, flip(y, 3, 0.2), 3)
    monkeypatch.setattr(plans, "measure_rules", lambda *_, **__: made_measurement(rows, changes))
    monkeypatch.setattr(plans, "RULES", {"wrong-50": RULES["wrong-50"]})
    found = advise(rows)
    assert (found.recommended == "wrong-50") is recommended
    assert [plan.name for plan in found.plans] == ["wrong-50"]
    assert found.plans[0].figures["error"].change == pytest.approx(changes["error"], abs=0.02)


@pytest.mark.parametrize("classes", [3, 0])
@pytest.mark.parametrize("measures_plans", [False, True])
def test_a_fifth_expert_can_be_added(monkeypatch, classes, measures_plans):
    x, y = blobs(300)
    kind = GaussianNB if classes else LinearRegression
    fifth = Expert(kind, measures_plans=measures_plans, on_anchors=True)
    some = lambda x, classes: [*list_experts(x, classes), fifth]
    monkeypatch.setattr(label_noise, "list_experts", some)
    monkeypatch.setattr(plans, "list_experts", some)
    rows = Rows.of(x, flip(y, 3, 0.2), classes, checked=np.arange(300) < 60)
    noise = estimate_label_noise(rows, OBSERVED)
    weights = noise.model.exponents if classes else noise.model.expert_weights
    assert len(weights) == 5 + 3  # five of all rows, three of the checked ones alone
    [predicted] = plans._predict_after([NO_EDITS], rows, rows.x)
    assert len(predicted) == 2 + measures_plans
    assert measure_rules(rows, OBSERVED, ["wrong-50"]).losses["wrong-50"]


@pytest.mark.slow
def test_noisy_labels_are_mended():
    x, y = load_digits(return_X_y=True)
    x, y = x[:500] / 16, y[:500]
    given = flip(y, 10, 0.2)
    rows = Rows.of(x, given, 10)
    found = advise(rows)
    assert found.state == "recommended"
    best = found.plans[0]
    assert best.name == found.recommended
    left, labels = best.apply(given, np.arange(500))
    assert (labels[left] != y[left]).mean() < 0.25 * (given != y).mean()
    assert best.figures["noise-aware brier"].interval[1] < 0
    assert best.figures["error"].after < best.figures["error"].before


def test_nothing_is_recommended_where_classes_overlap():
    for seed in range(2):
        x, y = blobs(600, gap=1.0, classes=2, seed=seed)
        found = advise(Rows.of(x, y, 2))
        assert found.recommended is None
        assert found.state in ("nothing wrong", "no gain", "undecided")


def test_nothing_is_learned_from_random_labels():
    rng = np.random.default_rng(4)
    for labels in ("annotated", "observed"):
        rows = Rows.of(rng.normal(size=(400, 5)), rng.integers(0, 3, 400), 3)
        found = advise(rows, labels)
        assert found.state == "nothing learned"
        assert found.plans == []
    numbers = Rows.of(rng.normal(size=(300, 5)), rng.normal(size=300), 0)
    assert advise(numbers).state == "nothing learned"


def test_checked_labels_do_not_hide_that_something_was_learned():
    """Those that are drawn look wrong: models of them alone predict other labels the wrong way."""
    x, y = blobs(400, gap=0.7, classes=2)
    rows = Rows.of(x, y, 2)
    noise = estimate_label_noise(rows, OBSERVED)
    checked = np.zeros(400, dtype=bool)
    checked[np.argsort(noise.p_clean[np.arange(400), y])[:40]] = True
    confirmed = Rows.of(x, y, 2, checked=checked)
    assert learned_something(rows, noise)
    assert learned_something(confirmed, estimate_label_noise(confirmed, OBSERVED))


def test_rare_classes_can_be_learned():
    x, y = blobs(600, classes=2)
    rare = (y == 0) | (np.arange(600) % 20 == 0)
    rows = Rows.of(x[rare], y[rare], 2)
    assert learned_something(rows, estimate_label_noise(rows, OBSERVED))


def test_wild_numbers_are_recommended_for_removal():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(500, 4))
    y = 2 * x[:, 0] + x[:, 1] ** 2 + 0.2 * rng.normal(size=500)
    wild = rng.random(500) < 0.08
    given = np.where(wild, y + 8, y)
    found = advise(Rows.of(x, given, 0))
    assert found.state == "recommended"
    edits = found.plans[0]
    touched = edits.ids
    assert wild[touched].mean() > 0.7
    assert wild[touched].sum() > 0.8 * wild.sum()


def test_same_seed_same_recommendation():
    x, y = blobs(150, gap=2.0, classes=2)
    rows = Rows.of(x, flip(y, 2, 0.2), 2)
    first = advise(rows, seed=5)
    second = advise(rows, seed=5)
    assert first.reason == second.reason
    assert [plan.figures for plan in first.plans] == [plan.figures for plan in second.plans]


def test_observed_labels_are_guarded_more_strictly():
    annotated, observed = STRICTNESS["annotated"], STRICTNESS["observed"]
    assert observed.all_rows > annotated.all_rows
    assert observed.effect >= annotated.effect


# --- checks ---------------------------------------------------------------------------------------


def test_checks_are_drawn_with_the_stated_probabilities():
    x, y = blobs(200, gap=2.0)
    rows = Rows.of(x, flip(y, 3, 0.2), 3, checked=np.arange(200) < 10)
    noise = estimate_label_noise(rows, OBSERVED)
    edits = [RULES["wrong-50"](noise, rows)]
    drawn = np.zeros(200)
    total = []
    for seed in range(2_000):
        checks = draw_checks(rows, noise, edits, seed)
        drawn[list(checks)] += list(checks.values())
        total.append(sum(checks.values()))
        assert len(checks) == 40
    assert drawn[:10].max() == 0
    assert drawn[10:].mean() / 2_000 == pytest.approx(1, abs=0.02)
    assert np.abs(drawn[10:] / 2_000 - 1).max() < 0.5
    touched = edits[0].ids
    checks = draw_checks(rows, noise, edits, 0)
    assert np.isin(touched, list(checks)).mean() > 0.5


def test_fewer_rows_than_checks():
    x, y = blobs(20)
    rows = Rows.of(x, y, 3)
    noise = estimate_label_noise(rows, OBSERVED)
    checks = draw_checks(rows, noise, [], 0)
    assert sorted(checks) == list(range(20))
    assert list(checks.values()) == pytest.approx([1] * 20)


def test_checked_rows_replace_validation_rows():
    x, y = blobs(400)
    checked = np.arange(400) < 50
    weights = np.where(checked, 8.0, np.nan)
    rows = Rows.of(x, y, 3, validation=np.arange(400) >= 250, checked=checked)
    trusted, counts = plans._trusted_rows(rows, weights)
    assert (trusted == checked).all()
    assert counts[checked] == pytest.approx(8)
    trusted, _ = plans._trusted_rows(rows, None)
    assert (trusted == rows.validation).all()


# --- without some rows ----------------------------------------------------------------------------


def test_held_out_labels_have_no_part_in_the_edits():
    x, y = blobs(500)
    given = flip(y, 3, 0.2)
    held_out = np.arange(500) % 5 == 0
    other = given.copy()
    other[held_out] = (other[held_out] + 1) % 3
    first, noise = edits_without(Rows.of(x, given, 3), held_out, "wrong-50", "observed")
    second, _ = edits_without(Rows.of(x, other, 3), held_out, "wrong-50", "observed")
    assert (first.removed == second.removed).all()
    assert first.relabeled == second.relabeled
    touched = first.ids
    assert len(touched)
    assert not held_out[touched].any()
    z = principal_components(x.astype(np.float32))[held_out]
    none = np.zeros(held_out.sum(), dtype=bool)
    assert noise.flip_rates(z, none, none).shape == (100, 3)


def odd_inputs():
    rng = np.random.default_rng(6)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    yield "one class", Rows.of(x, np.zeros(40), 1)
    yield "three validation rows", Rows.of(x, y, 2, validation=np.arange(40) >= 37)
    yield "two rows of each class", Rows.of(x, np.arange(40) // 2, 20)
    yield "labels all wrong", Rows.of(x, 1 - y, 2, validation=np.arange(40) >= 20)
    yield "constant numbers", Rows.of(x, np.ones(40), 0)
    yield "four rows", Rows.of(x[:4], np.array([0, 1, 0, 1]), 2)


@pytest.mark.parametrize("rows", [pytest.param(rows, id=name) for name, rows in odd_inputs()])
def test_odd_inputs_get_an_answer(rows):
    found = advise(rows, "annotated")
    assert found.reason.endswith(".")
    for plan in found.plans:
        left, _ = plan.apply(rows.y, np.arange(len(rows)))
        assert len(left)
