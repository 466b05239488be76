"""`dross.clean_chats`: load, read, estimate, fine-tune and record, score, let plans compete."""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

from .._io import write_bytes
from .._progress import report
from .._text import say_bytes, say_duration
from .._version import __version__
from ..cleaning.chats import CHATS, ChatOptions, read_chats
from ..cleaning.files import find_place
from ..cleaning.inputs import Request, digest_inputs
from ..cleaning.job import Say
from ..cleaning.judge import QUICK_SEEDS
from ..cleaning.modality import PARTS, Frame
from ..cleaning.pipeline import absolute, default_folder, write_parts, write_tables
from ..cleaning.plans import KEEP, REMOVE, Recommendation
from ..cleaning.project import (
    DIGESTED,
    TOKENS,
    Project,
    claimed_folder,
)
from ..cleaning.project_info import JobInfo, ProjectInfo
from ..cleaning.scoring import rank, split_half_agreement
from ..cleaning.task import FINE_TUNING
from ..distributed.jobs import ResultStore
from ..engine.device import choose_device
from ..errors import InvalidInput
from ..influence.scores import LARGEST_GROWTH, describe_growth
from .examples import Examples, open_examples
from .model import load
from .score import ChatScores, score
from .trials import compete, count_trials
from .tuner import Tuner

RESPONSE = "response"  # what is trained on

_LABEL_COLUMNS = (
    "source",
    "label",
    "prediction",
    "checked",
    "wrong",
    "probability",
    "label_probability",
    "rank",
)
_TIMED = 4  # steps, after a first one that is not
_RETRACE = 6.0  # times a training: a retrace by token for two numbers, and its replay
_STATE = 12  # bytes of a parameter in a state: itself and two of Adam
_KEPT_WHOLE = 128e6  # bytes of states that a tape keeps without checkpoints
_LONG = 3600.0  # seconds: what takes longer is not started without --force


