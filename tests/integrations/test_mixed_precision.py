"""Trainers in bfloat16: recorded as they cast, and scores that differ from float32's by rounding.

That a retrace under autocast is the derivative of the cast run is shown in
tests/record/test_mixed_precision.py; here, that each trainer's own way to cast is seen.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import dross
from dross.engine.step import take_step


def check_alike(plain, cast):
    """The same scores but for the rounding of bfloat16 over a few steps, and not the same bits."""
    one, other = plain.values, cast.values
    assert not np.array_equal(one, other)
    apart = np.linalg.norm(one - other) / np.linalg.norm(one)
    assert apart < 0.1 and np.corrcoef(one, other)[0, 1] > 0.995, apart


def precision_of(run):
    dtype = run.recording.tape.manifest.precision.narrow
    return None if dtype is None else str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("checkpointing", [False, True])
def test_trainer(tmp_path, checkpointing):
    pytest.importorskip("transformers", reason="transformers is not installed")
    from dross.integrations.transformers import RecordingTrainer
    from tests.integrations.language import language_model, pad, settings, texts

    def make(bf16):
        options = {"bf16": bf16, "gradient_checkpointing": checkpointing, "learning_rate": 1e-3}
        folder = tmp_path / str(bf16)
        return RecordingTrainer(
            language_model().float(),
            settings(folder, **options),
            train_dataset=texts(),
            eval_dataset=texts()[:5],
            data_collator=pad,
            path=folder / "tape",
            keep=dross.tape.Checkpoints(every=4),
        )

    scores = []
    for bf16 in (False, True):
        trainer = make(bf16)
        trainer.train()
        run = trainer.recorded_run()
        assert precision_of(run) == ("bfloat16" if bf16 else None)
        loss = trainer.evaluate()["eval_loss"]
        assert np.isclose(float(run.evaluate(trainer.loss_of())), loss, rtol=1e-2 if bf16 else 1e-5)
        scores.append(run.influence(trainer.loss_of()))
        other = make(bf16)  # as a new process builds it: it has not trained, and casts all the same
        found = other.recorded_run().influence(other.loss_of())
        np.testing.assert_array_equal(found.values, scores[-1].values)
    check_alike(*scores)


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adamw_torch"])
def test_trainer_replays_to_the_same_bits(tmp_path, optim):
    """As people fine-tune: bf16, clipping by norm, two groups. One rounding more would grow."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from dross.integrations.transformers import RecordingTrainer
    from tests.integrations.language import WORDS, pad, settings, texts

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(vocab_size=WORDS, pad_token_id=0, **sizes, **heads)
    options = {"bf16": True, "optim": optim, "learning_rate": 3e-3, "max_grad_norm": 1.0}
    trainer = RecordingTrainer(
        transformers.LlamaForCausalLM(config),
        settings(tmp_path, num_train_epochs=6, weight_decay=0.01, **options),
        train_dataset=texts(),
        data_collator=pad,
        path=tmp_path / "tape",
        keep=dross.tape.Checkpoints(every=1000),
    )
    trainer.train()
    recording = trainer.recorded_run().recording
    with recording.executor.training():
        *_, last = recording.walk_forward()
        assert last.t > 20 and len(recording.tape.entries) == 1
        again = take_step(
            recording.executor, recording.optimizer, last.state, last.step, last.batches
        )[0]
    end = recording.state_at(recording.tape.steps)
    for name, value in end.tensors().items():
        assert torch.equal(again.tensors()[name], value), name


def test_lightning(tmp_path):
    pytest.importorskip("lightning", reason="lightning is not installed")
    from dross.integrations.lightning import DrossCallback
    from tests.integrations.test_lightning import X_VAL, Y_VAL, Classifier, X, Y, fit

    scores = []
    for precision in ("32-true", "bf16-mixed"):
        callback = DrossCallback(path=tmp_path / precision)
        fit(Classifier().float(), (X.float(), Y), [callback], precision=precision)
        run = callback.recorded_run()
        assert precision_of(run) == {"32-true": None, "bf16-mixed": "bfloat16"}[precision]
        validation = DataLoader(TensorDataset(X_VAL.float(), Y_VAL), batch_size=4)
        scores.append(run.influence(callback.loss_of(validation)))
    check_alike(*scores)


def test_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    x, y = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    scores = []
    for precision in ("no", "bf16"):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
        model, optimizer = accelerator.prepare(model, optimizer)
        tape = tmp_path / precision
        recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tape, data=(x, y))
        for start in (*range(0, 40, 8), *range(0, 40, 8)):
            ids = np.arange(start, start + 8)
            with recorder.observe(ids, x[ids], y[ids]) as watch:
                loss = F.cross_entropy(model(x[ids]), y[ids])
                watch(loss)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        run = recorder.run()
        assert precision_of(run) == {"no": None, "bf16": "bfloat16"}[precision]
        scores.append(run.influence(dross.mean_loss((x[:20], y[:20]))))
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    check_alike(*scores)
