"""The commands, in the order of the help.

Slow imports are made by the command that needs them: `dross --help` needs none.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from .._checks import check_folder
from .._text import say_count
from ..errors import InvalidInput
from . import options as option
from .app import app, command
from .output import (
    choose_say,
    console,
    print_findings,
    print_json,
    print_tape,
    print_verdict,
    project_as_json,
    say,
    say_path,
    verdict_as_json,
)

if TYPE_CHECKING:
    from ..cleaning.edits import NothingToChange
    from ..cleaning.project import Project
    from ..cleaning.verdict import Verdict


@command(app)
def demo(
    out: Annotated[
        Path,
        Option(metavar="FOLDER", help="The output folder. An earlier demo in it is replaced."),
    ] = Path("runs/demo"),
    seeds: Annotated[
        int, Option(min=2, metavar="N", help="The number of fresh seeds for the verdict.")
    ] = 10,
) -> None:
    """Clean 900 images of digits, 5 % of which are deliberately mislabeled.

    Examines every label with out-of-fold predictions, recommends what to relabel or remove,
    judges the recommendation with fresh seeds on held-out images, writes a cleaned copy, and
    reports how many labels are wrong before and after. The images come with scikit-learn.
    """
    from ..demo import FLIPPED_SHARE, TRAIN, run_demo

    console.print(f"{TRAIN} images of digits, {FLIPPED_SHARE:.0%} of them deliberately mislabeled.")
    result = run_demo(out, seeds=seeds, say=say)
    console.print(
        f"\nThe plan changes {result.acted_on} instances: {result.found} of the {result.flipped} "
        f"mislabeled ones, and {result.acted_on - result.found} others."
    )
    console.print(
        f"Wrong labels: {result.flipped} of {TRAIN} before, {result.wrong_left} of "
        f"{result.written} in the cleaned copy, {result.copy}."
    )
    before, after = result.errors
    console.print(
        f"A logistic regression misclassifies {before:.1%} of the test digits if it is trained on "
        f"the data as given, and {after:.1%} if it is trained on the cleaned copy.\n"
    )
    print_verdict(result.verdict)
    folder = result.project.folder
    say_path(f"\nRead the report: {folder / 'report.html'}")
    say_path(f"Review it:       dross review {shlex.quote(str(folder))}")


@command(app, examples=option.CLEAN_EXAMPLES)
def clean(
    data: option.Data,
    label: option.Label = None,
    text: option.TextColumn = None,
    images: option.ImageColumn = None,
    labels: option.Labels = None,
    validation: option.Validation = None,
    validation_is_clean: option.ValidationIsClean = False,
    test: option.Test = None,
    task: option.Task = None,
    column: option.Column = None,
    group: option.Group = None,
    time: option.Time = None,
    separator: option.Separator = None,
    na: option.Missing = None,
    sheet: option.Sheet = None,
    features: option.Features = None,
    backbone: option.Backbone = None,
    model: option.Model = None,
    lr: option.Rate = None,
    epochs: option.Epochs = None,
    batch_size: option.BatchSize = None,
    repeats: option.Repeats = 4,
    check: option.Check = 16,
    seed: option.Seed = 0,
    device: option.Device = None,
    out: option.Out = None,
    overwrite: option.Overwrite = False,
    quiet: option.Quiet = False,
    as_json: option.Json = False,
) -> None:
    """Find the training instances that make a model worse.

    Examines the label of every row with out-of-fold predictions, and scores every row by how much
    it raises the error on held-out rows. Compares plans that relabel or remove rows with changing
    nothing, and recommends one only if models improve by more than chance would explain. Also
    finds duplicates, and writes a report. The input is never changed. To resume a command that was
    stopped, run it again.

    If the data does not show whether labels are wrong or classes overlap, dross lists labels to
    check. Check them with dross review and run the same command again: it takes your answers into
    account, and keeps the recorded runs and all decisions.

    For chats, use dross clean-chats.
    """
    from ..cleaning.pipeline import clean as clean_data

    is_function = model is not None and ":" in model
    project = clean_data(
        data,
        label,
        out=out,
        text=text,
        images=images,
        validation=validation,
        test=test,
        task=task,
        columns=dict(map(_read_column_kind, column or [])),
        group=group,
        time=time,
        separator=separator,
        na=na or None,
        sheet=sheet,
        features=features,
        backbone=backbone,
        model=None if is_function else model,
        make=model if is_function else None,
        labels=labels,
        repeats=repeats,
        lr=lr,
        epochs=epochs,
        batch_size=batch_size,
        check=check,
        validation_is_clean=validation_is_clean,
        seed=seed,
        device=device,
        overwrite=overwrite,
        progress=not quiet,
        say=choose_say(quiet, as_json),
    )
    _print_project(project, quiet, as_json)


def _read_column_kind(option: str) -> tuple[str, str]:
    name, equals, kind = option.rpartition("=")
    if not equals:
        raise InvalidInput(f"--column takes NAME=KIND, such as zip=category; '{option}' has no =.")
    return name, kind


def _print_project(project: "Project", quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(project_as_json(project))
    elif not quiet:
        print_findings(project)


@command(app, examples=option.CHATS_EXAMPLES)
def clean_chats(
    data: Annotated[str, Argument(help="A JSONL or Parquet file of chats, or the URL of one.")],
    model: Annotated[
        str,
        Option(
            metavar="PATH_OR_NAME",
            help="The language model to fine-tune: a folder, a GGUF file, a PEFT adapter, or the "
            "name of a model on the Hugging Face Hub.",
        ),
    ],
    lora: Annotated[
        int | None,
        Option(min=1, metavar="RANK", help="Train adapters of this rank instead of the weights."),
    ] = None,
    last_layers: Annotated[
        int | None, Option(min=1, metavar="N", help="Train only the last N layers.")
    ] = None,
    prompt: Annotated[
        str | None,
        Option(metavar="COLUMN", help="The column with the prompts. Default: detected."),
    ] = None,
    response: Annotated[
        str | None,
        Option(metavar="COLUMN", help="The column with the responses. Default: detected."),
    ] = None,
    source: Annotated[
        str | None,
        Option(
            metavar="COLUMN",
            help="The column with the source of each row. Default: source, if it exists.",
        ),
    ] = None,
    template: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="A chat template to use instead of the tokenizer's: a file, or plain.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        Option(min=2, metavar="N", help="Truncate chats to N tokens. Default: 1024."),
    ] = None,
    validation: option.Validation = None,
    test: option.Test = None,
    repeats: Annotated[
        int,
        Option(
            min=1,
            metavar="N",
            help="The number of recorded fine-tuning runs to average the scores over.",
        ),
    ] = 2,
    lr: Annotated[
        float | None,
        Option(
            metavar="RATE",
            help="The learning rate. Default: 2e-4 for adapters, otherwise 2e-5.",
        ),
    ] = None,
    epochs: Annotated[int, Option(min=1, metavar="N", help="The number of epochs.")] = 3,
    batch_size: Annotated[
        int, Option(min=1, metavar="N", help="The number of chats per training step.")
    ] = 8,
    seed: option.Seed = 0,
    device: option.Device = None,
    force: Annotated[
        bool, Option("--force", help="Start a run that is expected to take more than an hour.")
    ] = False,
    out: option.Out = None,
    overwrite: option.Overwrite = False,
    quiet: option.Quiet = False,
    as_json: option.Json = False,
) -> None:
    """Find the chats that make a fine-tuned language model worse, and the tokens that do it.

    Fine-tunes the model on chats (messages, or prompts and responses), scores every chat and every
    token of its responses by how much it raises the loss on held-out chats, and recommends a plan
    only if models improve by more than chance would explain. The input is never changed. To resume
    a command that was stopped, run it again. Continue with dross review, judge and export.
    """
    from ..finetune.clean import clean_chats as clean_data

    project = clean_data(
        data,
        model,
        out=out,
        prompt=prompt,
        response=response,
        source=source,
        validation=validation,
        test=test,
        template=template,
        lora=lora,
        last_layers=last_layers,
        max_tokens=max_tokens,
        repeats=repeats,
        lr=lr,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        device=device,
        force=force,
        overwrite=overwrite,
        progress=not quiet,
        say=choose_say(quiet, as_json),
    )
    _print_project(project, quiet, as_json)


@command(app)
def review(
    run: option.ProjectFolder,
    port: Annotated[
        int | None, Option(metavar="PORT", help="The port to serve on. Default: a free one.")
    ] = None,
    host: Annotated[
        str,
        Option(
            metavar="ADDRESS",
            help="The address to serve on. Any address other than 127.0.0.1 gives access to anyone "
            "who has the link.",
        ),
    ] = "127.0.0.1",
    browser: Annotated[bool, Option(help="Open the browser.")] = True,
    trust_code: option.TrustCode = None,
) -> None:
    """Review the suggestions in the browser: keep, remove, or relabel.

    Every decision is saved at once and can be undone. The page can also judge the decisions; it
    runs data and models from module:function only if --trust-code names them.
    """
    from ..review.server import serve

    serve(run, port=port, host=host, open_browser=browser, trust_code=trust_code or [])


@command(app, examples=option.JUDGE_EXAMPLES)
def judge(
    run: option.ProjectFolder,
    remove: Annotated[
        int | None,
        Option(metavar="N", help="Judge the removal of the N most harmful instances."),
    ] = None,
    relabel: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Judge relabeling the N instances most likely to be mislabeled: each gets the "
            "label that the models predict.",
        ),
    ] = None,
    decisions: Annotated[
        bool, Option("--decisions", help="Judge the decisions made on the review page.")
    ] = False,
    plan: option.PlanName = None,
    seeds: option.Seeds = None,
    quick: option.Quick = False,
    jobs: option.Jobs = 1,
    estimator: option.Estimator = None,
    device: option.Device = None,
    trust_code: option.TrustCode = None,
    quiet: option.Quiet = False,
    as_json: option.Json = False,
) -> None:
    """Train new models with and without the changes, and compare them on held-out data.

    For every seed, three models start from the same weights: one is trained on the data as given,
    one with the changes, and one with the same number of random changes. They are evaluated on the
    test set if there is one, and otherwise by cross-validation. The verdict is improved, worse, or
    inconclusive. By default, dross judges the decisions made on the review page, or else the
    recommended plan. Data and models from module:function are run only if --trust-code names them.

    The models are those of dross clean. With --estimator, they are your own: any scikit-learn
    estimator, or a function that returns one. It is trained on the same features, with the same
    seeds and edits. If seeds do not change it, each one draws a bootstrap sample of the training
    set.
    """
    from ..cleaning.edits import NothingToChange
    from ..cleaning.judge import judge as judge_project

    try:
        verdict = judge_project(
            run,
            remove=remove,
            relabel=relabel,
            decisions=decisions,
            plan=plan,
            seeds=seeds,
            quick=quick,
            n_jobs=jobs,
            device=device,
            trust_code=trust_code or [],
            estimator=estimator,
            progress=not quiet,
        )
    except NothingToChange as nothing:
        _print_no_verdict(nothing, run, quiet, as_json)
        return
    _print_verdict(verdict, run, quiet, as_json)


def _print_verdict(verdict: "Verdict", folder: Path, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(verdict_as_json(verdict, folder))
    elif not quiet:
        print_verdict(verdict)
        say_path(f"The report has the details: {folder / 'report.html'}")


def _print_no_verdict(nothing: "NothingToChange", folder: Path, quiet: bool, as_json: bool) -> None:
    """There is nothing to judge: an answer, not an error."""
    if as_json:
        print_json({"folder": str(folder), "verdict": None, "sentence": str(nothing)})
    elif not quiet:
        say(str(nothing))


@command(app, examples=option.COMPARE_EXAMPLES)
def compare(
    before: Annotated[
        str, Argument(help="The data before the change: a table, or a folder of images.")
    ],
    after: Annotated[str, Argument(help="The same data after the change.")],
    label: option.Label = None,
    text: option.TextColumn = None,
    images: option.ImageColumn = None,
    labels: option.Labels = None,
    test: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="A test set that was not used to make the change. Default: models are evaluated by "
            "cross-validation on BEFORE.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        Option(
            metavar="COLUMN",
            help="The column that identifies a row in both files. Default: rows are matched by "
            "their content.",
        ),
    ] = None,
    blind: Annotated[
        bool,
        Option(
            "--blind",
            help="The change was made without the labels of other rows, as by annotators who look "
            "at each row by itself. Without --test only such a change is called an improvement.",
        ),
    ] = False,
    task: option.Task = None,
    column: option.Column = None,
    group: option.Group = None,
    separator: option.Separator = None,
    na: option.Missing = None,
    sheet: option.Sheet = None,
    backbone: option.Backbone = None,
    estimator: option.Estimator = None,
    seeds: option.Seeds = None,
    quick: option.Quick = False,
    jobs: option.Jobs = 1,
    seed: option.Seed = 0,
    device: option.Device = None,
    fail_if_worse: Annotated[
        bool,
        Option(
            "--fail-if-worse", help="Exit with code 3 if the verdict is worse, as a check in CI."
        ),
    ] = False,
    out: option.Out = None,
    overwrite: option.Overwrite = False,
    quiet: option.Quiet = False,
    as_json: option.Json = False,
) -> None:
    """Judge a change to a dataset, whoever made it: another tool, a vendor, a script, a colleague.

    For every seed, three models start from the same weights: one is trained on BEFORE, one on
    AFTER, and one on BEFORE with a random change of the same size. They are evaluated on the test
    set if there is one, and otherwise by cross-validation on BEFORE: each row is evaluated by
    models that neither the row nor its changes have influenced. The verdict is improved, worse, or
    inconclusive.

    The folder of the results gets report.html, comparison.json, and summary.md for a comment on a
    pull request. Neither file is changed.
    """
    from ..cleaning.compare import compare as compare_versions
    from ..cleaning.compare import default_folder
    from ..cleaning.edits import NothingToChange

    folder = default_folder(before, after) if out is None else out
    try:
        verdict = compare_versions(
            before,
            after,
            label,
            test=test,
            key=key,
            out=folder,
            text=text,
            images=images,
            task=task,
            columns=dict(map(_read_column_kind, column or [])),
            blind=blind,
            group=group,
            separator=separator,
            na=na or None,
            sheet=sheet,
            labels=labels,
            backbone=backbone,
            estimator=estimator,
            seeds=seeds,
            quick=quick,
            seed=seed,
            device=device,
            n_jobs=jobs,
            overwrite=overwrite,
            progress=not quiet,
            say=choose_say(quiet, as_json),
        )
    except NothingToChange as nothing:
        _print_no_verdict(nothing, folder, quiet, as_json)
        return
    _print_verdict(verdict, folder, quiet, as_json)
    if fail_if_worse and verdict.verdict == "worse":
        raise Exit(code=3)


@command(app)
def export(
    run: option.ProjectFolder,
    to: Annotated[
        Path,
        Argument(
            help="The cleaned copy: a table in the format given by the file extension, or a folder "
            "for images."
        ),
    ],
    remove: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Leave out the N most harmful instances, instead of applying the decisions.",
        ),
    ] = None,
    relabel: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Relabel the N instances most likely to be mislabeled: each gets the label that "
            "the models predict.",
        ),
    ] = None,
    plan: option.PlanName = None,
    overwrite: Annotated[
        bool,
        Option("--overwrite", help="Replace the copy if it exists: a file, or an earlier export."),
    ] = False,
    quiet: option.Quiet = False,
) -> None:
    """Write a cleaned copy of the data, and the list of decisions. The input is never changed.

    By default, the decisions made on the review page are applied, or else the recommended plan.
    """
    from ..cleaning.export import export as export_project

    done = export_project(run, to, remove=remove, relabel=relabel, plan=plan, overwrite=overwrite)
    if quiet:
        return
    say_path(
        f"{done.cleaned}: {done.written:,} instances; "
        f"{done.removed} removed, {done.relabeled} relabeled.\nDecisions: {done.decisions}"
    )
    if done.unexamined:
        more = say_count(done.unexamined, "more instance was", "more instances were")
        say(f"{more} copied unchanged: unlabeled or unreadable.")
    if done.note:
        say(done.note)


@command(app)
def info(
    tape: Annotated[
        str, Argument(help="The folder of the recorded run, or the URL of a copy of it.")
    ],
    as_json: option.Json = False,
) -> None:
    """Describe a recorded run: the model, the number of steps, and the files of the tape.

    Every file is read and compared with its digest, so damage is found.
    """
    from ..tape.format import MANIFEST
    from ..tape.reader import Tape, summarize_tape
    from ..tape.storage import is_url

    folder = Path(check_folder(tape, "The location of a tape"))
    if not is_url(tape) and not (folder / MANIFEST).exists():
        inside = ", ".join(str(path.parent) for path in sorted(folder.glob(f"runs/*/{MANIFEST}")))
        if inside:
            raise InvalidInput(
                f"{tape} is a dross clean project. Pass one of its recorded runs: {inside}."
            )
    opened = Tape(tape)
    opened.check_files()
    if as_json:
        print_json({"tape": tape, **summarize_tape(opened), "intact": True})
    else:
        print_tape(opened)
