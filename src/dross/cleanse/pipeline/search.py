"""The recipe that every run of a project is trained by: as given, or found by a search."""

import time
from dataclasses import replace

from ..inputs.user_code import import_function
from ..learning.recipe import Recipe, default_batch_size
from ..learning.train_many import SearchResult, search_rate
from ..project_files import read_intact, read_json, write_sealed
from .estimate import describe_cost, estimate_cost
from .job import Job

_LOWERED = "lowered"  # in search.json: {round: rate}, where training at the rate diverged
_USUAL_MODELS = {"images": "cnn", "text": "linear"}


def find_recipe(job: Job) -> SearchResult:
    """Search for a rate and a number of epochs, or read what an earlier attempt found."""
    base = _base_recipe(job)
    saved_file = job.folder / "search.json"
    saved = read_intact(saved_file)
    if isinstance(saved, dict) and {"rate", "epochs", "curves"} <= set(saved):
        curves = {float(rate): losses for rate, losses in saved["curves"].items()}
        # an earlier version looked at every epoch of runs whose rate did not decay
        longest = max(map(len, curves.values()), default=0)
        tried = saved.get("searched_epochs", list(range(1, longest + 1)))
        found = {"rate": saved["rate"], "epochs": saved["epochs"]}
        recipe = replace(base, **found, decay=saved.get("decay", False))
        return SearchResult(recipe, curves, tried)
    started = time.monotonic()
    found = search_rate(
        base,
        *job.prepared.pair("train"),
        job.prepared.pair("validation"),
        rates=None if job.options.rate is None else (job.options.rate,),
        epochs=job.options.epochs,
        seed=job.request.seed,
        progress=job.progress,
    )
    took = time.monotonic() - started
    recipe = found.recipe
    kept = {"rate": recipe.rate, "epochs": recipe.epochs, "decay": recipe.decay}
    write_sealed(saved_file, kept | {"curves": found.curves, "searched_epochs": found.epochs})
    job.say(
        f"Model: {recipe.model}, rate {recipe.rate:g}, {recipe.epochs} epochs "
        f"in batches of {recipe.batch_size} ({_describe_origins(job)})."
    )
    cost = estimate_cost(found, took, job.count, job.options.runs)
    job.say(f"Expected: {describe_cost(cost)} in {job.folder}.")
    return found


def lower_rate(job: Job, recipe: Recipe, number: int) -> Recipe:
    """A third of the rate for a round and those after it, also when an attempt goes on later."""
    path = job.folder / "search.json"
    saved, lowered = read_json(path), replace(recipe, rate=recipe.rate / 3)
    rates = saved.get(_LOWERED, {}) | {str(number): lowered.rate}
    write_sealed(path, saved | {_LOWERED: rates})
    return lowered


def use_lowered_rate(job: Job, recipe: Recipe, number: int) -> Recipe:
    """The recipe of a round, at the rate that an earlier attempt had to lower it to, if it had."""
    saved = read_json(job.folder / "search.json").get(_LOWERED, {})
    return replace(recipe, rate=saved.get(str(number), recipe.rate))


def _base_recipe(job: Job) -> Recipe:
    """Everything but the rate and the epochs."""
    options, source = job.options, job.prepared.source
    make = None if options.make is None else import_function(options.make, "--model")
    kind = options.model or _USUAL_MODELS.get(source.kind, "mlp")
    return Recipe(
        "custom" if make else kind,
        job.prepared.shape,
        job.prepared.outputs,
        "cross_entropy" if source.task == "classification" else "squared_error",
        batch_size=options.batch_size or default_batch_size(job.count),
        make=make,
    )


def _describe_origins(job: Job) -> str:
    """Which of the numbers were found by the search, and which were given."""
    options = job.options
    values = {
        "--rate": options.rate,
        "--epochs": options.epochs,
        "--batch-size": options.batch_size,
    }
    chosen = [flag for flag, value in values.items() if value is None]
    if not chosen:
        return "as given"
    rest = ", the rest as given" if len(chosen) < len(values) else ""
    return f"chosen; change with {', '.join(chosen)}{rest}"
