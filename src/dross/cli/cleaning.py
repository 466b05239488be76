"""`dross clean`, `review`, `judge` and `export`: from a file to a better model.

Slow imports are made by the command that needs them: `dross --help` needs none.
"""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ..errors import InvalidInput
from . import options as option
from .app import app, command
from .json_results import project_as_json, verdict_as_json
from .output import Say, choose_say, console, print_findings, print_json, print_verdict


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
    labels: option.Labels = None,
    repeats: option.Repeats = None,
    lr: option.Lr = None,
    epochs: option.Epochs = None,
    batch_size: option.BatchSize = None,
    check: option.Check = 16,
    validation_is_clean: option.ValidationIsClean = False,
    prompt: option.Prompt = None,
    response: option.Response = None,
    source: option.Origin = None,
    template: option.Template = None,
    lora: option.Lora = None,
    last_layers: option.LastLayers = None,
    max_tokens: option.MaxTokens = None,
    force: option.Force = False,
    seed: option.Seed = 0,
    device: option.Device = None,
    out: option.Out = None,
    overwrite: option.Overwrite = False,
    quiet: option.Quiet = False,
    as_json: option.Json = False,
) -> None:
    """Find the training instances that make a model worse.

    Examines the label of every row with models that did not learn it, and scores every row by how
    much it adds to the error on held-out rows. Compares plans for what to relabel or remove with
    changing nothing, on rows that had no part in the plan, and recommends one only if it makes
    models better beyond chance. Finds copies and writes a report. The input is never changed. If it
    is stopped, run the same command again to continue.

    Where wrong labels and overlapping classes look alike in the data, it lists labels to check.
    Check them on the page (dross review) and run the same command again: it uses what you
    said, and keeps the recorded runs and all decisions.

    Chats in a JSONL or Parquet file (messages, or prompts and responses) fine-tune the language
    model that --model names, and are scored by example and by token.
    """
    given: dict[str, Any] = dict(locals())
    project = _clean(given, progress=not quiet, say=choose_say(quiet, as_json))
    if as_json:
        print_json(project_as_json(project))
    elif not quiet:
        print_findings(project)


def _clean(given: dict[str, Any], *, progress: bool, say: Say) -> Any:
    """The project that the function for this kind of data makes, with the options it takes."""
    from ..cleaning.pipeline import clean as clean_data
    from .chats import is_about_chats, pick_chat_options, without_chat_options

    how: dict[str, Any] = {"progress": progress, "say": say}
    if is_about_chats(given):
        from ..finetune.clean import clean_chats

        return clean_chats(**pick_chat_options(given), **how)
    chosen = without_chat_options(given)
    columns = chosen.pop("column") or []
    chosen |= {"columns": dict(map(_read_column_kind, columns)), "na": chosen["na"] or None}
    if chosen["repeats"] is None:
        del chosen["repeats"]
    if ":" in (chosen["model"] or ""):
        chosen |= {"model": None, "make": chosen["model"]}
    return clean_data(**chosen, **how)


def _read_column_kind(given: str) -> tuple[str, str]:
    name, equals, kind = given.rpartition("=")
    if not equals:
        raise InvalidInput(f"--column takes NAME=KIND, such as zip=category; '{given}' has no =.")
    return name, kind


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

    _show_trusted(trust_code, _print_path)
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
    scikit-learn, or a function of yours that returns one. It learns the same numbers, with the
    same seeds and edits. Where seeds make no difference to it, each draws a bootstrap sample of the
    training part.
    """
    from ..cleaning.estimators import names_user_code
    from ..cleaning.judge import judge as judge_project

    own = [estimator] if estimator is not None and names_user_code(estimator) else []
    show = choose_say(quiet, as_json) if quiet or as_json else _print_path
    _show_trusted([*own, *(trust_code or [])], show)
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
    _print_path(
        f"{done.cleaned}: {done.written:,} instances; "
        f"{done.removed} removed, {done.relabelled} relabelled.\nDecisions: {done.decisions}"
    )


def _show_trusted(entries: list[str] | None, show: Say) -> None:
    """Show the code that is about to be trusted."""
    from ..cleaning.user_code import show_source

    for entry in entries or []:
        show(show_source(entry))


def _print_path(line: str) -> None:
    """Print a line that holds a path: not wrapped, and a [bracket] in a name is not markup."""
    console.print(line, soft_wrap=True, markup=False)
