"""From a file of chats to a verdict and a cleaned copy, by commands."""

import json
import shutil

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import dross
from dross import cli
from dross.cleaning.inputs import Request
from dross.cleaning.modality import PARTS
from dross.cleaning.project import Project
from dross.errors import InputChanged, InvalidInput
from dross.finetune.examples import open_examples
from dross.finetune.model import ChatOptions, load
from tests.finetune.conftest import QUICK
from tests.finetune.tiny import as_messages, make_rows, write_rows


def run(*words):
    return CliRunner().invoke(cli.app, [str(word) for word in words], catch_exceptions=False)


def test_the_command_says_what_it_does(made):
    folder, _, printed = made
    said = " ".join(printed.split())
    for part in ("36 for train, 12 for validation, 12 for test", "Prompts are in 'prompt'"):
        assert part in said
    assert "One fine-tuning run takes about" in said and "plans for removing examples" in said
    assert "Recommended:" in said and f"dross review {folder}" in said
    lines = [line for line in printed.splitlines() if str(folder) not in line]
    assert all(len(line) <= 80 for line in lines)
    assert "what comes after" in (folder / "report.html").read_text()


def test_the_effects_of_tokens_add_up_to_the_scores(made):
    project = Project.open(made[0])
    tokens, table = project.tokens, project.table
    assert len(tokens) == len(table) == 36
    for id in (0, 17, 35):
        texts, effects = tokens.loc[id, "texts"], np.array(tokens.loc[id, "effects"], float)
        assert "".join(texts).split()[0] == "<user>" and len(texts) == len(effects)
        learned = [text.strip() for text, effect in zip(texts, effects) if effect == effect]
        said = project.content.loc[id, "text"].split("assistant: ")[1].split()
        assert learned == [*said, "<end>"]
        assert np.nansum(effects) == pytest.approx(table.loc[id, "score"], abs=1e-12)
    assert set(table["origin"]) == {"a", "b", "c"} and (table["score"] != 0).all()


def test_the_same_command_again_finds_everything_there(made, model):
    folder, chats, _ = made
    again = run("clean-chats", chats, "--model", model, "--out", folder, *QUICK)
    assert "There is nothing left to do" in again.output
    with pytest.raises(InvalidInput, match="other data or other settings"):
        run("clean-chats", chats, "--model", model, "--out", folder, *QUICK, "--lora", 2)


def test_a_verdict_and_an_export(made, tmp_path):
    folder, chats, _ = made
    judged = run("judge", folder, "--remove", 5, "--seeds", 2)
    said = " ".join(judged.output.split())
    assert "(2 repetitions with fresh seeds)" in said and "with 5 removed: loss " in said
    verdict = Project.open(folder).verdicts()[-1]
    assert set(verdict["metrics"]) == {"loss", "error"} and verdict["removed"] == 5
    assert not (folder / "judging").exists() and not (folder / "judging.json").exists()
    copy = tmp_path / "cleaned.jsonl"
    exported = run("export", folder, copy, "--remove", 5)
    assert "55 instances; 5 removed" in exported.output
    table = Project.open(folder).table.sort_values("harm_rank")
    gone = {int(name.removeprefix("line ")) - 1 for name in table["source"].head(5)}
    lines = chats.read_bytes().splitlines(keepends=True)
    assert copy.read_bytes() == b"".join(line for k, line in enumerate(lines) if k not in gone)
    assert Project.open(folder).cleaned(remove=5) == [
        json.loads(line) for line in copy.read_text().splitlines()
    ]
    with pytest.raises(InvalidInput, match=r"must end in \.jsonl"):
        run("export", folder, tmp_path / "cleaned.parquet", "--remove", 5)
    with pytest.raises(InvalidInput, match="leave out `estimator`"):
        dross.judge(folder, remove=5, estimator="sklearn:LogisticRegression")


def test_a_changed_input_or_model_is_noticed(made, model, tmp_path):
    folder, chats, _ = made
    before = chats.read_bytes()
    try:
        chats.write_bytes(before + b'{"prompt": "a", "response": "b"}\n')
        with pytest.raises(InputChanged, match="has changed"):
            run("export", folder, tmp_path / "copy.jsonl", "--remove", 5)
        with pytest.raises(InputChanged, match="has changed"):
            run("judge", folder, "--remove", 5, "--seeds", 2)
    finally:
        chats.write_bytes(before)


@pytest.mark.slow
def test_adapters_of_the_last_layer_on_messages_in_parquet(model, tmp_path):
    rows = [as_messages(row) for row in make_rows(50)]
    table = tmp_path / "chats.parquet"
    pandas.DataFrame(rows).to_parquet(table)
    folder = tmp_path / "run"
    options = {"repeats": 1, "epochs": 1, "batch_size": 30, "lora": 2, "last_layers": 1}
    project = dross.clean_chats(table, model, out=folder, progress=False, **options)
    assert project.table["source"].str.startswith("row ").all()
    done = dross.export(folder, tmp_path / "cleaned.parquet", remove=3)
    assert done.written == 47 == len(pandas.read_parquet(tmp_path / "cleaned.parquet"))
    names = json.loads((folder / "runs/run-0/manifest.json").read_text())["layout"]["names"]
    assert names and all("lora" in name and "layers.1." in name for name in names)


def test_what_was_stopped_goes_on(made, model, tmp_path, monkeypatch):
    folder, chats, _ = made
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    (copy / "project.json").unlink()
    from dross.finetune import score

    def never(*arguments, **options):
        raise AssertionError("it is fine-tuned again")

    monkeypatch.setattr(score, "_score_run", never)
    again = dross.clean_chats(
        chats, model, out=copy, repeats=1, epochs=2, batch_size=18, lr=0.01, progress=False
    )
    first = Project.open(folder).table.drop(columns="confidence")
    pandas.testing.assert_frame_equal(again.table.drop(columns="confidence"), first)


def test_near_duplicates_are_in_one_part(model, tmp_path):
    rows = [row for row in make_rows(60) for _ in range(2)]
    request = Request(str(write_rows(tmp_path / "twice.jsonl", rows)), "response")
    options = ChatOptions(str(model))
    examples = open_examples(request, options, load(options), progress=False)
    lines = {part: {chat.row for chat in examples.chats(part)} for part in PARTS}
    for found in lines.values():  # lines 1 and 2 are the same, 3 and 4, ...
        assert {(number - 1) ^ 1 for number in found} == {number - 1 for number in found}
    copies = examples.copies.table
    assert set(copies["part"]) == {"train"}
    assert len(copies) == examples.counts.train == len(examples.parts["train"]) == 72
