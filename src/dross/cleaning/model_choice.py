"""Which inputs and models are tried on held-out instances, and which of them are selected."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from ..data.seeds import mix_seeds
from ..errors import CorruptFile, Diverged, InvalidInput
from .features import (
    NONE,
    backbone_command,
    check_backbone,
    compute_features,
    encode,
    encode_again,
    is_installed,
)
from .images import ImageEncoder
from .inputs import Request
from .job import Job
from .modality import AS_READ, BOTH, FEATURES, Encoding, PreparedData
from .project_files import read_intact, read_sealed, write_sealed
from .project_info import Options
from .splits import hold_out_groups, join_groups
from .tables import TABLE
from .training import (
    SEARCHED_EPOCHS,
    Recipe,
    RecipeSettings,
    SearchResult,
    default_batch_size,
    search_rate,
)
from .user_code import import_function

_SMALLEST_IMAGE = 12  # pixels; a pretrained model sees nothing in a smaller one
_CLEARLY_BETTER = 0.01  # of the loss of what is simpler, ...
_LEAST_DIFFERENCE = 0.002  # ... and no less than this: near 0 all are good
_MODELS = ("linear", "mlp")  # the simpler first


@dataclass(frozen=True)
class Candidate:
    """A model and its inputs."""

    model: str  # one of MODELS, or custom
    inputs: str = AS_READ  # AS_READ, or with the features of the job's backbone FEATURES or BOTH

    def describe(self, job: Job) -> str:
        """In words: "mlp on features from efficientnet-lite0"."""
        as_read = job.prepared.source.modality.as_read
        features = f"features from {job.backbone}"
        words = {AS_READ: as_read, FEATURES: features, BOTH: f"{as_read} and {features}"}
        on = words[self.inputs]
        return self.model if on is None else f"{self.model} on {on}"


def choose_backbone(request: Request, options: Options, data: PreparedData) -> tuple[str, str]:
    """The backbone that is used or tried, which may be `none`, and a message about it.

    Raises:
        InvalidInput: the requested one is unknown, not installed, or does not suit the data.
    """
    modality = data.source.modality
    if request.backbone is not None:
        if options.model == "cnn" and request.backbone != NONE:
            raise InvalidInput(
                f"A CNN takes images, not features from {request.backbone}. Choose "
                f"`model='linear'` or `model='mlp'`, or `backbone={NONE!r}`."
            )
        check_backbone(request.backbone, modality)
        return request.backbone, ""
    usual = modality.backbone
    own_way = request.features is not None or options.make is not None or options.model == "cnn"
    if usual is None or own_way or _is_tiny(data):
        return NONE, ""
    if is_installed(usual):
        return usual, ""
    if modality.has_text:
        advice = f"to try embeddings as well, run: {backbone_command(usual)}"
        return NONE, f"Models are trained on tf-idf features only; {advice}"
    how = "a small network is trained from scratch on thumbnails of the images"
    advice = f"To install one, run: {backbone_command(usual)}"
    return NONE, f"No pretrained model is installed: {how}. {advice}"


def list_candidates(job: Job) -> list[Candidate]:
    """What is tried; the first is selected unless another is clearly better."""
    options = job.options
    request = job.request
    modality = job.prepared.source.modality
    backbone = job.backbone
    requested = request.backbone is not None
    if options.make is not None:
        return [Candidate("custom", AS_READ if backbone == NONE else FEATURES)]
    if modality.has_images and request.features is None:
        if backbone == NONE:
            tiny = _is_tiny(job.prepared) and not requested
            return [Candidate(options.model or ("mlp" if tiny else "cnn"))]
        model = options.model or "mlp"
        with_features = Candidate(model, FEATURES)
        return [with_features] if requested else [with_features, Candidate(model)]
    if modality.has_text and request.features is None:
        model = options.model or "linear"
        if backbone == NONE:
            return [Candidate(model)]
        both = [Candidate(model, FEATURES), Candidate(model, BOTH)]
        return both if requested else [Candidate(model), *both]
    if options.model is not None:
        return [Candidate(options.model)]
    if modality is TABLE or request.features is not None:
        return [Candidate(model) for model in _MODELS]
    return [Candidate("mlp")]


def _is_tiny(data: PreparedData) -> bool:
    """Whether the images are too small for a pretrained model."""
    encoder = data.encoder
    return isinstance(encoder, ImageEncoder) and encoder.shortest_side < _SMALLEST_IMAGE


@dataclass(frozen=True)
class Trial:
    """A candidate that was trained."""

    candidate: Candidate
    data: PreparedData
    search: SearchResult

    @property
    def loss(self) -> float:
        """Its lowest validation loss at any learning rate."""
        curves = self.search.curves.values()
        return min((min(curve) for curve in curves if np.isfinite(curve).all()), default=np.inf)


_FILE = "search.json"


@dataclass(frozen=True)
class KeptSearch:
    """The content of search.json: a stopped call of `dross clean` continues from it."""

    recipe: RecipeSettings
    curves: dict[float, list[float]]
    searched_epochs: list[int]
    seconds_per_step: float
    enlarged: float
    encoding: Encoding
    note: str


def find_recipe(job: Job) -> tuple[Job, SearchResult]:
    """Search inputs, a model, a learning rate and epochs, or read the result of an earlier attempt.

    Returns:
        The job with the inputs of its models, and what the search found.
    """
    saved = read_intact(job.folder / _FILE, KeptSearch)
    if saved is not None:
        again = _reuse(job, saved)
        if again is not None:
            return again
    trials: list[Trial] = []
    features = None  # computed once
    diverged = None
    for candidate in list_candidates(job):
        if candidate.inputs != AS_READ and features is None:
            features = compute_features(
                job.prepared,
                job.backbone,
                job.folder,
                job.info.digest,
                device=job.device,
                progress=job.progress,
            )
        data = encode(job.prepared, candidate.inputs, job.backbone, features)
        try:
            trials.append(Trial(candidate, data, _search(job, candidate.model, data)))
        except Diverged as error:
            diverged = error
    if not trials:
        assert diverged is not None
        raise diverged
    best = trials[0]
    for trial in trials[1:]:
        if trial.loss < best.loss - max(_CLEARLY_BETTER * best.loss, _LEAST_DIFFERENCE):
            best = trial
    model = best.candidate.describe(job)
    note = ""
    if len(trials) > 1:
        losses = ", ".join(f"{trial.candidate.describe(job)} {trial.loss:.3f}" for trial in trials)
        note = f"Held-out loss: {losses}. Selected: {model}."
        job.say(note)
    search = best.search
    recipe = search.recipe
    kept = KeptSearch(
        recipe=recipe.settings,
        curves=search.curves,
        searched_epochs=search.epochs,
        seconds_per_step=search.seconds_per_step,
        enlarged=search.enlarged,
        encoding=best.data.encoding,
        note=note,
    )
    write_sealed(job.folder / _FILE, kept)
    job.say(
        f"Model: {model}, learning rate {recipe.rate:g}, {recipe.epochs} epochs in batches of "
        f"{recipe.batch_size} ({_describe_origins(job)})."
    )
    return replace(job, prepared=_add_note(best.data, note)), search


def count_trainings(job: Job) -> int:
    """How many progress bars `find_recipe` shows, about."""
    of_each = 1 if job.options.epochs is not None else len(SEARCHED_EPOCHS)
    return of_each * len(list_candidates(job)) + (job.backbone != NONE)


def _search(job: Job, model: str, data: PreparedData) -> SearchResult:
    """Search a learning rate on the validation set, or on a fifth of the training set."""
    x, y = data.pair("train")
    held_out = data.pair("validation")
    if not len(data.parts["validation"]):
        rng = np.random.default_rng(mix_seeds(job.request.seed, 5))
        groups = job.prepared.part("train").groups
        if groups is None:
            order = torch.from_numpy(rng.permutation(len(y)))
            ids = order[: len(y) // 5]
            learned = order[len(y) // 5 :]
        else:
            is_held = hold_out_groups(join_groups(np.arange(len(y)), groups), 0.2, rng)
            ids = torch.from_numpy(np.flatnonzero(is_held))
            learned = torch.from_numpy(np.flatnonzero(~is_held))
        held_out = (x[ids], y[ids])
        x = x[learned]
        y = y[learned]
    return search_rate(
        _base_recipe(job, model, data),
        x,
        y,
        held_out,
        rates=None if job.options.lr is None else (job.options.lr,),
        epochs=job.options.epochs,
        seed=job.request.seed,
        progress=job.progress,
    )


def _reuse(job: Job, saved: KeptSearch) -> tuple[Job, SearchResult] | None:
    """What an earlier attempt found; None if its features cannot be read any more."""
    try:
        data = encode_again(job.prepared, saved.encoding, job.folder, job.info.digest)
    except CorruptFile:
        return None
    recipe = _base_recipe(job, saved.recipe.model, data)
    recipe = replace(recipe, rate=saved.recipe.rate, epochs=saved.recipe.epochs)
    found = SearchResult(
        recipe,
        curves=saved.curves,
        epochs=saved.searched_epochs,
        seconds_per_step=saved.seconds_per_step,
        enlarged=saved.enlarged,
    )
    return replace(job, prepared=_add_note(data, saved.note)), found


def _add_note(data: PreparedData, note: str) -> PreparedData:
    return replace(data, notes=[*data.notes, note]) if note else data


def lower_rate(job: Job, recipe: Recipe) -> Recipe:
    """A third of the learning rate, also where a stopped call of `dross clean` continues."""
    path = job.folder / _FILE
    lowered = replace(recipe, rate=recipe.rate / 3)
    write_sealed(path, replace(read_sealed(path, KeptSearch), recipe=lowered.settings))
    return lowered


def _base_recipe(job: Job, model: str, data: PreparedData) -> Recipe:
    """Everything but the learning rate and the epochs."""
    options = job.options
    make = None if options.make is None else import_function(options.make)
    return Recipe(
        model="custom" if make else model,
        inputs=data.shape,
        outputs=data.outputs,
        loss=data.source.task.loss,
        batch_size=options.batch_size or default_batch_size(job.count),
        make=make,
        device=str(job.device),
    )


def _describe_origins(job: Job) -> str:
    """Which of the numbers were chosen by the search, and which by the user."""
    options = job.options
    values = {"lr": options.lr, "epochs": options.epochs, "batch_size": options.batch_size}
    chosen = [f"`{name}`" for name, value in values.items() if value is None]
    if not chosen:
        return "as specified"
    rest = "; the rest as specified" if len(chosen) < len(values) else ""
    return f"chosen automatically; change with {', '.join(chosen)}{rest}"
