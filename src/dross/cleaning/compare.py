"""`dross compare`: does a change of the data help, whoever made it?

Two versions of a dataset are matched row by row: by a key, else by content. Both are then judged as
`dross judge` judges edits: new models learn each version, and a third one the version before with a
random change of the same size. Without a test file all rows are divided into folds. A fold has no
effect on the models that measure it: neither its rows nor what the change did to them.

All rows of the version before are measured, with the labels that they have there. Only rows whose
cells the change edited are left out, as it is not known which cells future rows will resemble. To
measure only rows that both versions share would favor any change that removes what is hard to
predict: the rows left over are easy, and the models after the change are trained to be sure of that.

The change itself may have been made by models that knew all labels. What they learned from the labels
of a fold is then in the labels that they changed outside of it, and models that learn these predict
the fold better than new rows (benchmarks/outcome/compare.py has the size of it). So without a test
file such a change can be worse, but it is not called an improvement.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._io import digest_json, temporary_folder, write_bytes
from .._progress import overall_progress, report
from .._text import render, safe
from ..distributed.jobs import ResultStore, uses_workers
from ..engine.device import choose_device
from ..errors import InvalidInput
from .checked_labels import group_copies
from .duplicates import find_copies
from .edits import ChosenEdits, NothingToChange
from .estimators import JudgingModel, find_model
from .files import find_place, stem_of
from .images import digest_image
from .inputs import (
    Request,
    digest_inputs,
    encode_sources,
    image_root,
    read_like,
    read_sources,
)
from .job import Job
from .judge import (
    QUICK_SEEDS,
    SEEDS,
    Judgment,
    RowLearner,
    append_test_rows,
    check_seeds,
    choose_judges,
    divide_into_folds,
    divide_passes,
)
from .label_noise import PRIORS, Rows, estimate_label_noise, principal_components
from .measures import tabulate_verdict
from .memory import is_in_memory, keep_files
from .modality import PreparedData, Source, data_digest, join_sources
from .model_choice import choose_backbone, count_trainings, find_recipe
from .pipeline import make_request
from .project import claimed_folder
from .project_files import USUAL, delete_written, write_sealed
from .project_info import JobInfo, Options
from .report import draw_verdict
from .splits import join_groups
from .tables import as_text
from .task import parse_numbers
from .training import Recipe
from .verdict import Setup, Verdict, reach_verdict, warn_of_vanished

QUICK_ASSIGNMENTS, ASSIGNMENTS = 1, 2  # of rows to folds
COMPARISON = "comparison.json"
_STAGES = {"search": 2, "copies": 1, "judging": 8}  # how long each takes, compared with the others
_SHOWN = 20  # changed rows in the report, of each kind


def compare(
    before: Any,
    after: Any,
    label: Any = None,
    *,
    test: Any = None,
    key: str | None = None,
    group: str | None = None,
    blind: bool = False,
    out: str | os.PathLike | None = None,
    text: str | None = None,
    images: str | None = None,
    task: str | None = None,
    columns: dict[str, str] | None = None,
    separator: str | None = None,
    na: Sequence[str] | None = None,
    sheet: str | None = None,
    labels: str | None = None,
    backbone: str | None = None,
    estimator: Any = None,
    seeds: int | None = None,
    quick: bool = False,
    seed: int = 0,
    device: str | None = None,
    n_jobs: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    say: Callable[[str], None] | None = None,
) -> Verdict:
    """Judge a change to a dataset, whoever made it: cleanlab, a vendor, a script, a colleague.

    New models are trained on both versions, and on the version before with a random change of the
    same size. They are evaluated on the test set, or without one on all rows of the version before,
    in folds that have no effect on the models that are evaluated on them.

    Arguments:
        before: the data before the change: a table, a folder of images with one folder per class,
            or data from Python's memory, as for `dross.clean`.
        after: the same after the change. Columns that `before` lacks are ignored.
        label: the column to predict; or the labels of `before`, and then `after` is (X, y).
        test: a test set, ideally with labels that are known to be right. The change must not have
            used it.
        key: the column that identifies a row in both versions. By default rows are matched by their
            content.
        group: a column of rows that belong together, as for `dross.clean`.
        blind: whether the change was made without the labels of other rows: by annotators who
            looked at each row by itself, or by new rows. Without a test set, only such a change is
            called an improvement: models that knew all labels have passed some of what they knew
            about a row on to the others.
        out: the folder of the report; by default one in runs/.
        text, images, task, columns, separator, na, sheet: how to read the data, as for
            `dross.clean`.
        labels: `annotated` or `observed`, as for `dross.clean`.
        backbone: a pretrained model for images or texts, as for `dross.clean`.
        estimator: the model to judge with, as for `dross.judge`; by default the network with the
            lowest held-out loss.
        seeds: how many times every row is measured; 10 by default, 6 with `quick`.
        quick: a first look: fewer seeds, and one assignment of rows to folds instead of two.
        seed: decides the search for a model; the verdict has seeds of its own.
        device: where to train: `cpu`, `cuda` or `mps`.
        n_jobs: how many processes to train in.
        overwrite: replace what dross wrote to the folder before.
        progress: show progress bars where stderr is a terminal.
        say: a function that gets a sentence about each stage; by default nothing is said.

    Returns:
        The verdict, with the numbers of rows that were `removed`, `relabeled`, `edited` and
        `added`. It is also written to the folder: report.html, summary.md and comparison.json.

    Raises:
        InvalidInput: the data or an argument cannot be used, or the versions have no row in common
            or do not differ.
        DrossError: the folder cannot be written.

    Example:
        verdict = dross.compare("before.csv", "after.csv", "income")
        assert verdict.verdict != "worse", verdict.sentence
    """
    if before is None or after is None:
        raise InvalidInput("Pass the data before and after the change.")
    if seeds is None:
        seeds = QUICK_SEEDS if quick else SEEDS
    check_seeds(seeds)
    uses_workers(n_jobs)  # raises if there cannot be that many
    where = choose_device(device)
    reading: dict[str, Any] = {
        "text": text,
        "images": images,
        "task": task,
        "columns": dict(columns or {}),
        "seed": seed,
        "separator": separator,
        "na": None if na is None else list(na),
        "sheet": sheet,
        "backbone": backbone,
        "group": group,
        "key": key,
    }
    folder = default_folder(before, after) if out is None else Path(out)
    say = say or (lambda _: None)
    with temporary_folder() if is_in_memory(before) else nullcontext(folder) as place:
        request = make_request(before, label, {"after": after, "test": test}, reading, place)
        located = request.located(place)
        if located.is_code:
            raise InvalidInput("Pass files, folders or the data themselves, not module:function.")
        files = digest_inputs(located)
        data, change, changed = read_change(located)
        say(change.describe(len(data.parts["train"]) - len(change.new)))
        options = Options(labels=labels)
        model = None if estimator is None else find_model(estimator, data.source.task)
        backbone, advice = choose_backbone(request, options, data)
        if advice:
            say(advice)
        info = JobInfo(
            request=request,
            options=options,
            digest=digest_json([data_digest(data), asdict(change)]),
            input_files=files,
        )
        job = Job(
            info=info,
            prepared=data,
            folder=folder,
            progress=progress,
            say=lambda _: None,  # of a search whose options `compare` does not have
            backbone=backbone,
            device=where,
        )
        with claimed_folder(folder, info, overwrite):
            if request.memory is not None:
                keep_files(place, folder)
            with overall_progress("dross compare", _STAGES, show=progress) as stages:
                stages.begin("search", bars=count_trainings(job))
                job, searched = find_recipe(job)
                say(f"Model: {searched.recipe.model if model is None else model.name}.")
                stages.begin("copies")
                copies, _ = find_copies(job.prepared, progress=progress)
                judgment = judge_change(
                    job.prepared,
                    change,
                    replace(searched.recipe, device=str(where)),
                    groups=join_groups(
                        group_copies(copies, {"train": 0}, len(data.parts["train"])),
                        data.part("train").groups,
                    ),
                    what=f"the change from {_name(before)} to {_name(after)}",
                    label_kind=job.labels,
                    seeds=seeds,
                    assignments=QUICK_ASSIGNMENTS if quick else ASSIGNMENTS,
                    blind=blind,
                    model=model,
                )
                stages.begin("judging")
                settings = {"job": info.job, **judgment.settings}
                store = ResultStore.under(folder / "judging", settings)
                values = judgment.measure(store, n_jobs=n_jobs, progress=progress)
            verdict = reach_verdict(values, judgment.setup)
            names = (_name(before), _name(after))
            write_comparison(folder, verdict, change, data, changed, names)
            delete_written(folder, "judging")
    report(verdict.numbers, 1)
    return verdict


def _name(data: Any) -> str:
    return "the data" if is_in_memory(data) else Path(str(data)).name


def default_folder(before: Any, after: Any) -> Path:
    """The folder of the results, in the current folder."""
    if is_in_memory(before):
        return Path(USUAL) / "comparison"
    names = [stem_of(find_place(data)) for data in (before, after)]
    return Path(USUAL) / f"{names[0]}-to-{names[1]}"


# --- what has changed -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """How the rows of a dataset differ from those of an earlier version of it.

    Rows that the version after has and the one before lacks (`new`) are numbered after those of the
    one before.
    """

    removed: list[int]  # ids of rows before
    relabeled: dict[int, Any]  # the id of a row before: its label after
    edited: dict[int, int]  # the id of a row before: that of the new row in its place
    added: list[int]  # ids of new rows in the place of none

    @property
    def new(self) -> np.ndarray:
        """The ids of all new rows, int64 [n]."""
        return np.array(sorted([*self.edited.values(), *self.added]), dtype=np.int64)

    @property
    def counts(self) -> dict[str, int]:
        """How many rows were removed, relabeled, edited and added."""
        return {
            "removed": len(self.removed),
            "relabeled": len(self.relabeled),
            "edited": len(self.edited),
            "added": len(self.added),
        }

    def describe(self, count: int) -> str:
        """The change in words. count: how many rows there were before."""
        touched = len(self.removed) + len(self.relabeled) + len(self.edited)
        parts = [f"{number:,} {name}" for name, number in self.counts.items() if number]
        return f"Of {count:,} rows: {', '.join(parts)}; {count - touched:,} are the same."


def read_change(request: Request) -> tuple[PreparedData, Change, Source]:
    """Read both versions and match their rows.

    Returns:
        One dataset whose training rows are those before and then the new ones; how it changed; and
        the new rows as they were read.

    Raises:
        InvalidInput: the versions cannot be compared, or do not differ.
    """
    assert request.after is not None
    place = find_place(request.after)
    sources = read_sources(request)
    before = sources["train"]
    after = read_like(before, place, request)
    after = replace(after, content=after.content[list(before.content.columns)])
    after.check_learnable()
    if request.key is None:
        pairs, edited = _match_contents(request, before, after)
    else:
        pairs, edited = _match_keys(request, before, after)
    if not pairs:
        raise InvalidInput(
            f"{request.after} and {request.data} have no rows in common. Check that they are two "
            "versions of the same data; if every row was edited, use `key` to pass the column "
            "that identifies a row."
        )
    count = len(before)
    matched = np.array([one for one, _ in pairs])
    kept = np.union1d(matched, list(edited)) if edited else matched
    other = np.setdiff1d(np.arange(len(after)), [two for _, two in pairs])
    numbers = {int(two): count + number for number, two in enumerate(other)}
    replaced = {one: numbers[two] for one, two in edited.items()}
    change = Change(
        removed=np.setdiff1d(np.arange(count), kept).tolist(),
        relabeled={
            one: after.labels[two] for one, two in pairs if before.labels[one] != after.labels[two]
        },
        edited=replaced,
        added=sorted(set(numbers.values()) - set(replaced.values())),
    )
    if not any(change.counts.values()):
        raise NothingToChange(
            f"{request.data} and {request.after} have the same rows with the same labels: there "
            "is nothing to compare."
        )
    new = after.take(other)
    whole = join_sources([before, new])
    return encode_sources(request, {**sources, "train": whole}), change, new


Pairs = list[tuple[int, int]]  # ids of a row before and after


def _match_contents(
    request: Request, before: Source, after: Source
) -> tuple[Pairs, dict[int, int]]:
    """Rows with the same content, the same label first; then edited rows, if none was moved."""
    contents = _list_contents(request.data, before), _list_contents(request.after, after)
    labeled = list(zip(contents[0], before.labels)), list(zip(contents[1], after.labels))
    left = list(range(len(before))), list(range(len(after)))
    same = _pair_up(*labeled, *left)
    left = _without(same, *left)
    relabeled = _pair_up(*contents, *left)
    left = _without(relabeled, *left)
    stayed = set(left[0]) & set(left[1]) if len(before) == len(after) else set()
    return [*same, *relabeled], {id: id for id in sorted(stayed)}


def _pair_up(
    one: Sequence[Any], other: Sequence[Any], ids: Sequence[int], others: Sequence[int]
) -> Pairs:
    """Pairs of ids whose values are equal; each id is used once, and the first ones first."""
    places: dict[Any, list[int]] = {}
    for id in reversed(others):
        places.setdefault(other[id], []).append(id)
    return [(id, places[one[id]].pop()) for id in ids if places.get(one[id])]


def _without(pairs: Pairs, ids: list[int], others: list[int]) -> tuple[list[int], list[int]]:
    """The ids that are not in pairs."""
    used = {id for id, _ in pairs}
    taken = {id for _, id in pairs}
    return [id for id in ids if id not in used], [id for id in others if id not in taken]


def _list_contents(path: str | None, source: Source) -> list[str]:
    """What identifies each row: its cells, as text that does not depend on how a number is written;
    or a digest of its image.
    """
    if source.modality.has_images:
        assert path is not None
        root = image_root(find_place(path))
        return [digest_image(root / name) for name in source.content["path"]]
    cells = []
    for name in source.content.columns:
        column = source.content[name]
        texts = as_text(column).fillna("").str.strip()
        numbers = parse_numbers(column)
        cells.append(texts.where(numbers.isna(), numbers.map(repr)).tolist())
    return ["\x1f".join(row) for row in zip(*cells)] if cells else [""] * len(source)


def _match_keys(request: Request, before: Source, after: Source) -> tuple[Pairs, dict[int, int]]:
    """Rows with the same key; those whose content differs are edited."""
    assert request.after is not None and request.key is not None
    assert before.keys is not None and after.keys is not None
    keys = [
        _check_keys(request.data, request.key, before.keys),
        _check_keys(request.after, request.key, after.keys),
    ]
    place = {key: two for two, key in enumerate(keys[1])}
    both = [(one, place[key]) for one, key in enumerate(keys[0]) if key in place]
    contents = [_list_contents(request.data, before), _list_contents(request.after, after)]
    pairs = [(one, two) for one, two in both if contents[0][one] == contents[1][two]]
    return pairs, dict(sorted(set(both) - set(pairs)))


def _check_keys(path: str, name: str, keys: np.ndarray) -> list[str]:
    """The key of each row; raises InvalidInput where it does not identify the row."""
    values, counts = np.unique(keys.astype(str), return_counts=True)
    if counts.max() > 1:
        example = values[counts.argmax()]
        what = f"'{example}'" if example else "empty"
        raise InvalidInput(
            f"'{name}' is {what} in {counts.max()} rows of {path}. A key must be different in every "
            "row."
        )
    return keys.tolist()


# --- the judgment --------------------------------------------------------------------------------


def judge_change(
    data: PreparedData,
    change: Change,
    recipe: Recipe,
    *,
    groups: np.ndarray,
    what: str,
    label_kind: str,
    seeds: int,
    assignments: int,
    blind: bool,
    model: JudgingModel | None = None,
) -> Judgment:
    """A judgment on test rows, or on all rows before the change in folds.

    Arguments:
        data: The rows before and then the new ones are the training set.
        change: Of the rows.
        recipe: Of the networks.
        groups: The group of each training row; rows of a group are in one fold.
        what: The change in words.
        label_kind: annotated or observed.
        seeds: The number of passes.
        assignments: Of rows to folds, if there is no test set.
        blind: Whether the change was made without the labels of other rows.
        model: An estimator to judge with instead of networks.
    """
    inputs, y = data.pair("train")
    classes = data.source.classes
    new = change.new
    labels = y.numpy() if classes else data.part("train").labels
    rows = Rows.of(
        inputs.flatten(1).numpy(), labels, len(classes), groups=_join_edited(groups, change)
    )
    removed = np.array(sorted([*change.removed, *change.edited]), dtype=np.int64)
    relabeled = {
        id: classes.index(label) if classes else float(label)
        for id, label in change.relabeled.items()
    }
    edits = ChosenEdits(removed, relabeled, what, ranked=not blind, blind=blind)
    nested = not len(data.parts["test"])
    if nested:
        measured = choose_measured(len(rows), change)
        if not measured.any():
            raise InvalidInput(
                "Every row was edited, so no unchanged rows are left to evaluate models on. Pass a "
                "test set with `test`."
            )
        pieces = divide_into_folds(rows, seeds, assignments, measured)
    else:
        rows = append_test_rows(rows, data)
        measured = rows.validation
        is_small = model is None and recipe.model in ("linear", "mlp")
        pieces = divide_passes(measured, seeds, together=is_small)
    x = torch.from_numpy(rows.x).reshape(-1, *inputs.shape[1:]).to(inputs.dtype)
    names = np.array(classes, dtype=object)[rows.y[measured]] if classes else None
    left = {*change.relabeled.values()}
    stays = np.setdiff1d(np.arange(len(y)), [*removed, *change.relabeled])
    left |= set(data.part("train").labels[stays].tolist())
    vanished = [name for name in classes if name not in left]
    notes = [] if names is None else [warn_of_vanished(vanished, names)]
    settings: dict[str, Any] = {
        "recipe": asdict(recipe.settings),
        "seeds": seeds,
        "assignments": assignments if nested else 0,
        "labels": label_kind,
    }
    judges = choose_judges(model, recipe, data, x, pieces[0].fold)
    settings["estimator"] = judges.settings
    z = principal_components(rows.x)
    noise = None
    if not nested:
        given = np.setdiff1d(np.arange(len(rows)), new)
        noise = estimate_label_noise(rows.take(given), PRIORS[label_kind], z=z[given])
    learner = RowLearner(
        predict=judges.predict,
        rows=rows,
        x=x,
        y=y,
        scale=data.scale,
        edits=edits,
        rule=None,
        label_kind=label_kind,
        noise=noise,
        z=z,
        new=new,
    )
    setup = Setup(
        edits=edits,
        changed=change.counts,
        model=judges.name,
        is_estimator=model is not None,
        groups=rows.groups[measured],
        classes=classes,
        class_of_row=names,
        notes=[*notes, *judges.notes],
        resampled=judges.resampled,
        nested=nested,
    )
    return Judgment(setup, learner, pieces, seeds, settings)


def choose_measured(count: int, change: Change) -> np.ndarray:
    """Which training rows models are evaluated on, bool [count]: those before, but for edited ones."""
    return ~np.isin(np.arange(count), [*change.new, *change.edited])


def _join_edited(groups: np.ndarray, change: Change) -> np.ndarray:
    """The groups of the rows, with every edited row in that of the row that it replaces."""
    groups = groups.copy()
    for before, after in change.edited.items():
        groups[groups == groups[after]] = groups[before]
    return groups


# --- the report -----------------------------------------------------------------------------------


def write_comparison(
    folder: Path,
    verdict: Verdict,
    change: Change,
    data: PreparedData,
    new: Source,
    names: tuple[str, str],
) -> None:
    """Write comparison.json, report.html and summary.md."""
    whole = data.part("train")
    shown = {
        "relabeled": _show_relabeled(whole, change),
        "removed": _show_rows(whole, change.removed),
        "added": _show_rows(whole, change.added),
    }
    values = {
        "names": names,
        "verdict": verdict.to_json(),
        "measures": tabulate_verdict(verdict.to_json()),
        "counts": change.counts,
        "rows": len(whole) - len(new),
        "pairs": _count_pairs(whole, change),
        "shown": shown,
    }
    figure = safe(draw_verdict(verdict.to_json()))
    write_bytes(folder / "report.html", render("compare.html", figure=figure, **values).encode())
    write_bytes(folder / "summary.md", render("compare.md", **values).encode())
    write_sealed(folder / COMPARISON, {"verdict": verdict.to_json(), "change": asdict(change)})


def _count_pairs(whole: Source, change: Change) -> list[tuple[str, str, int]]:
    """How often which label was replaced by which, the most frequent first; none for numbers."""
    if not whole.classes:
        return []
    pairs = Counter((str(whole.labels[id]), label) for id, label in change.relabeled.items())
    return [(*pair, count) for pair, count in pairs.most_common(_SHOWN)]


def _show_relabeled(whole: Source, change: Change) -> list[dict[str, str]]:
    names = whole.names
    show = whole.task.show
    return [
        {"row": names[id], "label": show(whole.labels[id]), "after": show(label)}
        for id, label in list(change.relabeled.items())[:_SHOWN]
    ]


def _show_rows(whole: Source, ids: Sequence[int]) -> list[dict[str, str]]:
    names = whole.names
    show = whole.task.show
    return [{"row": names[id], "label": show(whole.labels[id])} for id in ids[:_SHOWN]]
