"""How labels came to be wrong, for classes: estimated from models that did not learn them.

A model gives instance i the chances p_i. Two things stand between them and the label y_i. The model
is less or more sure than it should be: the true class t has the chance q_i(t), proportional to
p_i(t)^a. And whoever labelled it took t for y with the chance M[t, y], a table with one row per
true class. Together the label has the chance

    P(y_i) = sum over t of q_i(t) M[t, y_i]

and the temperature 1 / a and the table M are those that make the given labels the likeliest. What
tells wrong labels from hard instances is where the surprises are: hard instances surprise where the
models hesitate, wrong labels surprise even where they are surest. So a set whose classes merely
overlap is found to have no wrong labels, though models disagree with many of them. By Bayes' rule
the instance is truly of class t with the chance q_i(t) M[t, y_i] / P(y_i): docs/derivations.md.

What cannot be seen: labels that are wrong exactly where classes overlap look like overlap.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_SMALLEST = 1e-6  # chances below count as this
_USUAL_SHARE = 0.1  # of wrong labels, from which the search for the table begins
_SHARE_WEIGHT = 0.05  # of the prior of that share, on the scale of log odds
_CLASS_WEIGHT = 2.0  # of the prior that all classes are mistaken as often
_PAIR_COUNT = 0.3  # of each pair of classes: mistakes that are assumed before any is seen
_PAIR_WEIGHT = 0.01  # keeps log odds of pairs finite
_MOST_PAIRED = 100  # classes; with more, all wrong classes count as equally likely
_MOST = 0.5  # of the labels: where models disagree with more, the search begins there as well
_LARGEST_SHARE = 0.95  # of wrong labels that it may begin from
_SUREST = 0.3  # of each class, by which the search for the table begins
_STEPS = 80


@dataclass(frozen=True)
class ClassNoise:
    """The temperature and the table that explain the given labels best."""

    sharpness: float  # a
    mistakes: np.ndarray  # M, [classes, classes]: true class x given label
    posterior: np.ndarray  # [N, classes]: the chance of every true class, given the label as well


def fit_class_noise(chances: np.ndarray, labels: np.ndarray) -> ClassNoise:
    """Estimate the temperature and the table by maximum likelihood, with a weak prior.

    Arguments:
        chances: Of models that did not learn the instances, [N, classes].
        labels: int64 [N].
    """
    count = chances.shape[1]
    if count < 2:
        return ClassNoise(1.0, np.ones((count, count)), np.ones((len(labels), count)))
    logs, y = (
        torch.from_numpy(np.log(np.maximum(chances, _SMALLEST))).double(),
        torch.tensor(labels),
    )
    starts = [_Table(_start_of_pairs(chances, labels), _USUAL_SHARE)]
    disagreement = float((chances.argmax(1) != labels).mean())
    if disagreement > _MOST:  # the usual beginning may lead to where models know nothing
        start = _count_pairs(chances.argmax(1), labels, count)
        starts.append(_Table(start, min(disagreement, _LARGEST_SHARE)))
    return min((_fit(logs, y, table) for table in starts), key=lambda found: found[0])[1]


def _fit(logs: Tensor, y: Tensor, table: "_Table") -> tuple[float, ClassNoise]:
    """What is found from one beginning, and its cost; logs: of the chances."""
    sharpness = torch.zeros((), dtype=torch.float64, requires_grad=True)  # its logarithm
    parameters = [sharpness, *table.parameters]
    optimizer = torch.optim.LBFGS(parameters, max_iter=_STEPS, line_search_fn="strong_wolfe")

    def joint() -> Tensor:
        """log q_i(t) M[t, y_i], [N, classes]."""
        chosen = torch.log_softmax(logs * sharpness.exp(), 1)
        return chosen + torch.log(table.mistakes()[:, y].T + 1e-12)

    def lower() -> Tensor:
        optimizer.zero_grad()
        cost = table.penalty() - torch.logsumexp(joint(), 1).sum()
        cost.backward()
        return cost

    optimizer.step(lower)  # type: ignore[arg-type]  # it takes tensors as well as floats
    cost = lower().item()
    with torch.no_grad():
        posterior = torch.softmax(joint(), 1).numpy()
        found = ClassNoise(float(sharpness.exp()), table.mistakes().numpy(), posterior)
    return cost if np.isfinite(cost) else np.inf, found


class _Table:
    """M by its parameters: how often each class is mistaken, and for which."""

    def __init__(self, pairs: np.ndarray, share: float):
        """Begin with log odds of pairs, and with this share of wrong labels."""
        count = len(pairs)
        paired = count <= _MOST_PAIRED
        self.usual, begin = (float(np.log(p / (1 - p))) for p in (_USUAL_SHARE, share))
        self.share = torch.tensor(begin, dtype=torch.float64, requires_grad=True)  # log odds
        self.by_class = torch.zeros(count, dtype=torch.float64, requires_grad=True)
        self.pairs = torch.from_numpy(pairs if paired else np.zeros_like(pairs)).double()
        self.pairs.requires_grad_(paired)
        self.others = ~torch.eye(count, dtype=torch.bool)
        self.parameters = [self.share, self.by_class, *([self.pairs] if paired else [])]

    def mistakes(self) -> Tensor:
        wrong = torch.sigmoid(self.share + self.by_class)
        return torch.diag(1 - wrong) + wrong[:, None] * self._taken_for()

    def _taken_for(self) -> Tensor:
        """What a class is taken for, given that it is mistaken, [classes, classes]."""
        return torch.softmax(self.pairs.masked_fill(~self.others, -torch.inf), 1)

    def penalty(self) -> Tensor:
        """Minus the logarithm of the prior."""
        pairs = torch.log(self._taken_for()[self.others] + 1e-9)
        return (
            _SHARE_WEIGHT * (self.share - self.usual) ** 2
            + _CLASS_WEIGHT * (self.by_class**2).sum()
            - _PAIR_COUNT * pairs.sum()
            + _PAIR_WEIGHT * (self.pairs**2).sum()
        )


def _count_pairs(predicted: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Log odds of what each class is taken for, as if the models were right."""
    seen = np.zeros((count, count))
    np.add.at(seen, (predicted, labels), 1)
    odds = np.log(seen + _PAIR_COUNT)
    np.fill_diagonal(odds, 0.0)
    return (odds - odds.sum(1, keepdims=True) / max(count - 1, 1)) * (1 - np.eye(count))


def _start_of_pairs(chances: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Log odds of what each class is taken for, where the models are surest of it.

    Where one class is often labelled as one other, models learn that mixture. The search has to
    begin near it, or it ends with a table without mistakes and models that are right to hesitate.
    """
    count = chances.shape[1]
    pairs = np.zeros((count, count))
    for c in range(count):
        surest = np.argsort(-chances[:, c], kind="stable")
        surest = surest[: max(5, int(_SUREST * (labels == c).sum()))]
        odds = np.log(chances[surest].mean(0) + 1e-3)
        others = np.arange(count) != c
        pairs[c, others] = odds[others] - odds[others].mean()
    return pairs
