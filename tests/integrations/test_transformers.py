"""Runs of transformers' Trainer, recorded: the scores are those of the training as it was."""

import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from transformers import Trainer

import dross
from dross.data.dataset import Collated
from dross.engine.objective import Objective
from dross.errors import NotSupported
from dross.integrations.transformers import RecordingTrainer, recording
from dross.integrations.transformers.losses import InstanceLosses
from dross.integrations.transformers.trainer import Split
from tests.integrations.language import Exact, classifier, language_model, pad, settings, texts
from tests.oracles import slope
from tests.record.user_loops import close

KINDS = {
    "language": (language_model, texts()),
    "classifier": (classifier, texts(labeled=True)),
}
OPTIONS = {
    "plain": {"max_grad_norm": 0.0},
    "accumulated": {"gradient_accumulation_steps": 2},
    "clipped": {"max_grad_norm": 0.1, "lr_scheduler_type": "cosine", "warmup_steps": 2},
    "sgd": {"optim": "sgd", "weight_decay": 0.01, "learning_rate": 0.5},
}


def trainer_for(kind, folder, weights=None, base=Exact, **options):
    """A trainer of a tiny model, recorded unless the examples have weights."""
    make, items = KINDS[kind]
    given = (make(), settings(folder / "out", **options))
    sets = {"train_dataset": items, "eval_dataset": items[:5], "data_collator": pad}
    if weights is None:
        return recording(base)(*given, **sets, path=folder / "tape")
    sets["train_dataset"] = [{**item, "weight": w} for item, w in zip(items, weights)]
    return base(*given, **sets)


CASES = [("language", options) for options in OPTIONS] + [("classifier", "accumulated")]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_scores_against_finite_differences_through_train(tmp_path, kind, options):
    trainer = trainer_for(kind, tmp_path, **OPTIONS[options])
    trainer.train()
    run, query = trainer.recorded_run(), trainer.loss_of()
    scores = run.influence(query).values
    j = int(np.argmax(np.abs(scores)))

    def loss_with(offset):
        weights = np.ones(len(scores))
        weights[j] += offset
        other = trainer_for(kind, tmp_path, weights, **OPTIONS[options])
        other.train()
        return other.evaluate()["eval_loss"]

    expected = slope(loss_with)
    np.testing.assert_allclose(-scores[j], expected, atol=2e-7 * np.nanmax(np.abs(scores)))


def test_recording_changes_nothing_and_is_what_a_loop_by_hand_records(tmp_path):
    options = OPTIONS["accumulated"]
    trainer = trainer_for("language", tmp_path, **options)
    trainer.train()
    plain = trainer_for("language", tmp_path, np.ones(10), **options)
    plain.train()
    pairs = zip(trainer.model.parameters(), plain.model.parameters())
    assert all(torch.allclose(one, other, rtol=1e-12, atol=1e-14) for one, other in pairs)

    run, query = trainer.recorded_run(), trainer.loss_of()
    model, items = language_model(), texts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0, eps=1e-4)
    source = Collated(items, pad, Split(["labels"], keep_labels=False))
    losses = InstanceLosses.of(model)
    recorder = dross.Recorder(model, losses, optimizer, path=tmp_path / "mine", data=source)
    for t, step in enumerate(run.recording.tape.read(0).steps):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - t / 6)  # Trainer's linear schedule
        batches = [source.collate(micro.ids) for micro in step.micros]
        tokens = sum(int(losses.count(y).sum()) for _, y in batches)
        for micro, (x, y) in zip(step.micros, batches):
            with recorder.step(micro.ids, x, y) as each:
                (each.sum() / tokens).backward()
        recorder.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    close(run.influence(query).values, recorder.run().influence(query).values, 1e-7)


def test_scores_per_token_add_up_and_are_derivatives(tmp_path):
    trainer = trainer_for("language", tmp_path, **OPTIONS["accumulated"])
    trainer.train()
    query = trainer.loss_of()
    scores = trainer.recorded_run().influence(query).values
    tokens = trainer.recorded_run(per_token=True)
    each = tokens.influence(query)
    assert [len(part) for part in each] == [len(item["input_ids"]) - 1 for item in texts()]
    close(np.array([part.sum() for part in each]), scores)
    # without one token's loss: a counterfactual run with a small step of its weight
    run = tokens.run
    j = int(tokens.starts[3] + 1)
    influence = run.parameter_influence([j])
    seed, _ = query.derivative(run.recording.objective, run.recording.state_at(run.steps))
    u = run.recording.objective.layout.unflatten(seed.theta[0])
    product = sum(float((influence[name][0] * u[name]).sum()) for name in influence)
    np.testing.assert_allclose(product, each[3][1], rtol=1e-8)


