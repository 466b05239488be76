"""The command line: `dross clean`, `dross review`, `dross judge`, `dross export` and the rest."""

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Argument, Option

from . import cli_options as option
from .cleanse.export import export as export_project
from .cleanse.judge import judge as judge_project
from .cleanse.pipeline.clean import clean as clean_data
from .cli_output import (
    console,
    print_findings,
    print_table1,
    print_tape,
    print_test_errors,
    print_verdict,
    say,
)
from .errors import BadInput, DrossError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Find the training instances that make a model worse, and prove it by retraining.\n\n"
    "Start with [bold]dross demo[/bold]: it needs no data and takes less than a minute.",
)
_Command = Callable[..., None]


def _print_version(wanted: bool) -> None:
    if wanted:
        from ._version import __version__

        console.print(f"dross {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options that every command has; the help of `dross` itself is in `app`."""


def _command(group: typer.Typer, *, examples: Sequence[str] = ()) -> Callable[[_Command], _Command]:
    """Make a function a command. Its docstring is the help, broken where the terminal ends."""

    def register(function: _Command) -> _Command:
        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        paragraphs = [paragraph.replace("\n", " ") for paragraph in paragraphs]
        if examples:
            paragraphs += ["[bold]Examples[/bold]", *examples]
        return group.command(help="\n\n".join(paragraphs))(function)

    return register


@_command(app)
def demo(
    out: Annotated[
        Path, Option(help="Where everything goes. What an earlier demo left there is replaced.")
    ] = Path("runs/demo"),
    seeds: Annotated[int, Option(min=2, help="How many fresh seeds the verdict rests on.")] = 10,
) -> None:
    """The whole story on the digits inside scikit-learn, with 5 % of the training labels flipped.

    Reads them as pictures, trains and records four runs, scores every training instance by how
    much worse it makes the model, checks the scores against real retraining, suggests how many to
    remove, and judges the suggestion with fresh seeds on test data.
    """
    from .demo import FLIPPED_SHARE, TRAIN, run_demo

    console.print(
        f"{TRAIN} digits to learn from, {FLIPPED_SHARE:.0%} of them with a wrong label on purpose."
    )
    result = run_demo(out, seeds=seeds, say=say)
    by_chance = result.removed * result.flipped / TRAIN
    console.print(
        f"\nOf the {result.removed} most harmful, {result.found} are among the {result.flipped} "
        f"with a flipped label; by chance it would be {by_chance:.0f}. "
        f"Of the {result.flipped} most probably mislabelled, {result.suspected} are.\n"
    )
    print_verdict(result.verdict)
    folder = result.project.folder
    console.print(
        f"\nRead the report: {folder / 'report.html'}\nLook and decide: dross review {folder}",
        soft_wrap=True,
    )


@_command(app, examples=option.CLEAN_EXAMPLES)
def clean(
    data: option.Data,
    label: option.Label = None,
    text: option.Text = None,
    images: option.Images = None,
    validation: option.Validation = None,
    test: option.Test = None,
    task: option.Task = None,
    column: option.Column = None,
    model: option.Model = None,
    runs: option.Runs = 4,
    rounds: option.Rounds = 1,
    rate: option.Rate = None,
    epochs: option.Epochs = None,
    batch_size: option.BatchSize = None,
    verified: option.Verified = 16,
    seed: option.Seed = 0,
    out: option.Out = None,
    overwrite: option.Overwrite = False,
) -> None:
    """Find the training instances that make a model worse.

    Reads the data, splits them into training, validation and test parts, trains several runs and
    records them, scores every training instance by how much worse it makes the validation loss,
    checks the scores by retraining, suggests how many to remove, and writes a report. The input is
    never touched. A run that was stopped goes on where it was: give the same command again.
    """
    columns = dict(_read_column_kind(given) for given in column or [])
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
        columns=columns,
        model=None if is_function else model,
        make=model if is_function else None,
        runs=runs,
        rounds=rounds,
        rate=rate,
        epochs=epochs,
        batch_size=batch_size,
        verified=verified,
        seed=seed,
        overwrite=overwrite,
        say=say,
    )
    print_findings(project)


