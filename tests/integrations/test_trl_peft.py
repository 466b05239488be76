"""trl's SFTTrainer and adapters of peft, recorded."""

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from dross.integrations.transformers import recording
from tests.integrations.language import Exact, language_model, pad, settings, texts
from tests.oracles import slope


def test_sft_trainer(tmp_path):
    trl = pytest.importorskip("trl", reason="trl is not installed")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{k}": k for k in range(20)}, unk_token="w1"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w2")
    items = datasets.Dataset.from_list([{**item, "labels": item["input_ids"]} for item in texts()])
    args = trl.SFTConfig(
        **{
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 2,
            "learning_rate": 0.01,
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            "save_strategy": "no",
            "logging_steps": 1,
            "dataloader_pin_memory": False,
        }
    )
    trainer = recording(trl.SFTTrainer)(
        language_model().float(),
        args,
        train_dataset=items,
        eval_dataset=items.select(range(4)),
        processing_class=tokenizer,
        path=tmp_path / "tape",
    )
    trainer.train()
    assert "mean_token_accuracy" in trainer.state.log_history[0]  # trl's own figures are there
    run, query = trainer.recorded_run(), trainer.loss_of()
    np.testing.assert_allclose(run.evaluate(query), trainer.evaluate()["eval_loss"], rtol=1e-5)
    scores = run.influence(query).values
    each = trainer.recorded_run(per_token=True).influence(query)
    np.testing.assert_allclose([part.sum() for part in each], scores, rtol=1e-3, atol=1e-7)


def test_only_the_adapter_is_on_the_tape(tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed")

    def adapted():
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
        model = peft.get_peft_model(language_model(), config, autocast_adapter_dtype=False)
        for name, parameter in model.named_parameters():
            if "lora_" in name:  # B starts at zero, and with it half of the gradient
                value = np.random.default_rng(len(name)).normal(size=parameter.shape) * 0.3
                parameter.data.copy_(parameter.new_tensor(value))
        return model

    def make(weights=None):
        items = texts()
        if weights is not None:
            items = [{**item, "weight": w} for item, w in zip(items, weights)]
        kind = Exact if weights is not None else recording(Exact)
        tape = {} if weights is not None else {"path": tmp_path / "tape"}
        args = settings(tmp_path / "out", label_names=["labels"])
        sets = {"train_dataset": items, "eval_dataset": texts()[:4], "data_collator": pad}
        return kind(adapted(), args, **sets, **tape)

    trainer = make()
    trainer.train()
    run, query = trainer.recorded_run(), trainer.loss_of()
    assert all("lora_" in name for name in run.parameters())
    scores = run.influence(query).values
    j = int(np.argmax(np.abs(scores)))

    def loss_with(offset):
        weights = np.ones(len(scores))
        weights[j] += offset
        other = make(weights)
        other.train()
        return other.evaluate()["eval_loss"]

    np.testing.assert_allclose(-scores[j], slope(loss_with), atol=2e-6 * np.nanmax(np.abs(scores)))
    opened = make().recorded_run()  # the base comes with the model
    np.testing.assert_allclose(opened.influence(query).values, scores, rtol=1e-9)
