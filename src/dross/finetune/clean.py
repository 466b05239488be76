"""`dross.clean_chats`: load, read, estimate, fine-tune and record, score, let plans compete."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..cleaning.inputs import Request, digest_inputs
from ..cleaning.judge import QUICK_SEEDS
from ..cleaning.modality import PARTS
from ..cleaning.output_folder import check_answer, claimed_folder
from ..cleaning.project import FORMAT, Project
from ..cleaning.tracking import report_plan
from ..distributed.jobs import ResultStore
from ..engine.device import choose_device
from ..errors import InvalidInput
from ..influence.scores import WILD_GROWTH, describe_growth
from .estimate import check_affordable, describe, estimate
from .model import Loaded, load
from .options import ChatOptions
from .parts import Examples, Found, prepare_examples
from .plans import compete
from .score import score
from .tuner import Tuner
from .write import write_project

Say = Callable[[str], None]
RESPONSE = "response"  # what is learned


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

    The input is never touched. `dross review`, `dross judge` and `dross export` continue from the
    result. A call that was stopped continues when it is made again with the same arguments.

    Arguments:
        data: a .jsonl or .parquet file. Each row has `messages` ([{"role", "content"}, ...]), or a
            prompt and a response. What the assistant says is learned, and nothing else.
        model: the folder of a model, a GGUF file or a folder with one, the folder of an adapter
            of peft, or a name on the hub.
        out: the folder for everything that is found; runs/NAME by default.
        prompt, response: the columns that hold them; guessed by default.
        source: the column that says where an example is from, to filter by; `source` by default.
        validation, test: files for these parts, best with answers that a person has checked. By
            default each gets a fifth of `data`, near duplicates together.
        template: a file with a chat template (Jinja) instead of the tokenizer's own, or `plain`.
        lora: train adapters of this rank instead of the weights.
        last_layers: train this many of the last layers only.
        max_tokens: cut longer texts; 1,024 by default, and never more than the model takes.
        repeats: how many recorded fine-tunings the scores are averaged over.
        lr: the learning rate, which decays to 0; by default 2e-4 for adapters, else 2e-5.
        epochs, batch_size: for training.
        seed: decides the split, adapters and the order of the examples.
        device: `cpu` or `cuda`. By default a GPU if there is one, and else the CPU.
        force: start even if it takes more than an hour.
        overwrite: replace what the folder holds. Decisions in it are set aside, not deleted.
        progress: show progress bars where stderr is a terminal.
        say: a function that gets a sentence about each stage; by default none is called.

    Returns:
        The project in the folder `out`.

    Raises:
        InvalidInput: the data, the model or an argument cannot be used, a package is missing, or it
            takes more than an hour without `force`.
        NotSupported: the model is quantized, or cannot be differentiated twice.
        InvalidInput: the model is not on this machine and cannot be fetched.
        Diverged: training diverges.
        DrossError: the folder cannot be written.

    Example:
        project = dross.clean_chats("chats.jsonl", "models/tiny", out="runs/chats", lora=16)
        print(dross.judge("runs/chats").sentence)
        dross.export("runs/chats", "cleaned.jsonl")
    """
    options = ChatOptions(
        _absolute(model),
        prompt,
        response,
        source,
        template,
        lora,
        last_layers,
        max_tokens,
        repeats,
        lr,
        epochs,
        batch_size,
    )
    others = {"validation": validation, "test": test}
    files: dict[str, Any] = {
        part: _absolute(path) for part, path in others.items() if path is not None
    }
    request = Request(_absolute(data), RESPONSE, seed=seed, **files)
    folder = Path(out) if out is not None else Path("runs") / (Path(data).stem or "chats")
    job = _Job(request, options, folder, choose_device(device), progress, say or (lambda _: None))
    return job.run(force=force, overwrite=overwrite)


def _absolute(given: str | os.PathLike) -> str:
    """A project is opened from other folders as well; a name on the hub is left as it is."""
    return str(Path(given).resolve()) if os.path.exists(given) else str(given)


