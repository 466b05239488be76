"""The parts of examples/chats_small.py; all of it takes a minute (docs/finetuning.md)."""

import importlib.util
from pathlib import Path

from dross.cleaning.chats import read_chats
from dross.finetune.examples import encode_chats
from dross.finetune.model import ChatOptions, load

EXAMPLE = Path(__file__).parents[2] / "examples" / "chats_small.py"


def test_the_example_makes_a_model_and_chats_that_can_be_cleaned(tmp_path):
    spec = importlib.util.spec_from_file_location("chats_small", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows, mistakes = module.write_chats(100, wrong=0.2, seed=0)
    assert set(mistakes) == {"", "other answer", "wrong fact", "shuffled"}
    assert 10 < sum(map(bool, mistakes)) < 30
    module.make_model(tmp_path / "model", steps=2)
    loaded = load(ChatOptions(str(tmp_path / "model")))
    assert 80_000 < sum(p.numel() for p in loaded.model.parameters()) < 90_000
    path = module.write_rows(tmp_path / "chats.jsonl", rows)
    examples, _, _ = encode_chats(read_chats(path)[0], loaded, None)
    assert len(examples) == 100 and loaded.tokenizer.unk_token_id not in {
        id for example in examples for id in example.tokens["input_ids"]
    }