@pytest.mark.parametrize("per_token", [False, True])
def test_padded_texts_are_cut_where_a_pass_does_not_fit(tmp_path, per_token, monkeypatch):
    """One text at a time, with all of its tokens; a query for each of several prompts."""
    trainer = trainer_for("language", tmp_path, per_device_train_batch_size=4)
    trainer.train()
    run, query = trainer.recorded_run(per_token=per_token), trainer.loss_of(each=True)
    recording = (run.run if per_token else run).recording
    few = (run.run if per_token else run).influence(query)
    assert few.values.shape[0] == 5 and np.abs(few.values).max() > 1e-6
    mean = recording.objective, recording.state_at(recording.tape.steps)
    assert len(query.evaluate(*mean)) == 5
    pull = Objective.vjp_reverse

    def limited(self, theta, buffers, batch, *rest):
        if len(batch.x["input_ids"]) > 1:
            raise torch.OutOfMemoryError("no memory for so many")
        return pull(self, theta, buffers, batch, *rest)

    monkeypatch.setattr(Objective, "vjp_reverse", limited)
    with pytest.warns(dross.DrossWarning, match="instances of a batch at a time"):
        warnings.filterwarnings("ignore", message="Out of memory: continuing with . of the queries")
        found = (run.run if per_token else run).influence(query)
    np.testing.assert_allclose(found.values, few.values, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_trainers_own_loss_and_its_eval_loss(tmp_path, kind, smoothing):
    """With dropout, in float32 as transformers computes it, columns removed, evaluation between."""
    make, items = KINDS[kind]
    dropout = {"dropout": 0.2} if kind == "language" else {"hidden_dropout_prob": 0.2}
    args = settings(
        tmp_path / "out",
        gradient_accumulation_steps=2,
        label_smoothing_factor=smoothing,
        remove_unused_columns=True,
        eval_strategy="steps",
        eval_steps=1,
        lr_scheduler_type="cosine",
    )
    items = [{**item, "comment": "not for the model"} for item in items]
    trainer = RecordingTrainer(
        make(**dropout).float(),
        args,
        train_dataset=items,
        eval_dataset=items[:5],
        data_collator=pad,
        path=tmp_path / "tape",
    )
    trainer.train()
    run = trainer.recorded_run()
    found = run.evaluate(trainer.loss_of(items[:5], pad))
    np.testing.assert_allclose(found, trainer.evaluate()["eval_loss"], rtol=1e-5)
    scores = run.influence(trainer.loss_of())
    assert np.isfinite(scores.values).all() and np.abs(scores.values).max() > 0
    assert run.steps == trainer.state.global_step == 6


@pytest.mark.filterwarnings("ignore:The run in .* continues")
def test_a_run_goes_on_from_a_checkpoint(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 3, **OPTIONS["accumulated"]}
    whole = trainer_for("language", tmp_path / "whole", **OPTIONS["accumulated"])
    whole.train()
    expected = whole.recorded_run().influence(whole.loss_of()).values
    first = trainer_for("language", tmp_path / "cut", **saving)

    class Stop(Exception):
        pass

    class Breaks(dross.integrations.transformers.trainer.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 5:
                raise Stop

    first.add_callback(Breaks())
    with pytest.raises(Stop):
        first.train()
    again = trainer_for("language", tmp_path / "cut", **saving)
    again.train(resume_from_checkpoint=True)
    run = again.recorded_run()
    assert run.steps == 6 and run.complete
    close(run.influence(again.loss_of()).values, expected, 1e-7)


def test_a_new_process_opens_the_run(tmp_path):
    trainer = trainer_for("classifier", tmp_path)
    trainer.train()
    expected = trainer.recorded_run().influence(trainer.loss_of()).values
    other = trainer_for("classifier", tmp_path)
    close(other.recorded_run().influence(other.loss_of()).values, expected)


def test_the_best_model_at_the_end(tmp_path):
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2}
    saving = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 1.0}
    trainer = trainer_for("classifier", tmp_path, **best, **saving)
    trainer.train()
    assert trainer.state.best_global_step < trainer.state.global_step
    assert trainer.recorded_run().steps == trainer.state.global_step


def test_any_class_of_trainers(tmp_path):
    assert recording(Trainer) is RecordingTrainer
    assert issubclass(recording(Exact), Exact)
    with pytest.raises(dross.InvalidInput, match="must be a trainer class"):
        recording(dict)


def test_margins_of_a_classifier(tmp_path):
    """Its weights do not move, so that every margin is that of the first model."""
    trainer = trainer_for("classifier", tmp_path, **OPTIONS["sgd"] | {"learning_rate": 0.0})
    trainer.train()
    batch = pad(texts(labeled=True))
    labels = batch.pop("labels").numpy()
    logits = trainer.model.eval()(**batch).logits.detach().numpy()
    others = np.where(np.eye(3, dtype=bool)[labels], -np.inf, logits).max(1)
    expected = logits[range(10), labels] - others
    np.testing.assert_allclose(trainer.recorded_run().margins(), expected, rtol=1e-6)


def test_margins_of_a_language_model_are_refused(tmp_path):
    trainer = trainer_for("language", tmp_path, **OPTIONS["plain"])
    trainer.train()
    with pytest.raises(NotSupported, match=r"different task \(next token\)"):
        trainer.recorded_run().margins()
