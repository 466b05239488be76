"""How labels came to be wrong, for numbers.

The error r_i = y_i - f_i of models that did not learn instance i has one of two origins. With the
chance 1 - w the label is right and r_i / s follows Student's distribution, whose tails are as heavy
as the data ask for. With the chance w the label is wrong: it is some other number, as those of
other instances are, and follows the normal distribution of all labels. The share w, the scale s and
the degrees of freedom are those that make the given labels the likeliest; Bayes' rule gives the
chance that each one is wrong (docs/derivations.md).
"""

import numpy as np

_FREEDOMS = (2.0, 3.0, 5.0, 10.0, 30.0)  # degrees, of which the likeliest is taken
_STEPS = 200
_CLOSE_ENOUGH = 1e-8  # of the likelihood, where the search ends
_LEAST_SCALE = 1e-6  # of the deviation of all labels


def number_noise(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The chance that each label is wrong, [N].

    Arguments:
        predicted: By models that did not learn the instances, [N].
        labels: [N].
    """
    fits = [_fit(predicted, labels, freedom) for freedom in _FREEDOMS]
    return max(fits, key=lambda fit: fit[0])[1]


def _fit(predicted: np.ndarray, labels: np.ndarray, freedom: float) -> tuple[float, np.ndarray]:
    """The likelihood and the chances, by the EM algorithm."""
    from scipy.stats import norm, t

    errors, spread = labels - predicted, max(float(labels.std()), 1e-12)
    by_chance, least = norm.pdf(labels, labels.mean(), spread), _LEAST_SCALE * spread
    scale, share, before = max(float(np.median(np.abs(errors))), least), 0.1, -np.inf
    wrong, likelihood = np.zeros(len(labels)), -np.inf
    for _ in range(_STEPS):
        while_right = (1 - share) * t.pdf(errors / scale, freedom) / scale
        total = while_right + share * by_chance
        wrong = share * by_chance / total
        likelihood = float(np.log(total).sum())
        if likelihood - before <= _CLOSE_ENOUGH * abs(likelihood):
            break
        before, share = likelihood, float(wrong.mean())
        weight = (1 - wrong) * (freedom + 1) / (freedom + (errors / scale) ** 2)
        variance = float((weight * errors**2).sum() / max((1 - wrong).sum(), 1e-12))
        scale = max(float(np.sqrt(variance)), least)
    return likelihood, wrong
