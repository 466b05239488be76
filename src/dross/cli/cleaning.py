"""`dross clean`, `review`, `judge` and `export`: from a file to a better model."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ..cleanse.export import export as export_project
from ..cleanse.inputs.user_code import show_source
from ..cleanse.judge import judge as judge_project
from ..cleanse.judging.estimators import names_user_code
from ..cleanse.pipeline.clean import clean as clean_data
from ..errors import BadInput
from ..finetune.clean import clean_chats
from . import options as option
from .app import app, command
from .chats import is_about_chats, pick_chat_options, refuse_chat_options
from .output import console, print_findings, print_verdict, say


@command(app, examples=option.CLEAN_EXAMPLES)
def clean(
    data: option.Data,
    label: option.Label = None,
    text: option.Text = None,
    images: option.Images = None,
    validation: option.Validation = None,
    test: option.Test = None,
    task: option.Task = None,
    column: option.Column = None,
    separator: option.Separator = None,
    na: option.Missing = None,
    features: option.Features = None,
    backbone: option.Backbone = None,
    model: option.Model = None,
    runs: option.Runs = None,
    rounds: option.Rounds = 1,
    rate: option.Rate = None,
    epochs: option.Epochs = None,
    batch_size: option.BatchSize = None,
    verified: option.Verified = 16,
    trusted_validation: option.TrustedValidation = False,
    prompt: option.Prompt = None,
    response: option.Response = None,
    source: option.Origin = None,
    template: option.Template = None,
    lora: option.Lora = None,
    last_layers: option.LastLayers = None,
    max_tokens: option.MaxTokens = None,
    yes: option.Yes = False,
    seed: option.Seed = 0,
    device: option.Device = None,
    out: option.Out = None,
    overwrite: option.Overwrite = False,
) -> None:
    """Find the training instances that make a model worse.

    Reads the data, splits them into training, validation and test parts, trains several runs and
    records them, scores every training instance by how much it adds to the expected validation
    error, checks the scores by retraining, lets plans of what to remove and what to relabel
    compete, recommends one, looks for copies (also of test instances, which make verdicts too
    good), and writes a report. The input is never touched. A run that was stopped goes on where it
    was: give the same command again.

    Labels of the validation part can be wrong, too. Those that models doubt are listed; say on the
    page (dross review) which are right, wrong, or really another class, and give the same command
    again: it scores with what you said, and keeps the recorded runs and all decisions.

    Chats in a JSONL or Parquet file (messages, or prompts and responses) fine-tune the language
    model that --model names, and are scored by example and by token.
    """
    given = locals()
    if is_about_chats(given):
        print_findings(clean_chats(**pick_chat_options(given), say=say))
        return
    refuse_chat_options(given)
    shared = {name: given[name] for name in _SHARED_OPTIONS}
    is_function = model is not None and ":" in model
    project = clean_data(
        data,
        label,
        columns=dict(_read_column_kind(one) for one in column or []),
        na=na or None,
        model=None if is_function else model,
        make=model if is_function else None,
        runs=4 if runs is None else runs,
        say=say,
        **shared,
    )
    print_findings(project)


_SHARED_OPTIONS = (
    "out",
    "text",
    "images",
    "validation",
    "test",
    "task",
    "separator",
    "features",
    "backbone",
    "rounds",
    "rate",
    "epochs",
    "batch_size",
    "verified",
    "trusted_validation",
    "seed",
    "device",
    "overwrite",
)  # that `dross.clean` takes as they are


def _read_column_kind(given: str) -> tuple[str, str]:
    name, equals, kind = given.rpartition("=")
    if not equals:
        raise BadInput(f"--column takes NAME=KIND, such as zip=category; '{given}' has no =.")
    return name, kind


@command(app)
def review(
    run: option.ProjectFolder,
    port: Annotated[int | None, Option(help="The port to serve on. Default: a free one.")] = None,
    host: Annotated[
        str,
        Option(
            help="The address to serve on. Anything but 127.0.0.1 lets others in who have the link."
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

    _show_trusted(trust_code)
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
        Option("--quick", help="A first look: 6 seeds, and the recorded run is not retrained."),
    ] = False,
    jobs: Annotated[int, Option(min=1, help="How many processes to train in.")] = 1,
    with_model: option.WithModel = None,
    device: option.Device = None,
    trust_code: option.TrustCode = None,
) -> None:
    """Does it help? Train new models with and without the removed instances and compare them on
    the test part.

    For every seed three models start from the same weights: with everything, without the removed,
    and without as many chosen at random. The verdict is improved, worse, or cannot tell. Without
    options it judges the decisions made on the page, or else the recommended plan. Data and models
    from module:function are run only if --trust-code names them.

    The models are those of dross clean. With --with your own decides: any estimator of
    scikit-learn, or of a function of yours that returns one. It learns the same numbers, with the
    same seeds and edits. Where seeds make no difference to it, each draws a bootstrap sample of the
    training part.
    """
    own = [with_model] if with_model is not None and names_user_code(with_model) else []
    _show_trusted([*own, *(trust_code or [])])
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
        with_model=with_model,
    )
    print_verdict(verdict)
    _print_path(f"The report has the details: {run / 'report.html'}")


@command(app)
def export(
    run: option.ProjectFolder,
    to: Annotated[
        Path,
        Argument(
            help="The cleaned copy: a CSV, TSV, Parquet or JSONL file, or a folder for pictures."
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
        Option(
            "--overwrite", help="Replace the copy if it is there: a file, or an earlier export."
        ),
    ] = False,
) -> None:
    """Write a cleaned copy of the data and the list of decisions. The input is never touched.

    Without options the decisions made on the page are applied, or else the recommended plan.
    """
    done = export_project(run, to, remove=remove, relabel=relabel, plan=plan, overwrite=overwrite)
    _print_path(
        f"{done.cleaned}: {done.written:,} instances; "
        f"{done.removed} removed, {done.relabelled} relabelled.\nDecisions: {done.decisions}"
    )


def _show_trusted(entries: list[str] | None) -> None:
    """Show the code that is about to be trusted."""
    for entry in entries or []:
        _print_path(show_source(entry))


def _print_path(line: str) -> None:
    """Print a line that holds a path: not broken, and a [bracket] in a name is no markup."""
    console.print(line, soft_wrap=True, markup=False)
