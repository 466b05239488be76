"""The recipe that every run of a project is trained by: as given, or found by a search."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..data.seeds import mix_seeds
from ..errors import CorruptFile, Diverged
from ..support.option_names import name_option
from .features import NONE, Encoding, encode_again
from .job import Job
from .modality import PreparedData
from .model_choice import (
    Candidate,
    Encoder,
    Trial,
    add_note,
    describe_choice,
    list_candidates,
    take_best,
)
from .project_files import read_intact, read_json, write_sealed
from .recipe import Pair, Recipe, default_batch_size
from .train_many import SEARCHED_EPOCHS, SearchResult, search_rate
from .user_code import import_function

_LOWERED = "lowered"  # in search.json: the learning rate, where training at the found one diverged
_FOUND = {"rate", "epochs", "curves", "searched_epochs"}  # in search.json


def find_recipe(job: Job) -> tuple[Job, SearchResult]:
    """Search for inputs, a model, a rate and epochs, or read what an earlier attempt found.

    Returns:
        The job with the inputs that its models learn, and what the search found.
    """
    saved = read_intact(job.folder / "search.json")
    if isinstance(saved, dict) and set(saved) >= _FOUND:
        again = _reuse(job, saved)
        if again is not None:
            return again
    kind, encoder = job.prepared.source.kind, Encoder(job)
    trials, failure = [], None
    for candidate in list_candidates(job):
        try:
            trials.append(_try(job, candidate, encoder(candidate)))
        except Diverged as error:
            failure = error
    taken = take_best(trials, failure)
    note = describe_choice(trials, taken, kind)
    recipe = taken.found.recipe
    kept = {
        "rate": recipe.rate,
        "epochs": recipe.epochs,
        "decay": recipe.decay,
        "curves": taken.found.curves,
        "searched_epochs": taken.found.epochs,
        "seconds_per_step": taken.found.seconds_per_step,
        "enlarged": taken.found.enlarged,
        "model": recipe.model,
        "encoding": taken.data.encoding,
        "note": note,
    }
    write_sealed(job.folder / "search.json", kept)
    if note:
        job.say(note)
    job.say(
        f"Model: {taken.candidate.describe(kind)}, rate {recipe.rate:g}, {recipe.epochs} epochs "
        f"in batches of {recipe.batch_size} ({_describe_origins(job)})."
    )
    return replace(job, prepared=add_note(taken.data, note)), taken.found


def count_trainings(job: Job) -> int:
    """How many progress bars `find_recipe` shows, about."""
    of_each = 1 if job.options.epochs is not None else len(SEARCHED_EPOCHS)
    return of_each * len(list_candidates(job)) + (job.backbone != NONE)


def _try(job: Job, candidate: Candidate, data: PreparedData) -> Trial:
    learned, held_out = _hold_out(data, job.request.seed)
    found = search_rate(
        _base_recipe(job, candidate.model, data),
        *learned,
        held_out,
        rates=None if job.options.rate is None else (job.options.rate,),
        epochs=job.options.epochs,
        seed=job.request.seed,
        progress=job.progress,
    )
    return Trial(candidate, data, found)


def _hold_out(data: PreparedData, seed: int) -> tuple[Pair, Pair]:
    """What the search learns, and what it compares losses on: the validation part, or a fifth."""
    x, y = data.pair("train")
    if len(data.parts["validation"]):
        return (x, y), data.pair("validation")
    order = torch.from_numpy(np.random.default_rng(mix_seeds(seed, 5)).permutation(len(y)))
    held_out, learned = order[: len(y) // 5], order[len(y) // 5 :]
    return (x[learned], y[learned]), (x[held_out], y[held_out])


def _reuse(job: Job, saved: dict[str, Any]) -> tuple[Job, SearchResult] | None:
    """What an earlier attempt found; None where it cannot be read any more."""
    encoding = Encoding.from_json(saved.get("encoding"))
    model = saved.get("model", list_candidates(job)[0].model)
    if encoding is None or not isinstance(model, str):
        return None
    try:
        data = encode_again(job.prepared, encoding, job.folder, job.digest)
    except CorruptFile:
        return None
    found = {"rate": saved["rate"], "epochs": saved["epochs"], "decay": saved.get("decay", False)}
    recipe = replace(_base_recipe(job, model, data), **found)
    curves = {float(rate): losses for rate, losses in saved["curves"].items()}
    tried = saved["searched_epochs"]
    again = replace(job, prepared=add_note(data, saved.get("note")))
    pace = {name: saved[name] for name in ("seconds_per_step", "enlarged") if name in saved}
    return again, SearchResult(recipe, curves, tried, **pace)


def lower_rate(job: Job, recipe: Recipe) -> Recipe:
    """A third of the learning rate, also when an interrupted attempt continues."""
    path = job.folder / "search.json"
    lowered = replace(recipe, rate=recipe.rate / 3)
    write_sealed(path, read_json(path) | {_LOWERED: lowered.rate})
    return lowered


def use_lowered_rate(job: Job, recipe: Recipe) -> Recipe:
    """The recipe at the learning rate that an earlier attempt had to lower it to, if it had."""
    saved = read_json(job.folder / "search.json")
    return replace(recipe, rate=saved.get(_LOWERED, recipe.rate))


def _base_recipe(job: Job, model: str, data: PreparedData) -> Recipe:
    """Everything but the rate and the epochs."""
    options = job.options
    make = None if options.make is None else import_function(options.make, name_option("make"))
    return Recipe(
        "custom" if make else model,
        data.shape,
        data.outputs,
        "cross_entropy" if data.source.task == "classification" else "squared_error",
        batch_size=options.batch_size or default_batch_size(job.count),
        make=make,
        device=str(job.device),
    )


def _describe_origins(job: Job) -> str:
    """Which of the numbers were found by the search, and which were given."""
    options = job.options
    values = {
        name_option("rate"): options.rate,
        name_option("epochs"): options.epochs,
        name_option("batch_size"): options.batch_size,
    }
    chosen = [flag for flag, value in values.items() if value is None]
    if not chosen:
        return "as given"
    rest = ", the rest as given" if len(chosen) < len(values) else ""
    return f"chosen; change with {', '.join(chosen)}{rest}"
