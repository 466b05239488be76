"""What a recording trainer refuses, each with a sentence, before an hour of training is lost."""

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from transformers import Trainer

from dross.errors import InputChanged, InvalidInput, NotSupported
from dross.integrations.transformers import RecordingTrainer, recording
from tests.integrations.language import Exact, classifier, language_model, pad, settings, texts


def trainer(folder, base=Exact, model=None, args=None, **options):
    given = {"train_dataset": texts(), "data_collator": pad, "path": folder / "tape", **options}
    args = settings(folder / "out") if args is None else args
    return recording(base)(language_model() if model is None else model, args, **given)


def test_a_trainer_with_a_loader_of_its_own(tmp_path):
    class OwnLoader(Exact):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(self.train_dataset, 2, collate_fn=pad)

    with pytest.raises(InvalidInput, match=r"does not contain the ids.*get_train_dataloader"):
        trainer(tmp_path, OwnLoader).train()


def test_items_without_columns(tmp_path):
    with pytest.raises(InvalidInput, match=r"Example . of the training set has the type list"):
        own = lambda items: pad([{"input_ids": item} for item in items])
        trainer(tmp_path, train_dataset=[[1, 2, 3]] * 4, data_collator=own).train()
    with pytest.raises(InvalidInput, match="The collator returned an object of type list"):
        trainer(tmp_path, data_collator=list, overwrite=True).train()


@pytest.mark.parametrize("name", ["packing", "padding_free"])
def test_packing(tmp_path, name):
    args = settings(tmp_path / "out")
    setattr(args, name, True)
    with pytest.raises(NotSupported, match=r"share a row.*packing=False"):
        trainer(tmp_path, args=args)


def test_a_collator_that_joins_examples(tmp_path):
    def join(items):
        words = torch.tensor([[word for item in items for word in item["input_ids"]]])
        return {"input_ids": words, "labels": words}

    with pytest.raises(NotSupported, match=r"1 row of 'input_ids' from 2 examples.*packing"):
        trainer(tmp_path, data_collator=join).train()


def test_a_collator_that_masks_at_random(tmp_path):
    def mask(items):
        batch = pad(items)
        hidden = torch.rand(batch["input_ids"].shape) < 0.5
        return {**batch, "input_ids": torch.where(hidden, 1, batch["input_ids"])}

    with pytest.raises(NotSupported, match=r"collator .* a different batch.*Mask the data once"):
        trainer(tmp_path, data_collator=mask).train()


def test_data_parallel_processes_and_noise(tmp_path):
    args = settings(tmp_path / "out")
    args._n_gpu = 2
    with pytest.raises(NotSupported, match=r"2 GPUs with DataParallel.*CUDA_VISIBLE_DEVICES=0"):
        trainer(tmp_path, args=args)
    with pytest.raises(NotSupported, match="neftune_noise_alpha"):
        trainer(tmp_path, args=settings(tmp_path / "out", neftune_noise_alpha=5.0))


def test_an_optimizer_that_does_not_step(tmp_path):
    class Skips(Exact):
        def create_optimizer(self, *args, **kwargs):
            optimizer = super().create_optimizer(*args, **kwargs)
            optimizer.step = lambda *args, **kwargs: None
            return optimizer

    with pytest.raises(NotSupported, match="Trainer is at step 0, but its optimizer has taken 0"):
        trainer(tmp_path, Skips).train()


def test_changed_data(tmp_path):
    recorded = trainer(tmp_path)
    recorded.train()
    changed = [dict(item) for item in texts()]
    changed[3]["input_ids"] = changed[3]["input_ids"][::-1]
    again = trainer(tmp_path, train_dataset=changed)
    with pytest.raises(InputChanged, match="a different dataset"):
        again.recorded_run()


def test_no_labels_and_no_inputs(tmp_path):
    without = lambda *names: lambda items: {k: v for k, v in pad(items).items() if k not in names}
    with pytest.raises(InvalidInput, match="columns input_ids, attention_mask and no labels"):
        trainer(tmp_path, data_collator=without("labels")).train()
    with pytest.raises(InvalidInput, match=r"labels .labels. and no inputs"):
        trainer(tmp_path, data_collator=without("input_ids", "attention_mask")).train()


def test_iterable_data(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(texts())

    args = settings(tmp_path / "out", max_steps=2)
    with pytest.raises(NotSupported, match=r"iterable.*map-style"):
        trainer(tmp_path, train_dataset=Stream(), args=args).train()


def test_a_loss_that_dross_does_not_know(tmp_path):
    class Penalized(Exact):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, False, num_items_in_batch) * 1.5

    with pytest.raises(NotSupported, match=r"The loss contains something else.*losses=fn"):
        trainer(tmp_path, Penalized).train()
    assert not list((tmp_path / "tape").iterdir())
    model = torch.nn.Linear(2, 2)
    with pytest.raises(NotSupported, match="loss of each example for Linear"):
        trainer(tmp_path, Trainer, model=model).train()


def test_losses_of_ones_own(tmp_path):
    class Squared(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            self.loss_is_scaled_for_ga = True
            return squares(model(**inputs), labels).mean()

    def squares(outputs, labels):
        return (outputs.logits[:, 0] - labels) ** 2

    given = {"model": classifier(), "train_dataset": texts(labeled=True), "losses": squares}
    own = trainer(tmp_path, Squared, **given)
    own.train()
    run = own.recorded_run()
    assert run.influence(own.loss_of(texts(labeled=True)[:3])).values.any()


def test_a_tape_that_is_there_already(tmp_path):
    trainer(tmp_path).train()
    with pytest.raises(InvalidInput, match="There is already a tape"):
        trainer(tmp_path).train()
    trainer(tmp_path, overwrite=True).train()


def test_a_checkpoint_that_the_tape_does_not_know(tmp_path):
    saving = settings(tmp_path / "out", save_strategy="steps", save_steps=4)
    plain = Exact(language_model(), saving, train_dataset=texts(), data_collator=pad)
    plain.train()
    trainer(tmp_path).train()
    with pytest.raises(InputChanged, match=r"made after 4 steps, but the tape .* after 0, 10"):
        trainer(tmp_path, args=saving).train(
            resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4")
        )


def test_no_data_to_ask_about(tmp_path):
    with pytest.raises(InvalidInput, match=r"trainer\.loss_of\(validation\)"):
        trainer(tmp_path).loss_of()
    with pytest.raises(InvalidInput, match="one loss per label and none per token"):
        given = {"model": classifier(), "train_dataset": texts(labeled=True)}
        own = trainer(tmp_path, **given)
        own.train()
        own.recorded_run(per_token=True)
    assert RecordingTrainer.__name__ == "RecordingTrainer"
