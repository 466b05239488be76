"""Loops as trainers write them: their own losses, dict batches, closures, steps that come later."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dross
from dross.data.dataset import Collated, ModelKwargs
from dross.errors import InputChanged, NotSupported
from tests.record.user_loops import close, query
from tests.zoo import problem


@pytest.mark.parametrize("how", ["later", "closure", "own loss", "own losses"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_loops_of_trainers_give_the_scores_of_train(record, tmp_path, how, clip):
    p = problem("dropout" if how != "closure" else "batchnorm", "adamw", clip_norm=clip)
    model, optimizer = p.start()
    model.train()
    recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine", seed=p.seed)

    def clip_own_way():
        if clip is not None:
            with recorder.clipping(max_norm=clip):
                nn.utils.clip_grad_norm_(model.parameters(), clip)
        with recorder.clipping(max_norm=float("inf")):  # a trainer that logs the norm
            nn.utils.clip_grad_norm_(model.parameters(), float("inf"))

    def compute(ids, x, y):
        if how in ("later", "closure"):
            with recorder.step(ids, x, y) as losses:
                losses.mean().backward()
        else:
            with recorder.observe(ids, x, y) as watch:
                losses = p.loss(model(x), y)
                loss = losses.mean()
                watch(losses if how == "own losses" else loss)
                loss.backward()

    for ids in p.batches:
        x, y = p.X[ids], p.Y[ids]

        def closure(ids=ids, x=x, y=y):
            optimizer.zero_grad()
            compute(ids, x, y)
            clip_own_way()

        if how == "closure":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    found = recorder.run((p.X, p.Y)).influence(query(p)).values
    expected = record(p).influence(query(p)).values
    close(found, expected)


class Sentences(nn.Module):
    """Word vectors, averaged over the words of a sentence; called with keywords."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 5), nn.Linear(5, 3)

    def forward(self, input_ids, attention_mask):
        vectors = self.words(input_ids).tanh() * attention_mask[..., None]
        return {"logits": self.head(vectors.sum(1) / attention_mask.sum(1, keepdim=True))}


def sentences(count=12):
    random = np.random.default_rng(0)
    lengths = random.integers(2, 7, count)
    return [
        {"input_ids": random.integers(1, 11, n).tolist(), "labels": int(random.integers(3))}
        for n in lengths
    ]


def pad(items):
    longest = max(len(item["input_ids"]) for item in items)
    rows = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in items]
    x = torch.tensor(rows)
    return {
        "input_ids": x,
        "attention_mask": (x > 0).double(),
        "labels": torch.tensor([item["labels"] for item in items]),
    }


def split(batch):
    return ModelKwargs((k, v) for k, v in batch.items() if k != "labels"), batch["labels"]


def losses_of(outputs, labels):
    return F.cross_entropy(outputs["logits"], labels, reduction="none")


BATCHES = [np.random.default_rng(t).permutation(12)[:4] for t in range(5)]


def train_sentences(data, folder, weights=None):
    """A loop over padded dict batches, recorded or with other weights."""
    torch.manual_seed(0)
    model = Sentences().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    source = Collated(data, pad, split)
    if weights is None:
        recorder = dross.Recorder(model, losses_of, optimizer, path=folder, data=source)
    for ids in BATCHES:
        x, y = source.collate(ids)
        if weights is None:
            with recorder.step(ids, x, y) as losses:
                losses.mean().backward()
        else:
            (losses_of(model(**x), y) * weights[ids]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if weights is None:
        return recorder.run()
    with torch.no_grad():
        x, y = source.collate([0, 1, 2])
        return float(losses_of(model(**x), y).mean())


def test_padded_dict_batches_against_finite_differences(tmp_path):
    data = sentences()
    run = train_sentences(data, tmp_path / "t")
    scores = run.influence(dross.mean_loss(Collated(data[:3], pad, split))).values
    assert run.recording.instances.stored is None
    h = 1e-4
    for j in (int(BATCHES[0][0]), int(BATCHES[-1][1])):
        values = []
        for offset in (2 * h, h, -h, -2 * h):
            weights = torch.ones(len(data), dtype=torch.float64)
            weights[j] += offset
            values.append(train_sentences(data, None, weights))
        slope = (-values[0] + 8 * values[1] - 8 * values[2] + values[3]) / (12 * h)
        np.testing.assert_allclose(-scores[j], slope, atol=1e-8 * np.nanmax(np.abs(scores)))


def test_changed_items_are_refused(tmp_path):
    data = sentences(200)
    run = train_sentences(data, tmp_path / "t")
    changed = [dict(item) for item in data]
    j = int(BATCHES[2][0])
    changed[j]["labels"] = (changed[j]["labels"] + 1) % 3
    model, source = run.recording.objective.model, Collated(changed, pad, split)
    with pytest.raises(
        InputChanged, match=r"returns different inputs or labels|a different dataset"
    ):
        again = dross.load(tmp_path / "t", model, source, losses_of)
        again.influence(dross.mean_loss(Collated(data[:3], pad, split)))


def test_a_collator_that_masks_at_random(tmp_path):
    def mask(items):
        batch = pad(items)
        batch["input_ids"] = batch["input_ids"] * (torch.rand(batch["input_ids"].shape) > 0.5)
        return batch

    model = Sentences().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NotSupported, match="The collator \\(mask\\) makes a different batch"):
        dross.Recorder(
            model,
            losses_of,
            optimizer,
            path=tmp_path / "t",
            data=Collated(sentences(), mask, split),
        )
