"""The verdict of a project of chats: fine-tuned before, after, and without as many at random.

For each fresh seed three models start from the same weights and take the same number of steps. They
are compared by their loss and their expected error on the test part, example by example.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import torch

from .._progress import progress_bar
from ..cleaning.chats import CHATS
from ..cleaning.edits import Edits
from ..cleaning.project import Project
from ..cleaning.project_files import explain_lack
from ..cleaning.registered import set_judge
from ..cleaning.reopen import read_request
from ..cleaning.verdict import (
    Verdict,
    advise,
    compare_metric,
    decide_verdict,
    describe_verdict,
    warn_of_reuse,
)
from ..data.seeds import mix_seeds
from ..distributed.jobs import ResultStore
from ..errors import InputChanged
from .clean import make_tuner, open_examples
from .model import load
from .options import ChatOptions
from .tuner import Tuner

_FRESH = 1_000_003  # the stream of seeds that nothing before the verdict has used
_CONTROL = 7  # the stream within it that draws what the control leaves out


def judge_chats(
    project: Project,
    edits: Edits,
    seeds: int,
    tell: Callable[[int], None],
    *,
    device: torch.device,
    progress: bool,
) -> tuple[Verdict, ResultStore]:
    """Fine-tune three models per seed and compare them on the test part.

    Arguments:
        project: Of chats.
        edits: What to leave out.
        seeds: How many seeds.
        tell: Called with how many are done.
        device: Where to train.
        progress: Whether to show a bar.

    Returns:
        The verdict, and what was kept of it in case it is stopped.

    Raises:
        InputChanged: the data or the model have changed since `dross clean`.
        CorruptFile: project.json lacks something.
    """
    tuner, train, test = _reopen(project, device, progress)
    store = _store(project, edits, seeds)
    store.begin()
    values, total = [], 3 * seeds * tuner.steps
    with progress_bar("fine-tuning with and without them", total, show=progress) as advance:
        for number in range(seeds):
            kept = store.get(number)
            if kept is None:
                measured = _measure_seed(tuner, train, test, edits.removed, number, advance)
                kept = {"values": torch.from_numpy(measured)}
                store.put(number, kept)
            values.append(kept["values"].numpy())
            tell(number + 1)
    return _decide(project, edits, np.stack(values)), store


def _reopen(
    project: Project, device: torch.device, progress: bool
) -> tuple[Tuner, list[int], list[int]]:
    """The model and the examples as `dross clean` had them."""
    about, request = project.about, read_request(project)
    said = about.get("options")
    known = {field.name for field in fields(ChatOptions)}
    if not isinstance(said, dict) or set(said) != known:
        raise explain_lack(project.folder, "options")
    options = ChatOptions(**said)
    loaded = load(options)
    examples, _ = open_examples(request, options, loaded, device, progress=progress)
    for what, same in (
        (request.data, examples.digest == about.get("digest")),
        (options.model, loaded.digest == about.get("model_digest")),
    ):
        if not same:
            raise InputChanged(
                f"{what} has changed since dross clean read it. Put it back as it was, or run "
                "dross clean again."
            )
    train, test = (examples.parts[part].tolist() for part in ("train", "test"))
    return make_tuner(loaded, examples, options, device), train, test


def _store(project: Project, edits: Edits, seeds: int) -> ResultStore:
    removed = hashlib.sha256(np.sort(edits.removed).tobytes()).hexdigest()
    settings = {"data": project.about["digest"], "removed": removed, "seeds": seeds}
    settings |= {"options": project.about["options"], "model": project.about.get("model_digest")}
    name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    return ResultStore((project.folder / "judging" / name).absolute(), settings)


def _measure_seed(
    tuner: Tuner,
    train: list[int],
    test: list[int],
    removed: np.ndarray,
    number: int,
    advance: Callable[[int], None],
) -> np.ndarray:
    """float64 [2 (loss, error), 3 (before, after, random), test]."""
    order = np.random.default_rng(mix_seeds(_FRESH, _CONTROL, number)).permutation(len(train))
    left_out = (np.zeros(0, dtype=np.int64), removed, order[: len(removed)])
    found = []
    for ids in left_out:
        tuner.train(np.delete(train, ids).tolist(), mix_seeds(_FRESH, number), advance)
        found.append(tuner.measure(test))
    return np.ascontiguousarray(np.stack(found, axis=1))


def _decide(project: Project, edits: Edits, values: np.ndarray) -> Verdict:
    """values: [seeds, 2, 3, test]."""
    seeds, tested = len(values), values.shape[3]
    metrics = {
        name: compare_metric(values[:, place]) for place, name in enumerate(("loss", "error"))
    }
    verdict = decide_verdict(metrics)
    advice = advise(verdict, metrics, seeds, tested)
    reuse = warn_of_reuse(len(project.verdicts()))
    return Verdict(
        made=time.strftime("%Y-%m-%d %H:%M"),
        what=edits.what,
        removed=len(edits.removed),
        relabelled=0,
        seeds=seeds,
        metrics=metrics,
        per_class=[],
        verdict=verdict,
        sentence=describe_verdict(verdict, metrics, edits, seeds, rows=tested),
        settle=" ".join(filter(None, [advice, reuse])),
        model=project.about["options"]["model"],
        rows=tested,
    )


set_judge(CHATS, judge_chats)