@dataclass(frozen=True)
class _Job:
    request: Request
    options: ChatOptions
    folder: Path
    device: torch.device
    progress: bool
    say: Say

    def run(self, *, force: bool, overwrite: bool) -> Project:
        files = digest_inputs(self.request)  # before they are read: what changes later is noticed
        loaded = load(self.options)
        examples, copies = open_examples(
            self.request, self.options, loaded, self.device, progress=self.progress
        )
        self._describe(examples)
        begun = self._describe_job(examples, loaded, files)
        with claimed_folder(self.folder, self.request, begun, overwrite) as finished:
            if finished is not None:
                self.say(f"Everything is there already, in {self.folder}.")
                return check_answer(finished, begun)
            started = time.monotonic()
            tuner = make_tuner(loaded, examples, self.options, self.device)
            self._estimate(tuner, examples, force)
            return check_answer(self._work(tuner, examples, copies, begun, started), begun)

    def _work(
        self, tuner: Tuner, examples: Examples, copies: Found, begun: dict[str, Any], started: float
    ) -> Project:
        train, validation = (examples.parts[part].tolist() for part in ("train", "validation"))
        how: dict[str, Any] = {"seed": self.request.seed, "progress": self.progress}
        tapes = self.folder / "runs"
        scored = score(tuner, train, validation, tapes, self._store(begun, "scores"), **how)
        self.say(
            f"Fine-tuned {self.options.repeats} times and scored {len(train):,} examples and "
            f"{scored.tokens.shape[2]:,} tokens."
        )
        if (growth := float(scored.growth.max())) > WILD_GROWTH:
            self.say(describe_growth(growth))
        store = self._store(begun, "plans")
        store.begin()
        found = compete(tuner, train, validation, scored, store, **how)
        self.say("Compared plans for what to leave out.")
        seconds = time.monotonic() - started
        project = write_project(self.folder, examples, scored, found, copies, begun, seconds)
        report_plan(project.recommended)
        return project

    def _estimate(self, tuner: Tuner, examples: Examples, force: bool) -> None:
        count = len(examples.parts["train"])
        train, asked = examples.parts["train"].tolist(), len(examples.parts["validation"])
        cost = estimate(tuner, train, asked, QUICK_SEEDS)
        self.say(describe(cost))
        check_affordable(cost, tuner, count, force=force)

    def _store(self, begun: dict[str, Any], what: str) -> ResultStore:
        """The results of exactly this job, so that a stopped one continues."""
        settings = {"what": what, "job": json.loads(json.dumps(begun))}
        name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        return ResultStore((self.folder / "trials" / name).absolute(), settings)

    def _describe(self, examples: Examples) -> None:
        parts = ", ".join(f"{len(examples.parts[part]):,} for {part}" for part in PARTS)
        self.say(f"{len(examples.chats):,} examples: {parts}.")
        for note in examples.notes:
            self.say(note)

    def _describe_job(
        self, examples: Examples, loaded: Loaded, files: dict[str, str]
    ) -> dict[str, Any]:
        """The content of begun.json: with anything else, a folder holds another job."""
        return {
            "made_by": "dross",
            "format": FORMAT,
            "request": self.request.to_json(),
            "options": asdict(self.options),
            "digest": examples.digest,
            "input_files": files,
            "model_digest": loaded.digest,
        }


def open_examples(
    request: Request,
    options: ChatOptions,
    loaded: Loaded,
    device: torch.device,
    *,
    progress: bool,
) -> tuple[Examples, Found]:
    """The examples of a job and the copies among them; the same every time."""
    given = {"train": request.data, "validation": request.validation, "test": request.test}
    files = {part: Path(path) for part, path in given.items() if path is not None}
    how: dict[str, Any] = {"seed": request.seed, "device": device, "progress": progress}
    return prepare_examples(files, options.columns, loaded, options.max_tokens, **how)


def make_tuner(
    loaded: Loaded, examples: Examples, options: ChatOptions, device: torch.device
) -> Tuner:
    """What fine-tunes the model on the examples."""
    if not loaded.trained:
        raise InvalidInput(
            f"Nothing in {options.model} can be trained: all its weights are frozen."
        )
    count = len(examples.parts["train"])
    return Tuner(loaded, examples.encoded.examples, options, count, device)
