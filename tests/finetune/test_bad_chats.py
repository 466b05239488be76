"""Chats and models that cannot be used: each is a sentence."""

import importlib
import json
import os
import re
import sys

import pandas
import pytest
import torch
from transformers.activations import ACT2FN

import dross
from dross import finetune
from dross.cleaning.chats import copy_chats, read_chats
from dross.cleaning.modality import RowEdits
from dross.errors import InvalidInput, NotSupported
from dross.finetune.clean import Cost, check_affordable
from dross.finetune.examples import encode_chats
from dross.finetune.model import ChatOptions, load
from tests.finetune.tiny import make_rows, save_model, write_rows

# --- the file ---

ROWS = {
    "not json": ('{"prompt": "a"\n', "line 1 is not JSON"),
    "a list": ("[1, 2]\n", "line 1 is not a JSON object"),
    "nothing": ("\n\n", "is empty"),
    "no response": (
        '{"question": "a", "text": "b"}\n',
        r"nor one that appears to contain the responses.* `prompt` and `response`",
    ),
    "a number": (
        '{"prompt": "a", "response": 3}\n',
        "Expected `array`, got `int`. Pass a string, or a list of messages",
    ),
    "a role": ('{"messages": [{"role": "bot", "content": "a"}]}\n', "Invalid enum value 'bot'"),
    "an image": (
        '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}\n',
        "fine-tunes on text only",
    ),
    "half a letter": (
        '{"prompt": "a\\ud83d", "response": "b"}\n',
        r"line 1: '\\ud83d' is an unpaired surrogate",
    ),
    "half a letter of the source": (
        '{"prompt": "a", "response": "b"}\n{"prompt": "a", "response": "b", "source": "\\ude00"}\n',
        "line 2: .* is an unpaired surrogate",
    ),
    "no content": ('{"messages": [{"role": "user"}]}\n', "missing required field `content`"),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_are_no_chats(tmp_path, name):
    text, said = ROWS[name]
    path = tmp_path / "chats.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_chats(path)


def test_chats_in_utf_16(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text('{"prompt": "a", "response": "b"}\n', encoding="utf-16")
    with pytest.raises(InvalidInput, match=r"is in UTF-16\. Save it as UTF-8"):
        read_chats(path)


def test_a_byte_order_mark_and_windows_line_ends_are_copied(tmp_path):
    path = tmp_path / "chats.jsonl"
    line = b'{"prompt": "a", "response": "b"}\r\n'
    path.write_bytes(b"\xef\xbb\xbf" + 3 * line)
    chats, _ = read_chats(path)
    assert [chat.response for chat in chats] == ["b"] * 3
    copy = copy_chats(path.read_bytes(), path, RowEdits({2}, {}))
    assert copy == (b"\xef\xbb\xbf" + 2 * line, 2)


def test_columns_are_guessed_named_and_missing(tmp_path):
    rows = [{"instruction": "add", "input": "1 and 2", "output": "3", "from": "x"}]
    path = write_rows(tmp_path / "chats.jsonl", [*rows, {"instruction": "a", "output": " "}])
    chats, notes = read_chats(path, source="from")
    assert [chat.messages[0]["content"] for chat in chats] == ["add\n\n1 and 2"]
    assert chats[0].origin == "x"
    assert "1 of 2 rows have no response (the first is line 2)" in notes[1]
    assert read_chats(path, prompt="output")[0][0].messages[0]["content"] == "3"
    with pytest.raises(InvalidInput, match=r"no column named 'promt'.*instruction"):
        read_chats(path, prompt="promt")
    (tmp_path / "chats.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InvalidInput, match="cannot be read as Parquet"):
        read_chats(tmp_path / "chats.parquet")


def test_messages_of_parquet_are_those_of_json(tmp_path):
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [{"messages": said, "source": "x"}]
    pandas.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    files = (write_rows(tmp_path / "a.jsonl", rows), tmp_path / "a.parquet")
    one, other = (read_chats(path)[0][0] for path in files)
    assert one.messages == other.messages and one.origin == other.origin == "x"


# --- the model ---


def test_no_model_no_tokenizer_no_template(run, tmp_path):
    chats = write_rows(tmp_path / "chats.jsonl", make_rows(50))
    assert run("clean-chats", chats)[0] == 2  # --model is missing
    code, said = run("clean-chats", chats, "--model", tmp_path)
    assert code == 1 and "neither config.json nor a .gguf file" in said
    bare = save_model(tmp_path / "bare", tokenizer=False)
    code, said = run("clean-chats", chats, "--model", bare)
    assert code == 1 and "has no tokenizer" in said and "save_pretrained" in said
    base = save_model(tmp_path / "base", template=None)
    code, said = run("clean-chats", chats, "--model", base)
    assert code == 1 and "has no chat template" in said and "pass --template" in said
    assert load(ChatOptions(str(base), template="plain")).tokenizer.chat_template
    with pytest.raises(InvalidInput, match=r"cannot be read: .*It must be a file, or 'plain'"):
        load(ChatOptions(str(base), template=str(tmp_path / "none.jinja")))


def test_a_model_that_is_nowhere(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInput, match=r"'no/where' is not on this machine"):
        load(ChatOptions("no/where"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_pipe_in_a_model_is_not_waited_for(tmp_path, name):
    save_model(tmp_path / "m")
    (tmp_path / "m" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "m" / name)
    with pytest.raises(InvalidInput, match=f"{name} is a pipe or a device"):
        load(ChatOptions(str(tmp_path / "m")))


def test_a_model_without_weights_is_not_called_another_kind_of_model(tmp_path):
    folder = save_model(tmp_path / "empty")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(InvalidInput, match=rf"^{re.escape(str(folder))} cannot be loaded"):
        load(ChatOptions(str(folder)))


def quantize(folder):
    about = json.loads((folder / "config.json").read_text())
    about["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(about))
    return folder


def test_quantized_weights_and_an_adapter_over_them(tmp_path):
    quantized = quantize(save_model(tmp_path / "four-bit"))
    with pytest.raises(NotSupported, match=r"quantized \(bitsandbytes\).*have no derivative"):
        load(ChatOptions(str(quantized)))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    about = {"base_model_name_or_path": str(quantized), "peft_type": "LORA"}
    (adapter / "adapter_config.json").write_text(json.dumps(about))
    with pytest.raises(NotSupported, match="adapter for a base model that cannot be"):
        load(ChatOptions(str(adapter)))
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidInput, match="does not name its base model"):
        load(ChatOptions(str(adapter)))


def test_an_adapter_over_a_whole_model_is_trained_on(model, tmp_path):
    fresh = load(ChatOptions(str(model), lora=2))
    fresh.model.peft_config["default"].base_model_name_or_path = str(model)
    fresh.model.save_pretrained(tmp_path / "adapter")
    fresh.tokenizer.save_pretrained(tmp_path / "adapter")
    loaded = load(ChatOptions(str(tmp_path / "adapter")))
    assert loaded.trained and all("lora" in name for name in loaded.trained)
    with pytest.raises(InvalidInput, match="leave out `lora`"):
        load(ChatOptions(str(tmp_path / "adapter"), lora=2))


class _OnlyOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * (1 - ctx.saved_tensors[0].tanh() ** 2)


class OnlyOnce(torch.nn.Module):
    def forward(self, x):
        return _OnlyOnce.apply(x)


def test_a_kernel_without_a_second_derivative(tmp_path, monkeypatch):
    monkeypatch.setitem(ACT2FN, "only_once", OnlyOnce)
    folder = save_model(tmp_path / "once", hidden_act="only_once")
    with pytest.raises(NotSupported, match="cannot be differentiated twice"):
        load(ChatOptions(str(folder)))


# --- texts and time ---


def test_long_texts_are_cut_and_counted(model, tmp_path):
    rows = make_rows(4)
    rows[1]["response"] = "one " * 40
    rows[2]["prompt"] = "two " * 40
    chats, _ = read_chats(write_rows(tmp_path / "chats.jsonl", rows))
    examples, places, notes = encode_chats(chats, load(ChatOptions(str(model))), None)
    assert places == [0, 1, 3]  # of the third nothing of the answer is left
    assert max(len(example.tokens["input_ids"]) for example in examples) == 32  # the context
    (said,) = notes
    assert "2 of 4 texts are longer than 32 tokens and are truncated" in said
    assert "In 1 of them, this removes the whole response" in said


def test_too_few_examples(run, model, tmp_path):
    chats = write_rows(tmp_path / "chats.jsonl", make_rows(10))
    code, said = run("clean-chats", chats, "--model", model)
    assert code == 1 and "There are 10 examples" in said and "at least 40" in said


def test_more_than_an_hour_is_not_begun_unasked(made, model, tmp_path, monkeypatch):
    slow = Cost(700.0, 7200.0, 9000.0, 1e9, 1e9)
    monkeypatch.setattr("dross.finetune.clean.estimate", lambda *given: slow)
    _, chats, _ = made
    with pytest.raises(
        InvalidInput, match=r"about 2\.0 hours without a GPU.*pass `force=True`"
    ) as refused:
        dross.clean_chats(chats, model, out=tmp_path / "run", progress=False)
    for way in ("18 of the 36 examples", "`lora=8` and `last_layers=2`"):
        assert way in str(refused.value)
    check_affordable(slow, None, force=True)  # type: ignore[arg-type]


def test_dross_clean_names_the_command_for_chats(run, made):
    _, chats, _ = made
    code, said = run("clean", chats)
    assert code == 1 and "dross clean-chats" in said and "--model PATH_OR_NAME" in said


def test_missing_packages_are_named_with_the_command(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InvalidInput, match=r"Adapters need peft: pip install .*'peft>="):
        load(ChatOptions(str(model), lora=2))
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(InvalidInput, match="pip install 'transformers>="):
        importlib.reload(finetune)
