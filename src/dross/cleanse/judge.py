"""`dross judge`: does it help? New models with and without the edits, compared on the test part.

Nothing before the verdict has looked at the test part. For each seed three models start from the
same weights: one learns everything, one learns the edited data, and one, the control, learns data
with as many random edits. The verdict rests on the differences between them, seed by seed. The
interval covers both kinds of chance: the seeds, and which instances are in the test part. The
models are those of the project, or, with `with_model`, an estimator of the user's own.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..data.seeds import mix_seeds
from ..errors import BadInput, StorageFailed
from ..execution.devices import choose_device
from ..parallel.job_pool import sweep, uses_workers
from ..parallel.result_store import ResultStore
from ..support.arguments import check_count
from ..support.messages.option_names import name_option
from .edits import Edits, choose_edits
from .inputs.numbers import read_learnable
from .inputs.prepared import PreparedData
from .judging.doubted_labels import doubt_test_labels
from .judging.estimators import JudgingModel, find_model
from .judging.fit_seeds import FitSeeds, Learnable, flatten, try_seeds
from .judging.recorded_run import find_loss_unit, replay_recorded_run
from .judging.seeds import SeedOfThree
from .judging.status import check_writable, new_verdict_file, show_progress
from .judging.told import report_verdict
from .judging.train_seeds import TrainSeeds
from .learning.edited_data import EncodedEdits
from .learning.recipe import Recipe
from .plans.known import find_vanished
from .project import Project
from .project_files import delete_stale_files, delete_written, write_sealed
from .registered import judge_of
from .reopen import reopen_inputs
from .report import write_report
from .verdict import (
    WITHOUT_CHANCES,
    Verdict,
    advise,
    compare_metric,
    compare_without,
    decide_verdict,
    describe_verdict,
    warn_of_reuse,
    warn_of_vanished,
)

QUICK_SEEDS, SEEDS = 6, 10  # with fewer than 6 the sign-flip test cannot be sure of anything
_MAX_SEEDS = 1000
_FRESH = 1_000_003  # the stream of seeds that nothing before the verdict has used
_CONTROL = 7  # the stream within it that draws the control's edits
_SEEDS_SIDE_BY_SIDE = 5


def judge(
    folder: str | Path,
    *,
    remove: int | None = None,
    relabel: int | None = None,
    decisions: bool = False,
    plan: str | None = None,
    seeds: int | None = None,
    quick: bool = False,
    progress: bool = True,
    n_jobs: int | None = None,
    trust_code: Sequence[str] = (),
    with_model: Any = None,
    device: str | None = None,
) -> Verdict:
    """Retrain with fresh seeds, with and without the edits, and compare on the test part.

    By default the edits are the decisions made on the page; where there are none, the recommended
    plan. Trained models are kept until the verdict and the report are written: to go on with a
    judgement that was stopped, call it again.

    Arguments:
        folder: a folder that `dross.clean` made.
        remove: judge the removal of the N most harmful instances.
        relabel: judge giving the N most probably mislabelled the label that the models predict.
        decisions: judge what was decided on the page, and nothing else.
        plan: judge a plan other than the recommended one: a name in `Project.plans`.
        seeds: how many seeds to train with; 10 by default, 6 with `quick` and for chats.
        quick: a first look: fewer seeds, and the recorded run is not retrained.
        progress: show progress bars where stderr is a terminal.
        n_jobs: how many processes to train in. A joblib.parallel_config around the call spreads
            the seeds over a cluster instead.
        trust_code: the `module:function`s that the project was made with and that may be run. A
            project never causes code to be imported that this call does not name.
        with_model: the model that judges, instead of the project's own: an estimator with the
            methods of scikit-learn; the name of one, `sklearn:HistGradientBoostingClassifier`; or
            `module:function`, which returns one. It is fitted on the same inputs, as [N, features],
            with the same seeds and edits. Classes are numbered in the order of `project.classes`.
            Every `random_state` is set from the seed; where that changes nothing, each seed draws a
            bootstrap sample of the training part instead. Without `predict_proba` only the error is
            compared.
        device: where models are trained: `cpu`, `cuda` or `mps`. By default a CUDA GPU if there is
            one, otherwise the CPU.

    Returns:
        The verdict. It is also written to the folder, and the report is written again.

    Raises:
        BadInput: there is nothing to judge, a number is out of range, the project needs code
            that `trust_code` does not name, or `with_model` cannot be found or fitted.
        TapeMismatch: the data or the model's module have changed since `dross.clean`.
        TapeDamaged: the folder is not a finished project, or a file is damaged.
        StorageFailed: the folder cannot be written.

    Example:
        verdict = dross.judge("runs/people", remove=50)
        print(verdict.verdict, verdict.sentence)
        dross.judge("runs/people", with_model=RandomForestClassifier(300))
    """
    project = Project.open(folder)
    edits = choose_edits(project, remove, relabel, decisions, plan)
    count = seeds if seeds is not None else QUICK_SEEDS if quick else SEEDS
    check_seeds(count)
    here = choose_device(device)
    uses_workers(n_jobs)  # raises if there cannot be that many
    check_writable(project.folder)
    delete_stale_files(project.folder)
    if (train := judge_of(project.about["kind"])) is not None:
        if with_model is not None:
            raise BadInput(
                "Chats are judged by the model that is fine-tuned: leave out "
                f"{name_option('with_model')}."
            )
        count = QUICK_SEEDS if seeds is None else seeds
        return _judge_otherwise(train, project, edits, count, device=here, progress=progress)
    model = None if with_model is None else find_model(with_model, project.about["task"])
    prepared, recipe = reopen_inputs(project, trust_code, with_model=model is None)
    recipe = replace(recipe, device=str(here))
    judgement = _Judgement(project, prepared, recipe, edits, count, progress, n_jobs, model)
    verdict = judgement.run(skip_recorded=quick)
    _keep_verdict(project, verdict, judgement.results.folder)
    return verdict


def _judge_otherwise(train: Any, project: Project, edits: Edits, seeds: int, **how: Any) -> Verdict:
    """Judge a project whose models are trained by a package above this one; see registered.py."""
    with show_progress(project.folder, seeds) as tell:
        verdict, store = train(project, edits, seeds, tell, **how)
    _keep_verdict(project, verdict, store.folder)
    return verdict


def _keep_verdict(project: Project, verdict: Verdict, results: Path) -> None:
    """Write the verdict and the report; then delete what the models said."""
    write_sealed(new_verdict_file(project.folder / "verdicts"), verdict.to_json())
    report_verdict(verdict, len(project.verdicts()))
    write_report(project)
    with suppress(StorageFailed):
        delete_written(project.folder, f"judging/{results.name}")
    with suppress(OSError):  # another judgement waits there to go on
        results.parent.rmdir()


def check_seeds(count: int) -> None:
    """Refuse, with BadInput, too few seeds for a comparison, and more than anybody needs."""
    if count < 2:
        raise BadInput("A comparison needs at least 2 seeds; 10 are a good number.")
    why = "each trains three models; 10 are a good number"
    check_count(count, "seeds", at_most=_MAX_SEEDS, because=why)


@dataclass(frozen=True)
class _Judgement:
    project: Project
    prepared: PreparedData
    recipe: Recipe
    edits: Edits
    seeds: int
    progress: bool
    n_jobs: int | None
    model: JudgingModel | None

    def run(self, skip_recorded: bool) -> Verdict:
        """Train, compare, decide."""
        _ = self.results  # encodes every label: an unknown one is refused before this writes
        with show_progress(self.project.folder, self.seeds) as tell:
            said = self._train(tell)
            tell(self.seeds, "retraining the recorded run")
            skip = skip_recorded or self.model is not None
            recorded_run = {} if skip else self._replay_recorded_run()
        return self._verdict(said, recorded_run)

    # --- training ---

    def _train(self, tell: Callable[[int], None]) -> dict[str, Tensor]:
        """What the models say of the test part, each [seeds, 3, test, ...].

        `outputs`, and where a model of the user's own predicts classes, `predicted`.
        """
        work, pieces, done = self._work, self._pieces, 0
        said: dict[int, dict[str, Tensor]] = {}
        options = {"n_jobs": self.n_jobs, "store": self.results, "progress": self.progress}
        for number, result in sweep(work, pieces, what="training", **options):
            said[number] = result
            done += len(pieces[number])
            tell(done)
        results = [said[number] for number in range(len(pieces))]
        return {name: torch.cat([one[name] for one in results]) for name in results[0]}

    @cached_property
    def _pieces(self) -> list[list[SeedOfThree]]:
        """Seeds that are trained together, one job each."""
        is_small = self.model is None and self.recipe.model in ("linear", "mlp")
        size = _SEEDS_SIDE_BY_SIDE if is_small else 1
        count = self.prepared.source.labels.size
        seeds = [
            SeedOfThree(number, mix_seeds(_FRESH, count, number), self._draw_control(number))
            for number in range(self.seeds)
        ]
        return [seeds[start : start + size] for start in range(0, self.seeds, size)]

    @cached_property
    def _work(self) -> TrainSeeds | FitSeeds:
        x, y = self.prepared.pair("train")
        edits, test = self._encoded_edits, self.prepared.x["test"]
        if self.model is None:
            return TrainSeeds(self.recipe, x, y, test, edits, self.seeds, self.progress)
        data, resample = Learnable.of(self.prepared), not self._tried[0]
        rest = (edits, resample, self.seeds, self.progress)
        return FitSeeds(self.model, data, flatten(test), *rest)

    @cached_property
    def _tried(self) -> tuple[bool, list[str]]:
        """Whether seeds make a difference to the user's own model, and what it warns of."""
        if self.model is None:
            return True, []
        if len(self._vanished) >= len(set(self.prepared.y["train"].flatten().tolist())) - 1 > 0:
            raise BadInput(
                "Only one class has instances in training after these edits: there is nothing left "
                f"to tell apart, and {self.model.name} cannot learn it. Remove fewer."
            )
        first, second = (mix_seeds(_FRESH, len(self.prepared.source), k) for k in (0, 1))
        inputs = flatten(self.prepared.x["validation"])
        data, seeds = Learnable.of(self.prepared), (first, second)
        return try_seeds(self.model, data, inputs, seeds, self.progress)

    @cached_property
    def _encoded_edits(self) -> EncodedEdits:
        return self._encode(self.edits.removed, self.edits.relabelled)

    @cached_property
    def _vanished(self) -> list[str]:
        labels, classes = self.project.instances["label"], self.prepared.source.classes
        return find_vanished(labels, self.edits.removed, self.edits.relabelled, classes)

    @cached_property
    def results(self) -> ResultStore:
        """Where the outputs are kept: one folder for each judgement that could be asked for."""
        about = self.project.about
        edits = hashlib.sha256(self._encoded_edits.to_bytes())
        for piece in self._pieces:
            for seed in piece:
                edits.update(seed.control.to_bytes())
        settings = {
            "data": about["digest"],
            "recipe": self.recipe.to_json(),
            "make": about["options"]["make"],
            "seeds": self.seeds,
            "altered": edits.hexdigest(),
        }
        if self.model is not None:
            settings["with"] = self.model.describe() | {"resampled": not self._tried[0]}
        name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        return ResultStore((self.project.folder / "judging" / name).absolute(), settings)

    def _draw_control(self, number: int) -> EncodedEdits:
        """As many removed, and as many given the label that the models predict, at random."""
        rng = np.random.default_rng(mix_seeds(_FRESH, _CONTROL, number))
        order = rng.permutation(len(self.prepared.y["train"]))
        removed = order[: len(self.edits.removed)]
        others = order[len(removed) :][: len(self.edits.relabelled)]
        predictions = self.project.instances["prediction"]
        return self._encode(removed, {int(id): str(predictions.loc[id]) for id in others})

    def _encode(self, removed: np.ndarray, relabelled: dict[int, str]) -> EncodedEdits:
        ids = np.array(list(relabelled), dtype=np.int64)
        if not relabelled:
            return EncodedEdits(removed, ids, None)
        labels = list(relabelled.values())
        if self._is_classification:
            unknown = set(labels) - set(self.prepared.source.classes)
            values = np.array(labels, dtype=object)
        else:
            read = {label: read_learnable(label) for label in labels}
            unknown = {label for label, number in read.items() if number is None}
            values = np.array([read[label] for label in labels], dtype=np.float64)
        if unknown:
            what = "one of the classes" if self._is_classification else "a number to learn"
            raise BadInput(
                f"Some instances were relabelled as '{min(unknown)}', which is not {what}."
            )
        return EncodedEdits(removed, ids, self.prepared.targets(values))

    def _replay_recorded_run(self) -> dict[str, dict[str, float]]:
        """Retrain All and Retrain Last: the first recorded run without the removed instances."""
        about, removed = self.project.about, self.edits.removed
        if self.edits.relabelled or about["rounds"] > 1 or not len(removed):
            return {}
        folder, seed = self.project.folder / "runs" / "round-1" / "run-0", about["request"]["seed"]
        return replay_recorded_run(self.recipe, self.prepared, folder, seed, removed)

    # --- comparing ---

    @property
    def _is_classification(self) -> bool:
        return self.prepared.source.task == "classification"

    def _verdict(self, said: dict[str, Tensor], recorded_run: dict) -> Verdict:
        """said: as `_train` returns it."""
        values = self._measure_all(said)
        metrics = {name: compare_metric(each) for name, each in values.items()}
        verdict, off = decide_verdict(metrics), next(iter(values.values()))
        doubted = doubt_test_labels(self.recipe, said, self.prepared.y["test"])
        advice = advise(verdict, metrics, self.seeds, len(self.prepared.y["test"]))
        gone = warn_of_vanished(self._vanished, self.prepared.part("test").labels)
        reuse = warn_of_reuse(len(self.project.verdicts()))
        warned = [f"The model warns: {line}" for line in self._tried[1][:1]]
        judge = None if self.model is None else self.model.name
        if "outputs" not in said:
            warned.append(f"{judge} has no predict_proba: {WITHOUT_CHANCES}.")
        return Verdict(
            made=time.strftime("%Y-%m-%d %H:%M"),
            what=self.edits.what,
            removed=len(self.edits.removed),
            relabelled=len(self.edits.relabelled),
            seeds=self.seeds,
            metrics=metrics,
            per_class=self._compare_classes(off) if self._is_classification else [],
            recorded=recorded_run,
            verdict=verdict,
            sentence=describe_verdict(
                verdict, metrics, self.edits, self.seeds, judge, resampled=not self._tried[0]
            ),
            settle=" ".join(filter(None, [advice, gone, *warned, reuse])),
            model=judge or self.recipe.model,
            resampled=not self._tried[0],
            without_doubted=compare_without(values, doubted, verdict),
        )

    def _measure_all(self, said: dict[str, Tensor]) -> dict[str, np.ndarray]:
        """The metrics, each float64 [seeds, 3, test]; first how far off each prediction is."""
        decided = said.get("outputs", torch.zeros(0))
        if "predicted" in said:
            decided = one_hot(said["predicted"], self.prepared.outputs).float()
        off = self._measure(self.recipe.errors, decided)
        if self._is_classification:
            metrics = {"error": off}
        else:
            metrics = {"absolute error": self.prepared.scale[1] * off}
        if "outputs" in said:
            losses = self._measure(self.recipe.losses, said["outputs"])
            metrics["loss"] = find_loss_unit(self.prepared) * losses
        return metrics

    def _measure(self, metric: Callable[..., Tensor], outputs: Tensor) -> np.ndarray:
        """float64 [seeds, 3, test]; metric: of the recipe."""
        y, flat = self.prepared.y["test"], outputs.reshape(-1, *outputs.shape[2:])
        return metric(flat, y).double().numpy().reshape(self.seeds, 3, len(y))

    def _compare_classes(self, off: np.ndarray) -> list[dict[str, Any]]:
        """off: float64 [seeds, 3, test]: 1 where a prediction is wrong."""
        y, rows = self.prepared.y["test"], []
        for place, name in enumerate(self.prepared.source.classes):
            members = (y == place).numpy()
            if members.any():
                before, after = (float(off[:, k][:, members].mean()) for k in (0, 1))
                count = int(members.sum())
                rows.append({"class": name, "count": count, "before": before, "after": after})
        return rows
