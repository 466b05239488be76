"""The commands, in the order of the help.

Slow imports are made by the command that needs them: `dross --help` needs none.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

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
    from ..cleaning.project import Project


@command(app)
def demo(
    out: Annotated[
        Path, Option(help="Where everything goes. What an earlier demo left there is replaced.")
    ] = Path("runs/demo"),
    seeds: Annotated[int, Option(min=2, help="How many fresh seeds the verdict rests on.")] = 10,
) -> None:
    """Clean 900 digits of scikit-learn, 5 % of whose labels are wrong on purpose.

    Reads them as images, examines every label with out-of-fold predictions, recommends what to
    relabel or remove, judges that with fresh seeds on parts of the data that had no part in it,
    writes a cleaned copy, and says how many labels are wrong before and after.
    """
    from ..demo import FLIPPED_SHARE, TRAIN, run_demo

    console.print(
        f"{TRAIN} digits in one folder, {FLIPPED_SHARE:.0%} of them with a wrong label on purpose."
    )
    result = run_demo(out, seeds=seeds, say=say)
    console.print(
        f"\nThe plan touches {result.acted_on} instances. {result.found} of them are among the "
        f"{result.flipped} whose label was flipped; it misses {result.flipped - result.found}."
    )
    console.print(
        f"Wrong labels: {result.flipped} of {TRAIN} before, {result.wrong_left} of "
        f"{result.written} in the cleaned copy, {result.copy}."
    )
    before, after = result.errors
    console.print(
        f"A logistic regression trained on them is wrong about {before:.1%} of other digits "
        f"before and {after:.1%} after.\n"
    )
    print_verdict(result.verdict)
    folder = result.project.folder
    say_path(f"\nRead the report: {folder / 'report.html'}\nLook and decide: dross review {folder}")


@command(app, examples=option.CLEAN_EXAMPLES)
def clean(
    data: option.Data,
    label: Annotated[str | None, Option(help="The column to predict.")] = None,
    text: Annotated[str | None, Option(help="The column that holds a text to learn from.")] = None,
    images: Annotated[str | None, Option(help="The column that holds the paths of images.")] = None,
    validation: option.Validation = None,
    test: option.Test = None,
    task: option.Task = None,
    column: option.Column = None,
    separator: option.Separator = None,
    na: option.Missing = None,
    features: option.Features = None,
    backbone: option.Backbone = None,
    model: option.Model = None,
    labels: option.Labels = None,
    repeats: Annotated[int, Option(min=1, help="Independent runs to average the scores over.")] = 4,
    lr: Annotated[float | None, Option(help="The learning rate; otherwise searched for.")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Epochs; otherwise searched for.")] = None,
    batch_size: Annotated[int | None, Option(min=1, help="Instances per training step.")] = None,
    check: option.Check = 16,
    validation_is_clean: Annotated[
        bool,
        Option("--validation-is-clean", help="Trust all labels of --validation: none is listed."),
    ] = False,
    seed: option.Seed = 0,
    device: option.Device = None,
    out: option.Out = None,
    overwrite: option.Overwrite = False,
    quiet: option.Quiet = False,
    as_json: option.Json = False,
) -> None:
    """Find the training instances that make a model worse.

    Examines the label of every row with out-of-fold predictions, and scores every row by how much
    it adds to the error on held-out rows. Compares plans for what to relabel or remove with
    changing nothing, on rows that had no part in the plan, and recommends one only if it improves
    models by more than chance. Finds copies and writes a report. The input is never changed. If it
    is stopped, run the same command again to continue.

    Where wrong labels and overlapping classes look alike in the data, it lists labels to check.
    Check them on the page (dross review) and run the same command again: it uses what you
    said, and keeps the recorded runs and all decisions.

    Chats have a command of their own: dross clean-chats.
    """
    from ..cleaning.chats import is_chat_file
    from ..cleaning.pipeline import clean as clean_data

    if is_chat_file(Path(data)):
        raise InvalidInput(
            f"{data} holds chats. Name the model to fine-tune on them: "
            f"dross clean-chats {data} --model PATH_OR_NAME."
        )
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
        separator=separator,
        na=na or None,
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
    data: Annotated[Path, Argument(help="A JSONL or Parquet file of chats.")],
    model: Annotated[
        str,
        Option(
            metavar="PATH_OR_NAME",
            help="The language model to fine-tune: a folder, a GGUF file, an adapter of peft, or a "
            "name on the hub.",
        ),
    ],
    lora: Annotated[
        int | None, Option(min=1, help="Train adapters of this rank instead of the weights.")
    ] = None,
    last_layers: Annotated[
        int | None, Option(min=1, help="Train this many of the last layers only.")
    ] = None,
    prompt: Annotated[
        str | None, Option(help="The column with the prompts. Default: guessed.")
    ] = None,
    response: Annotated[
        str | None, Option(help="The column with the responses. Default: guessed.")
    ] = None,
    source: Annotated[
        str | None,
        Option(help="The column that says where a row is from. Default: source, if there is one."),
    ] = None,
    template: Annotated[
        str | None,
        Option(help="A file with a chat template instead of the tokenizer's, or plain."),
    ] = None,
    max_tokens: Annotated[
        int | None, Option(min=2, help="Cut longer texts. Default: 1024.")
    ] = None,
    validation: option.Validation = None,
    test: option.Test = None,
    repeats: Annotated[
        int, Option(min=1, help="Recorded fine-tunings to average the scores over.")
    ] = 2,
    lr: Annotated[
        float | None,
        Option(help="The learning rate. Default: 2e-4 for adapters, otherwise 2e-5."),
    ] = None,
    epochs: Annotated[int, Option(min=1, help="How often the model is trained on every chat.")] = 3,
    batch_size: Annotated[int, Option(min=1, help="Chats per training step.")] = 8,
    seed: option.Seed = 0,
    device: option.Device = None,
    force: Annotated[
        bool, Option("--force", help="Begin even if it takes more than an hour.")
    ] = False,
    out: option.Out = None,
    overwrite: option.Overwrite = False,
    quiet: option.Quiet = False,
    as_json: option.Json = False,
) -> None:
    """Find the chats that make a fine-tuned language model worse, and the tokens that do it.

    Fine-tunes the model on chats (messages, or prompts and responses), scores every example and
    every token of its answers by how much it adds to the loss on held-out examples, and recommends
    a plan only if it improves models by more than chance. The input is never changed. If it is
    stopped, run the same command again to continue. dross review, judge and export take it from
    there.
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
    port: Annotated[int | None, Option(help="The port to serve on. Default: a free one.")] = None,
    host: Annotated[
        str,
        Option(
            help="The address to serve on. Anything but 127.0.0.1 lets in others who have the link."
        ),
    ] = "127.0.0.1",
    browser: Annotated[bool, Option(help="Open the browser.")] = True,
    trust_code: option.TrustCode = None,
) -> None:
    """Look at the suggestions in the browser and decide: keep, remove, or relabel. Every decision
    is saved at once and can be undone.

    The page judges the decisions, too. Data and models from module:function are run for that only
    if --trust-code names them.
    """
    from ..review.server import serve

    serve(run, port=port, host=host, open_browser=browser, trust_code=trust_code or [])