def clean_chats(
    data: str | os.PathLike,
    model: str | os.PathLike,
    *,
    out: str | os.PathLike | None = None,
    prompt: str | None = None,
    response: str | None = None,
    source: str | None = None,
    validation: str | os.PathLike | None = None,
    test: str | os.PathLike | None = None,
    template: str | None = None,
    lora: int | None = None,
    last_layers: int | None = None,
    max_tokens: int | None = None,
    repeats: int = 2,
    lr: float | None = None,
    epochs: int = 3,
    batch_size: int = 8,
    seed: int = 0,
    device: str | None = None,
    force: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    say: Say | None = None,
) -> Project:
    """Find the examples that make a fine-tuned language model worse.

    The input is never changed. `dross review`, `dross judge` and `dross export` continue from the
    result. An interrupted call continues if it is repeated with the same arguments.

    Arguments:
        data: a .jsonl or .parquet file. Each row has `messages` ([{"role", "content"}, ...]), or a
            prompt and a response. The model is trained only on the assistant's messages.
        model: the folder of a model, a GGUF file or a folder with one, the folder of an adapter
            of peft, or a name on the hub.
        out: the folder for the results; runs/NAME by default.
        prompt, response: the columns that contain them; guessed by default.
        source: the column with the origin of an example, to filter by; `source` by default.
        validation, test: files for these sets, ideally with responses that a person has checked. By
            default each gets a fifth of `data`, near duplicates together.
        template: a file with a chat template (Jinja) instead of the tokenizer's own, or `plain`.
        lora: train adapters of this rank instead of the weights.
        last_layers: train only this many of the last layers.
        max_tokens: truncate longer texts; 1,024 by default, and never more than the model takes.
        repeats: how many recorded fine-tunings the scores are averaged over.
        lr: the learning rate, which decays to 0; by default 2e-4 for adapters, else 2e-5.
        epochs, batch_size: the number of epochs, and the examples per batch.
        seed: decides the split, adapters and the order of the examples.
        device: `cpu` or `cuda`. By default a GPU if there is one, and else the CPU.
        force: start even if it takes more than an hour.
        overwrite: replace the contents of the folder. Decisions in it are set aside, not deleted.
        progress: show progress bars where stderr is a terminal.
        say: a function that is called with a sentence about each stage; by default there is none.

    Returns:
        The project in the folder `out`.

    Raises:
        InvalidInput: the data, the model or an argument cannot be used, a package is missing, or it
            takes more than an hour without `force`.
        NotSupported: the model is quantized, or cannot be differentiated twice.
        InvalidInput: the model is not on this machine and cannot be downloaded.
        Diverged: training diverges.
        DrossError: the folder cannot be written.

    Example:
        project = dross.clean_chats("chats.jsonl", "models/tiny", out="runs/chats", lora=16)
        print(dross.judge("runs/chats").sentence)
        dross.export("runs/chats", "cleaned.jsonl")
    """
    options = ChatOptions(
        model=absolute(model),
        prompt=prompt,
        response=response,
        source=source,
        template=template,
        lora=lora,
        last_layers=last_layers,
        max_tokens=max_tokens,
        repeats=repeats,
        lr=lr,
        epochs=epochs,
        batch_size=batch_size,
    )
    request = Request(
        absolute(data),
        RESPONSE,
        validation=None if validation is None else absolute(validation),
        test=None if test is None else absolute(test),
        seed=seed,
    )
    folder = Path(out) if out is not None else default_folder(data)
    here = choose_device(device)
    say = say or (lambda _: None)
    files = digest_inputs(request)  # before they are read: what changes later is noticed
    read_chats(find_place(data), prompt=prompt, response=response, source=source)  # can fail: first
    loaded = load(options)
    examples = open_examples(request, options, loaded, progress=progress)
    parts = ", ".join(f"{len(examples.parts[part]):,} for {part}" for part in PARTS)
    say(f"{len(examples.all):,} examples: {parts}.")
    for note in examples.notes:
        say(note)
    info = JobInfo(
        request=request,
        chat_options=options,
        digest=examples.digest,
        input_files=files,
        model_digest=loaded.digest,
    )
    with claimed_folder(folder, info, overwrite) as finished:
        if finished is not None:
            say(f"There is nothing left to do: the results are already in {folder}.")
            return finished
        started = time.monotonic()
        tuner = Tuner(loaded, examples, options, here)
        cost = estimate(tuner, QUICK_SEEDS)
        say(describe(cost))
        check_affordable(cost, tuner, force=force)

        def open_store(what: str) -> ResultStore:
            """The results of exactly this job, so that a stopped one continues."""
            return ResultStore.under(folder / "trials", {"what": what, "job": info.job})

        store = open_store("scores")
        scored = score(tuner, folder / "runs", store, seed=seed, progress=progress)
        say(
            f"Fine-tuned {repeats} times and scored {len(examples.parts['train']):,} examples and "
            f"{scored.tokens.shape[2]:,} tokens."
        )
        if (growth := float(scored.growth.max())) > LARGEST_GROWTH:
            say(describe_growth(growth))
        recommendation = compete(tuner, scored, open_store, seed=seed, progress=progress)
        say("Compared plans for removing examples.")
        project = write_project(
            folder,
            examples,
            scored,
            recommendation,
            info,
            seconds=time.monotonic() - started,
        )
        report(recommendation.numbers, 0)
        return project


# --- the cost -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What a job is expected to take."""

    training: float  # seconds of one fine-tuning
    seconds: float  # of dross clean-chats
    verdict: float  # seconds of dross judge
    memory: float  # bytes
    disk: float  # bytes


def estimate(tuner: Tuner, seeds: int) -> Cost:
    """Time a few steps; seeds: of a verdict."""
    train = tuner.parts["train"]
    batch = tuner.options.batch_size
    ended: list[float] = []
    tuner.train(train, 0, lambda _: ended.append(time.monotonic()), steps=1 + _TIMED)
    step = (ended[-1] - ended[0]) / _TIMED
    started = time.monotonic()
    tuner.measure(train[:batch])
    measuring = (time.monotonic() - started) * len(tuner.parts["validation"]) / batch
    training = step * tuner.steps + measuring
    runs = tuner.options.repeats
    states = tuner.steps * _STATE * tuner.parameters
    if states > _KEPT_WHOLE:
        states = 2 * math.sqrt(tuner.steps) * _STATE * tuner.parameters
    whole = sum(p.numel() for p in tuner.model.parameters())
    return Cost(
        training=training,
        seconds=training * (runs * (1 + _RETRACE) + count_trials(len(train))),
        verdict=training * 3 * seeds,
        memory=4.0 * whole + 12 * _STATE * tuner.parameters,
        disk=float(runs * states),
    )


def describe(cost: Cost) -> str:
    """The cost in words."""
    return (
        f"One fine-tuning run takes about {say_duration(cost.training)} here. In total, this takes "
        f"about {say_duration(cost.seconds)}, {say_bytes(cost.memory)} of memory in addition to "
        f"the texts, and {say_bytes(cost.disk)} of disk space. The verdict (dross judge) takes "
        f"about {say_duration(cost.verdict)} more."
    )