def _read_column_kind(given: str) -> tuple[str, str]:
    name, equals, kind = given.rpartition("=")
    if not equals:
        raise BadInput(f"--column takes NAME=KIND, such as zip=category; '{given}' has no =.")
    return name, kind


@_command(app)
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
) -> None:
    """Look at the suggestions in the browser and decide: keep, remove, or relabel. Every decision
    is saved at once and can be undone.
    """
    from .review.server import serve

    serve(run, port=port, host=host, open_browser=browser)


@_command(app)
def judge(
    run: option.ProjectFolder,
    remove: Annotated[
        int | None, Option(help="Judge the removal of the so many most harmful.")
    ] = None,
    relabel: Annotated[
        int | None,
        Option(
            help="Judge relabelling the so many most probably mislabelled as the models predict."
        ),
    ] = None,
    decisions: Annotated[
        bool, Option("--decisions", help="Judge what was decided on the page.")
    ] = False,
    seeds: Annotated[int | None, Option(help="Fresh seeds to train with. Default: 10.")] = None,
    quick: Annotated[
        bool,
        Option("--quick", help="A first look: 6 seeds, and the recorded run is not retrained."),
    ] = False,
    jobs: Annotated[int, Option(min=1, help="How many processes to train in.")] = 1,
) -> None:
    """Does it help? Train new models with and without the removed instances and compare them on
    the test part.

    For every seed three models start from the same weights: with everything, without the removed,
    and without as many chosen at random. The verdict is improved, worse, or cannot tell. Without
    options it judges the decisions made on the page, or else the suggestion.
    """
    verdict = judge_project(
        run,
        remove=remove,
        relabel=relabel,
        decisions=decisions,
        seeds=seeds,
        quick=quick,
        n_jobs=jobs,
    )
    print_verdict(verdict)
    console.print(f"The report has the details: {run / 'report.html'}", soft_wrap=True)


@_command(app)
def export(
    run: option.ProjectFolder,
    to: Annotated[
        Path,
        Argument(help="The cleaned copy: a CSV, TSV or Parquet file, or a folder for pictures."),
    ],
    remove: Annotated[
        int | None,
        Option(help="Leave out the so many most harmful instead of what was decided on the page."),
    ] = None,
    relabel: Annotated[
        int | None,
        Option(help="Relabel the so many most probably mislabelled as the models predict."),
    ] = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace the copy if it is there.")
    ] = False,
) -> None:
    """Write a cleaned copy of the data and the list of decisions. The input is never touched.

    Without options the decisions made on the page are applied, or else the suggestion.
    """
    done = export_project(run, to, remove=remove, relabel=relabel, overwrite=overwrite)
    console.print(
        f"{done.cleaned}: {done.written:,} instances; "
        f"{done.removed} removed, {done.relabelled} relabelled.\nDecisions: {done.decisions}",
        soft_wrap=True,
    )


reproduce = typer.Typer(no_args_is_help=True, help="Run the paper's experiments again.")
app.add_typer(reproduce, name="reproduce")


@_command(reproduce)
def table1(
    repetitions: Annotated[
        int, Option(min=1, help="How many times to draw, train and compare. The paper has 100.")
    ] = 10,
    only: Annotated[
        str, Option(help="Cells to compute, separated by commas: adult-dnn, 20news-logreg, ...")
    ] = "",
    out: Annotated[
        Path, Option(help="Where results are kept. A run that was stopped goes on from there.")
    ] = Path("runs/table1"),
    jobs: Annotated[int, Option(min=1, help="How many repetitions to compute at once.")] = (
        os.cpu_count() or 1
    ),
) -> None:
    """Table 1: how well the linear influence is estimated, against 200 counterfactual runs per
    repetition.

    Needs Adult, 20 Newsgroups and MNIST: in the folder that DROSS_DATA names, in the cache, or
    from the network. About 40 seconds of one core per repetition of all six cells.
    """
    from .reproduce import table1 as experiment

    cells = experiment.check_cells(_split(only)) or list(experiment.CELLS)
    results = experiment.run_all(out, cells, repetitions, n_jobs=jobs)
    rows = experiment.summarized(results)
    print_table1(rows, repetitions)
    written = experiment.write(out, rows, results)
    console.print(f"Written: {', '.join(str(path) for path in written)}")