@command(app, examples=option.JUDGE_EXAMPLES)
def judge(
    run: option.ProjectFolder,
    remove: Annotated[int | None, Option(help="Judge the removal of the N most harmful.")] = None,
    relabel: Annotated[
        int | None,
        Option(help="Judge relabelling the N most probably mislabelled as the models predict."),
    ] = None,
    decisions: Annotated[
        bool, Option("--decisions", help="Judge what was decided on the page.")
    ] = False,
    plan: option.PlanName = None,
    seeds: Annotated[int | None, Option(help="Fresh seeds to train with. Default: 10.")] = None,
    quick: Annotated[
        bool,
        Option("--quick", help="A first look with fewer seeds."),
    ] = False,
    jobs: Annotated[int, Option(min=1, help="How many processes to train in.")] = 1,
    estimator: option.Estimator = None,
    device: option.Device = None,
    trust_code: option.TrustCode = None,
    quiet: option.Quiet = False,
    as_json: option.Json = False,
) -> None:
    """Does it help? Train new models with and without the changes and compare them on instances
    that had no part in the changes: the test file, or else every part of the data in turn.

    Each time three models start from the same weights: trained on the data as they are, with the
    changes, and with the same number of random changes. The verdict is improved, worse, or
    inconclusive. Without options it judges the decisions made on the page, or else the recommended
    plan. Data and models from module:function are run only if --trust-code names them.

    The models are those of dross clean. With --estimator, your own model decides: any estimator of
    scikit-learn, or a function of yours that returns one. It is trained on the same numbers, with the
    same seeds and edits. Where seeds make no difference to it, each draws a bootstrap sample of the
    training part.
    """
    from ..cleaning.judge import judge as judge_project

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
    if as_json:
        print_json(verdict_as_json(verdict, run))
    elif not quiet:
        print_verdict(verdict)
        say_path(f"The report has the details: {run / 'report.html'}")


@command(app)
def export(
    run: option.ProjectFolder,
    to: Annotated[
        Path,
        Argument(
            help="The cleaned copy: a CSV, TSV, Parquet or JSONL file, or a folder for images."
        ),
    ],
    remove: Annotated[
        int | None,
        Option(help="Leave out the N most harmful instead of what was decided on the page."),
    ] = None,
    relabel: Annotated[
        int | None,
        Option(help="Relabel the N most probably mislabelled as the models predict."),
    ] = None,
    plan: option.PlanName = None,
    overwrite: Annotated[
        bool,
        Option("--overwrite", help="Replace the copy if it exists: a file, or an earlier export."),
    ] = False,
    quiet: option.Quiet = False,
) -> None:
    """Write a cleaned copy of the data and the list of decisions. The input is never touched.

    Without options the decisions made on the page are applied, or else the recommended plan.
    """
    from ..cleaning.export import export as export_project

    done = export_project(run, to, remove=remove, relabel=relabel, plan=plan, overwrite=overwrite)
    if quiet:
        return
    say_path(
        f"{done.cleaned}: {done.written:,} instances; "
        f"{done.removed} removed, {done.relabelled} relabelled.\nDecisions: {done.decisions}"
    )


@command(app)
def info(
    tape: Annotated[
        str, Argument(help="The folder that a run was recorded in, or the URL of a copy of it.")
    ],
    as_json: option.Json = False,
) -> None:
    """Describe a recorded run: what was trained, how far it got, what the tape holds.

    Every file is read and compared with its digest, so damage is found.
    """
    from ..tape.format import MANIFEST
    from ..tape.reader import Tape, summarize_tape
    from ..tape.storage import is_url

    folder = Path(tape)
    if not is_url(tape) and not (folder / MANIFEST).exists():
        inside = ", ".join(str(path.parent) for path in sorted(folder.glob(f"runs/*/{MANIFEST}")))
        if inside:
            raise InvalidInput(
                f"{tape} is a folder of dross clean. Pass one of its recorded runs: {inside}."
            )
    opened = Tape(tape)
    opened.check_files()
    if as_json:
        print_json({"tape": tape, **summarize_tape(opened), "intact": True})
    else:
        print_tape(opened)