def check_affordable(cost: Cost, tuner: Tuner, *, force: bool) -> None:
    """Refuse what takes longer than an hour, unless the user forces it, and list what fits.

    Raises:
        InvalidInput: it takes too long.
    """
    if force or cost.seconds <= _LONG:
        return
    count = len(tuner.parts["train"])
    share = _LONG / cost.seconds
    ways = [f"about {max(1, round(share * count)):,} of the {count:,} examples"]
    options = tuner.options
    longest = max(len(example["input_ids"]) for example in tuner.examples)
    if share * longest >= 16:
        ways.append(f"`max_tokens={int(share * longest)}`")
    if options.lora is None or options.last_layers is None:
        adapters = "`lora=8` and `last_layers=2`"
        ways.append(f"{adapters}, which train adapters in the last layers only")
    where = "without a GPU" if tuner.device.type == "cpu" else "on this GPU"
    raise InvalidInput(
        f"This takes about {say_duration(cost.seconds)} {where}. Runs that take more than an "
        f"hour start only if you pass `force=True`. To finish in less than an hour, use one of "
        f"these options: {'; or '.join(ways)}."
    )


# --- the project ----------------------------------------------------------------------------------


def write_project(
    folder: Path,
    examples: Examples,
    scored: ChatScores,
    recommendation: Recommendation,
    info: JobInfo,
    seconds: float,
) -> Project:
    """Fill the folder; project.json comes last.

    info: the job; seconds: how long everything took.
    """
    instances = _tabulate(examples, scored, recommendation)
    write_parts(
        folder,
        train=examples.content("train"),
        validation=examples.content("validation"),
        validation_names=[chat.name for chat in examples.chats("validation")],
        validation_labels=examples.labels("validation"),
        copies=examples.copies,
        labels=pandas.DataFrame(columns=_LABEL_COLUMNS),  # answers are not checked one by one
        why={},
    )
    write_bytes(folder / TOKENS, _tabulate_tokens(examples, scored).to_parquet())
    project_info = ProjectInfo(
        **vars(info),
        dross=__version__,
        name=folder.name,
        kind=CHATS.name,
        task=FINE_TUNING.name,
        label=RESPONSE,
        classes=[],
        counts={part: len(examples.parts[part]) for part in PARTS},
        runs=len(scored.by_run),
        run_agreement=split_half_agreement(scored.by_run),
        notes=examples.notes,
        copies=examples.counts,
        recommendation=recommendation,
        origins=sorted(set(instances["origin"]) - {""}),
        seconds=round(seconds, 1),
        made=time.strftime("%Y-%m-%d %H:%M"),
    )
    return write_tables(folder, instances, project_info, (*DIGESTED, TOKENS))


def _tabulate(examples: Examples, scored: ChatScores, recommendation: Recommendation) -> Frame:
    """The content of instances.parquet."""
    chats = examples.chats("train")
    by_run = scored.by_run
    removed = [] if recommendation.plan is None else recommendation.plan.removed
    table = pandas.DataFrame(
        {
            "row": [chat.row for chat in chats],
            "source": [chat.name for chat in chats],
            "label": examples.labels("train"),
            "origin": [chat.origin for chat in chats],
            "score": scored.scores,
            "spread": by_run.std(0),
            "harmful_in": (by_run < 0).sum(0),
            "learned_in": len(by_run),
            "harm_rank": rank(scored.scores),
            "loss": scored.base_loss,
            "training_loss": scored.training_loss,
            "tokens": np.diff(scored.starts),
            "mislabel_rank": -1,
            "wrong": np.nan,
            "prediction": "",
            "probability": np.nan,
            "label_probability": np.nan,
            "outlier": np.nan,
            "verified": np.nan,
            "action": np.where(np.isin(np.arange(len(chats)), removed), REMOVE, KEEP),
            "confidence": np.nan,
        }
    )
    table.index.name = "id"
    return table


def _tabulate_tokens(examples: Examples, scored: ChatScores) -> Frame:
    """The content of tokens.parquet: texts of all tokens, effects of those trained on."""
    rows = []
    for place, learned in zip(examples.parts["train"], scored.token_effects(), strict=True):
        example = examples.all[place]
        effects = np.full(len(example.texts), np.nan)
        effects[example.learned] = learned
        rows.append({"texts": example.texts, "effects": effects.tolist()})
    return pandas.DataFrame(rows)