@_command(reproduce)
def cleansing(
    data: Annotated[str, Option(help="mnist, fashion-mnist or cifar10.")] = "mnist",
    draws: Annotated[
        str, Option(help="Which draws of validation data: 0:30 are the first thirty.")
    ] = "0:3",
    retrain: Annotated[
        str, Option(help="How to train again, separated by commas: last, all, fresh.")
    ] = "last",
    methods: Annotated[
        str, Option(help="Methods, separated by commas. Default: all of them.")
    ] = "",
    quick: Annotated[
        bool, Option("--quick", help="A small subset and few epochs: a few minutes on two cores.")
    ] = False,
    out: Annotated[
        Path, Option(help="Where results are kept, draw by draw; a run that was stopped goes on.")
    ] = Path("runs/cleansing"),
    device: Annotated[str, Option(help="cpu or cuda.")] = "cpu",
    jobs: Annotated[
        int, Option(min=1, help="How many draws to compute at once, each in a process of its own.")
    ] = 1,
) -> None:
    """Section 7.2: remove what each method finds harmful, train again, and measure the test error.

    Full size means 20 epochs on 50,000 pictures per draw: use a GPU, or --quick. Draws computed on
    different machines are merged by putting their files into one folder.
    """
    from .reproduce import cleansing as experiment
    from .reproduce import cleansing_report

    settings = experiment.Settings.of(data, quick)
    known = experiment.METHODS
    chosen = experiment.check("method", _split(methods), known) or list(known)
    ways = experiment.check("way to retrain", _split(retrain), experiment.RETRAINED)
    numbers, again = experiment.numbers(draws), ", ".join(ways)
    console.print(
        f"Draws {draws}: train, score by {len(chosen)} methods, train again ({again}) ..."
    )
    for number in experiment.compute_all(
        settings, numbers, chosen, ways, out, device=device, n_jobs=jobs
    ):
        console.print(f"Draw {number} is done.")
    results = experiment.merged(out, settings)
    rows = [row for result in results for row in result["rows"]]
    summary = experiment.summarized(rows)
    print_test_errors(rows, summary, ways, chosen)
    for sentence in cleansing_report.findings(summary):
        console.print(sentence)
    command = (
        f"dross reproduce cleansing --data {data} --draws {draws} --retrain {','.join(ways)} "
        f"--methods '{','.join(chosen)}'{' --quick' * quick}"
    )
    *tables, page = cleansing_report.write(out, results, settings, command)
    console.print(f"Look at {page}. Beside it: {', '.join(path.name for path in tables)}")


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@_command(app)
def info(
    tape: Annotated[
        str, Argument(help="The folder that a run was recorded in, or the URL of a copy of it.")
    ],
) -> None:
    """Describe a recorded run: what was trained, how far it got, what the tape holds."""
    from .tape.reader import MANIFEST, Tape
    from .tape.storage import is_url

    folder = Path(tape)
    if not is_url(tape) and not (folder / MANIFEST).exists():
        inside = ", ".join(str(path.parent) for path in sorted(folder.glob(f"runs/*/*/{MANIFEST}")))
        if inside:
            raise BadInput(f"{tape} is a folder of dross clean; its recorded runs are {inside}.")
    print_tape(Tape(tape))


def main() -> None:
    """Run the `dross` command; an error that the user can mend is a message, not a traceback."""
    try:
        app()
    except DrossError as error:
        if "--debug" in sys.argv:
            raise
        name = type(error).__name__
        Console(stderr=True).print(f"[bold red]{name}:[/bold red] {error}", highlight=False)
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as ended:  # typer turns Ctrl-C into an exit with 130
        if isinstance(ended, SystemExit) and ended.code != 130:
            raise
        Console(stderr=True).print(
            "Stopped. What was done is kept: give the same command again to go on."
        )
        sys.exit(130)
