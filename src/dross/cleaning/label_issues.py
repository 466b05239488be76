"""Label errors from the out-of-sample probabilities of a model of one's own."""

from contextlib import suppress
from typing import Any

import numpy as np
import pandas

from .._checks import check_name
from ..errors import InvalidInput
from .label_noise import LIKELY, PRIORS, Rows, estimate_from_probabilities
from .modality import Frame

_SLACK = 1e-3  # how far a row of probabilities may be from a sum of 1


def find_label_issues(labels: Any, pred_probs: Any, *, kind: str = "annotated") -> Frame:
    """Estimate which labels are wrong from the probabilities predicted by your own model.

    The probabilities must be out-of-sample: each row predicted by a model that was not trained on
    it, as `sklearn.model_selection.cross_val_predict(model, X, labels, method="predict_proba")`
    returns them. How often labels are wrong and which classes are confused is estimated along with
    each label. `dross.clean` trains models itself, compares what removing or relabeling would do,
    and recommends it only if it helps; this function only examines labels.

    Arguments:
        labels: the given labels, [N]: integers from 0, or names of classes.
        pred_probs: out-of-sample probabilities, [N, classes]. Columns are in the order of the
            integers, or of the sorted names.
        kind: `annotated` or `observed`, as `labels` of `dross.clean`.

    Returns:
        A DataFrame with one row per label: is_label_issue, whether it is more likely wrong than
        right; label_quality, the probability that it is right; given_label; and predicted_label,
        the most probable label.

    Raises:
        InvalidInput: the arguments do not fit together, or are not probabilities.

    Example:
        issues = dross.find_label_issues(labels, pred_probs)
        worst = issues[issues.is_label_issue].sort_values("label_quality").index
    """
    check_name("kind of labels", kind, tuple(PRIORS))
    probabilities = _read_probabilities(pred_probs)
    count, classes = np.shape(probabilities)
    y, names = _read_labels(labels, count, classes)
    rows = Rows.of(np.zeros((count, 1)), y, classes)
    noise = estimate_from_probabilities(rows, PRIORS[kind], probabilities)
    likely = np.where(noise.p_best_other > 1 - noise.p_wrong, noise.best_other, y)
    return pandas.DataFrame(
        {
            "is_label_issue": noise.p_wrong > LIKELY,
            "label_quality": 1 - noise.p_wrong,
            "given_label": names[y],
            "predicted_label": names[likely],
        }
    )


def _read_probabilities(pred_probs: Any) -> np.ndarray:
    probabilities: Any = None
    with suppress(TypeError, ValueError):
        probabilities = np.asarray(pred_probs, dtype=np.float64)
    if np.ndim(probabilities) != 2 or not len(probabilities) or probabilities.shape[1] < 2:
        raise InvalidInput(
            "pred_probs must be an array of probabilities with the shape [N, classes], with at "
            "least two classes."
        )
    sums = probabilities.sum(1)
    if not np.isfinite(sums).all() or (probabilities < 0).any() or (abs(sums - 1) > _SLACK).any():
        place = int(np.argmax(~(np.isfinite(sums) & (abs(sums - 1) <= _SLACK))))
        raise InvalidInput(
            f"Each row of pred_probs must contain probabilities that sum to 1; row {place} is "
            f"{probabilities[place].round(4).tolist()[:6]}."
        )
    return probabilities


def _read_labels(labels: Any, count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels as numbers of classes, int64 [N], and the names of the classes."""
    given = np.asarray(labels)
    if given.shape != (count,):
        raise InvalidInput(
            f"labels has the shape {given.shape}, but pred_probs has {count} rows. Pass one label "
            "per row."
        )
    if given.dtype.kind in "iub":
        y = given.astype(np.int64)
        if y.min() < 0 or y.max() >= classes:
            raise InvalidInput(
                f"labels must be integers from 0 to {classes - 1}, the column indices of pred_probs, "
                f"not {y.min()} to {y.max()}."
            )
        return y, np.arange(classes)
    names, y = np.unique(given.astype(str), return_inverse=True)
    if len(names) != classes:
        raise InvalidInput(
            f"labels has {len(names)} distinct names, but pred_probs has {classes} columns. Pass "
            "labels as integers: the column indices of pred_probs."
        )
    return y.astype(np.int64), names
