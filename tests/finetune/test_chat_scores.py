"""What is asked of a fine-tuned model, and the scores of tokens, against slow ways to get them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dross.finetune.score import expected_errors_of
from tests.integrations.language import pad
from tests.integrations.test_transformers import trainer_for
from tests.oracles import slope

HALVES = np.array([0, 1, 1, 0, 1])


def errors_by_half(model, items):
    """Example by example: the mean of 1 - p(token), then the mean over each half."""
    found = []
    model.eval()
    with torch.no_grad():
        for item in items:
            batch = pad([item])
            labels = batch.pop("labels")
            losses = F.cross_entropy(model(**batch).logits[0, :-1], labels[0, 1:], reduction="none")
            found.append(float((1 - torch.exp(-losses)).mean()))
    return np.array([np.mean(np.array(found)[half == HALVES]) for half in (0, 1)])


def test_the_expected_error_of_either_half_and_its_scores_by_token(tmp_path):
    trainer = trainer_for("language", tmp_path, max_grad_norm=0.0)
    trainer.train()
    items = trainer.eval_dataset
    query = expected_errors_of(trainer._collated(items), HALVES, batch_size=2)
    run = trainer.recorded_run(per_token=True)
    direct = errors_by_half(trainer.model, items)
    assert run.run.evaluate(query) == pytest.approx(direct, abs=1e-12)

    tokens = run.influence(query)
    scores = np.stack([each.sum(-1) for each in tokens], axis=1)  # [2, N]
    assert scores.shape == (2, len(run))
    j = int(np.argmax(np.abs(scores[0])))

    def error_with(offset, half):
        weights = np.ones(len(run))
        weights[j] += offset
        other = trainer_for("language", tmp_path, weights, max_grad_norm=0.0)
        other.train()
        return errors_by_half(other.model, items)[half]

    for half in (0, 1):
        found = slope(lambda offset, half=half: error_with(offset, half))
        assert -scores[half, j] == pytest.approx(found, rel=1e-4)
