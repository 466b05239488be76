"""The command line."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .errors import BadInput, DrossError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Find the training instances that make a model worse, and prove it by retraining.\n\n"
    "Start with [bold]dross demo[/bold]: it needs no data and takes less than a minute.",
)
console = Console()
_DEMO = Path("runs/demo")


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        console.print(f"dross {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[
        Path,
        typer.Option(help="Where everything goes. What an earlier demo left there is replaced."),
    ] = _DEMO,
    seeds: Annotated[
        int, typer.Option(min=2, help="How many fresh seeds the verdict rests on.")
    ] = 10,
) -> None:
    """The whole story on the digits inside scikit-learn, with 5 % of the training labels flipped.

    Reads them as pictures, trains and records four runs, scores every training instance by how much worse it makes the model, checks the scores
    against real retraining, suggests how many to remove, and judges the suggestion with fresh seeds on test data.
    """
    from . import demo as demonstration

    console.print(
        f"{demonstration.TRAIN} digits to learn from, {demonstration.FLIPPED:.0%} of them with a wrong label on purpose."
    )
    story = demonstration.tell(out, seeds=seeds, say=_say)
    by_chance = story.removed * story.flipped / demonstration.TRAIN
    console.print(
        f"\nOf the {story.removed} most harmful, {story.found} are among the {story.flipped} with a flipped label; by chance it would be {by_chance:.0f}. "
        f"Of the {story.flipped} most probably mislabelled, {story.suspected} are.\n"
    )
    _show(story.verdict)
    folder = story.project.folder
    console.print(
        f"\nRead the report: {folder / 'report.html'}\nLook and decide: dross review {folder}",
        soft_wrap=True,
    )


def _say(line: str) -> None:
    console.print(line, highlight=False, markup=False)


def _show(verdict: Any) -> None:
    """A verdict in the terminal."""
    colour = {"improved": "green", "worse": "red"}.get(verdict.verdict, "yellow")
    console.print(
        Text.assemble((f"{verdict.verdict.capitalize()}. ", f"bold {colour}"), verdict.sentence)
    )
    table = Table("on the test part")
    columns = []
    for name, m in verdict.metrics.items():
        table.add_column("error, %" if name == "error" else name, justify="right")
        columns.append(_measured(m, *((100, 2) if name == "error" else (1, 4))))
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    console.print(table)
    if verdict.settle:
        _say(verdict.settle)


def _p(value: float) -> str:
    return f"p = {value:.3f}" if value >= 0.001 else "p < 0.001"


def _measured(m: Any, scale: int, digits: int) -> dict[str, str]:
    number = lambda v, sign="": f"{scale * v:{sign}.{digits}f}"
    mean = lambda values: sum(values) / len(values)
    return {
        "everything kept": number(mean(m.before)),
        "after": number(mean(m.after)),
        "difference": number(m.difference, "+"),
        "95 % interval": f"{number(m.interval[0], '+')} to {number(m.interval[1], '+')}",
        "t-test": _p(m.p_t),
        "sign flips": _p(m.p_signs),
        "difference, as many at random": number(m.random_difference, "+"),
    }


@app.command()
def clean(
    data: Annotated[
        str,
        typer.Argument(
            help="A CSV, TSV or Parquet file, a folder of pictures with one folder per class, or module:function."
        ),
    ],
    label: Annotated[str | None, typer.Option(help="The column to be learnt.")] = None,
    text: Annotated[
        str | None, typer.Option(help="The column that holds a text to learn from.")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="The column that holds the paths of pictures.")
    ] = None,
    validation: Annotated[
        str | None, typer.Option(help="Validation data of your own: scores are computed on it.")
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Test data of your own: only dross judge reads it.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="classification or regression; otherwise inferred from the label."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="What a column is: NAME=number, category, date or ignore. May be repeated."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="linear, mlp, cnn, or module:function that builds a torch model."),
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Independent runs to average the scores over.")
    ] = 4,
    rounds: Annotated[
        int,
        typer.Option(min=1, help="2 and more: remove what is suggested, train and score again."),
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option(help="The learning rate; otherwise searched for on the validation part."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs; otherwise searched for.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Instances per step.")] = None,
    verified: Annotated[
        int,
        typer.Option(
            min=2, help="Suggestions, and as many at random, to check by retraining without each."
        ),
    ] = 16,
    seed: Annotated[int, typer.Option(help="Of the split and of everything random.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder for what is found. Default: runs/NAME.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what the folder holds.")
    ] = False,
) -> None:
    """Find the training instances that make a model worse.

    Reads the data, splits them into training, validation and test parts, trains several runs and records them, scores every training instance by how
    much worse it makes the validation loss, checks the scores by retraining, suggests how many to remove, and writes a report. The input is never touched.
    A run that was stopped goes on where it was: give the same command again.

    [bold]Examples[/bold]

    dross clean people.csv --label income

    dross clean reviews.tsv --text review --label stars

    dross clean pictures/ --model cnn

    dross clean mydata:load --model mydata:network
    """
    from .cleanse.pipeline import clean as start

    columns = dict(_assignment(given) for given in column or [])
    make = model if model is not None and ":" in model else None
    project = start(
        data,
        label,
        out=out,
        text=text,
        images=images,
        validation=validation,
        test=test,
        task=task,
        columns=columns,
        model=None if make else model,
        make=make,
        runs=runs,
        rounds=rounds,
        rate=rate,
        epochs=epochs,
        batch_size=batch_size,
        verified=verified,
        seed=seed,
        overwrite=overwrite,
        say=_say,
    )
    from .cleanse.report import findings

    console.print()
    for sentence in findings(project):
        _say(sentence)
    folder = project.folder
    console.print(
        f"\nRead the report:    {folder / 'report.html'}\nLook and decide:    dross review {folder}\nDoes it help?       dross judge {folder}",
        soft_wrap=True,
    )


def _assignment(given: str) -> tuple[str, str]:
    name, equals, kind = given.rpartition("=")
    if not equals:
        raise BadInput(f"--column takes NAME=KIND, such as zip=category; '{given}' has no =.")
    return name, kind


@app.command()
def review(
    run: Annotated[Path, typer.Argument(help="A folder that dross clean made.")],
    port: Annotated[
        int | None, typer.Option(help="The port to serve on. Default: a free one.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to serve on. Anything but 127.0.0.1 lets others in who have the link."
        ),
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
) -> None:
    """Look at the suggestions in the browser and decide: keep, remove, or relabel. Every decision is saved at once and can be undone."""
    from .review.server import serve

    serve(run, port=port, host=host, open_browser=browser)


@app.command()
def judge(
    run: Annotated[Path, typer.Argument(help="A folder that dross clean made.")],
    remove: Annotated[
        int | None, typer.Option(help="Judge the removal of the so many most harmful.")
    ] = None,
    relabel: Annotated[
        int | None,
        typer.Option(
            help="Judge relabelling the so many most probably mislabelled as the models predict."
        ),
    ] = None,
    decisions: Annotated[
        bool, typer.Option("--decisions", help="Judge what was decided on the page.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Fresh seeds to train with. Default: 10.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A first look: 6 seeds, and the recorded run is not retrained."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="How many processes to train in.")] = 1,
) -> None:
    """Does it help? Train new models with and without the removed instances and compare them on the test part.

    For every seed three models start from the same weights: with everything, without the removed, and without as many chosen at random. The verdict is
    improved, worse, or cannot tell. Without options it judges the decisions made on the page, or else the suggestion.
    """
    from .cleanse.judge import judge as start

    verdict = start(
        run,
        remove=remove,
        relabel=relabel,
        decisions=decisions,
        seeds=seeds,
        quick=quick,
        n_jobs=jobs,
    )
    _show(verdict)
    console.print(f"The report has the details: {run / 'report.html'}", soft_wrap=True)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A folder that dross clean made.")],
    to: Annotated[
        Path,
        typer.Argument(
            help="The cleaned copy: a CSV, TSV or Parquet file, or a folder for pictures."
        ),
    ],
    remove: Annotated[
        int | None,
        typer.Option(
            help="Leave out the so many most harmful instead of what was decided on the page."
        ),
    ] = None,
    relabel: Annotated[
        int | None,
        typer.Option(help="Relabel the so many most probably mislabelled as the models predict."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the copy if it is there.")
    ] = False,
) -> None:
    """Write a cleaned copy of the data and the list of decisions. The input is never touched.

    Without options the decisions made on the page are applied, or else the suggestion.
    """
    from .cleanse.export import export as start

    done = start(run, to, remove=remove, relabel=relabel, overwrite=overwrite)
    console.print(
        f"{done.cleaned}: {done.written:,} instances; {done.removed} removed, {done.relabelled} relabelled.\nDecisions: {done.decisions}",
        soft_wrap=True,
    )


reproduce = typer.Typer(no_args_is_help=True, help="Run the paper's experiments again.")
app.add_typer(reproduce, name="reproduce")


@reproduce.command()
def table1(
    repetitions: Annotated[
        int,
        typer.Option(min=1, help="How many times to draw, train and compare. The paper has 100."),
    ] = 10,
    only: Annotated[
        str,
        typer.Option(help="Cells to compute, separated by commas: adult-dnn, 20news-logreg, ..."),
    ] = "",
    out: Annotated[
        Path,
        typer.Option(help="Where results are kept. A run that was stopped goes on from there."),
    ] = Path("runs/table1"),
    jobs: Annotated[
        int, typer.Option(min=1, help="How many repetitions to compute at once.")
    ] = os.cpu_count() or 1,
) -> None:
    """Table 1: how well the linear influence is estimated, against 200 counterfactual runs per repetition.

    Needs Adult, 20 Newsgroups and MNIST: in the folder that DROSS_DATA names, in the cache, or from the network. About 40 seconds of
    one core per repetition of all six cells.
    """
    from .reproduce import table1 as experiment

    cells = experiment.check_cells(
        [name.strip() for name in only.split(",") if name.strip()]
    ) or list(experiment.CELLS)
    results = experiment.run_all(out, cells, repetitions, n_jobs=jobs)
    rows = experiment.summarize(results)
    table = Table(
        title=f"{repetitions} repetitions: mean (std), and the paper's mean", title_justify="left"
    )
    for name in ("cell", "estimate", "tau", "paper", "Jaccard", "paper"):
        table.add_column(name, justify="left" if name in ("cell", "estimate") else "right")
    for row in rows:
        if row["truth"] == "change":
            known = [
                experiment.paper_value(row["cell"], row["method"], metric)
                for metric in ("tau", "jaccard")
            ]
            shown = [
                f"{row[metric]:.2f} ({row[metric + '_std']:.2f})" for metric in ("tau", "jaccard")
            ]
            tau, jaccard = ("" if value is None else f"{value:.2f}" for value in known)
            table.add_row(
                row["cell"], experiment.METHODS[row["method"]], shown[0], tau, shown[1], jaccard
            )
    console.print(table)
    written = experiment.write_report(out, rows, results)
    console.print(f"Written: {', '.join(str(path) for path in written)}")


@reproduce.command()
def cleansing(
    data: Annotated[str, typer.Option(help="mnist, fashion-mnist or cifar10.")] = "mnist",
    draws: Annotated[
        str, typer.Option(help="Which draws of validation data: 0:30 are the first thirty.")
    ] = "0:3",
    retrain: Annotated[
        str, typer.Option(help="How to train again, separated by commas: last, all, fresh.")
    ] = "last",
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas. Default: all of them.")
    ] = "",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A small subset and few epochs: a few minutes on two cores."),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(help="Where results are kept, draw by draw; a run that was stopped goes on."),
    ] = Path("runs/cleansing"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    jobs: Annotated[
        int,
        typer.Option(
            min=1, help="How many draws to compute at once, each in a process of its own."
        ),
    ] = 1,
) -> None:
    """Section 7.2: remove what each method finds harmful, train again, and measure the test error.

    Full size means 20 epochs on 50,000 pictures per draw: use a GPU, or --quick. Draws computed on different machines are merged by
    putting their files into one folder.
    """
    from .reproduce import cleansing as experiment
    from .reproduce import cleansing_report, cleansing_settings

    settings = cleansing_settings.Settings.of(data, quick)
    split = lambda text: [part.strip() for part in text.split(",") if part.strip()]
    known = cleansing_settings.METHODS
    chosen = cleansing_settings.check_names("method", split(methods), known) or list(known)
    ways = cleansing_settings.check_names(
        "way to retrain", split(retrain), cleansing_settings.RETRAIN_WAYS
    )
    wanted = cleansing_settings.parse_draws(draws)
    console.print(
        f"Draws {draws}: train, score by {len(chosen)} methods, train again ({', '.join(ways)}) ..."
    )
    for number in experiment.compute_all(
        settings, wanted, chosen, ways, out, device=device, n_jobs=jobs
    ):
        console.print(f"Draw {number} is done.")
    results = experiment.load_results(out, settings)
    rows = [row for result in results for row in result["rows"]]
    table = Table(
        title=f"Test error after removing m, mean over draws; nothing removed: {_mean(rows, 'error_kept'):.2%}",
        title_justify="left",
    )
    summary = [
        row
        for row in experiment.summarize(rows)
        if row["method"] in chosen and row["retrain"] in ways
    ]
    sizes = sorted({row["m"] for row in summary})
    for name in ("retrain", "method", *map(str, sizes)):
        table.add_column(name, justify="left" if name in ("retrain", "method") else "right")
    for way in ways:
        for method in chosen:
            cells = {
                row["m"]: row for row in summary if (row["retrain"], row["method"]) == (way, method)
            }
            table.add_row(
                way, method, *(f"{cells[m]['error']:.2%}" if m in cells else "" for m in sizes)
            )
    console.print(table)
    for sentence in cleansing_report.findings(experiment.summarize(rows)):
        console.print(sentence)
    command = f"dross reproduce cleansing --data {data} --draws {draws} --retrain {','.join(ways)} --methods '{','.join(chosen)}'{' --quick' * quick}"
    *tables, page = cleansing_report.write_report(out, results, settings, command)
    console.print(f"Look at {page}. Beside it: {', '.join(path.name for path in tables)}")


def _mean(rows: list[dict], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


@app.command()
def info(
    tape: Annotated[
        str,
        typer.Argument(help="The folder that a run was recorded in, or the URL of a copy of it."),
    ],
) -> None:
    """Describe a recorded run: what was trained, how far it got, what the tape holds."""
    from .tape.reader import MANIFEST, Tape
    from .tape.storage import is_url

    folder = Path(tape)
    if (
        not is_url(tape)
        and not (folder / MANIFEST).exists()
        and (inside := sorted(folder.glob(f"runs/*/*/{MANIFEST}")))
    ):
        raise BadInput(
            f"{tape} is a folder of dross clean; its recorded runs are {', '.join(str(path.parent) for path in inside)}."
        )
    opened = Tape(tape)
    made = opened.manifest
    parameters = sum(
        _size(shape)
        for name, (shape, _) in made["model"]["parameters"].items()
        if name in made["layout"]["names"]
    )
    planned = "" if made["planned"] in (None, opened.steps) else f" of {made['planned']:,} planned"
    rows = {
        "model": f"{made['model']['class']}, {parameters:,} parameters in training",
        "optimizer": made["optimizer"]["name"],
        "loss": made["loss"] + (" with a penalty" if made["penalty"] else ""),
        "instances": "not recorded" if made["instances"] is None else f"{made['instances']:,}",
        "steps": f"{opened.steps:,}{planned}"
        + (" (complete)" if opened.complete else " (not complete: continue with resume=True)"),
        "kept": f"steps {opened.first:,} to {opened.steps:,} in {len(opened.entries)} segments, {opened.nbytes / 1e6:,.1f} MB",
        "recorded on": f"{made['device']}, torch {made['torch']}, dross {made['dross']}",
    }
    for index in range(len(opened.entries)):
        opened.read(index)  # every digest is checked
    opened.end_state()
    rows["files"] = "all intact"
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", value)
    console.print(table)


def _size(shape: list[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


def main() -> None:
    """The `dross` command: an error that a person can mend is one message, not a traceback."""
    try:
        app()
    except DrossError as error:
        if "--debug" in sys.argv:
            raise
        Console(stderr=True).print(
            f"[bold red]{type(error).__name__}:[/bold red] {error}", highlight=False
        )
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as ended:  # typer turns Ctrl-C into an exit with 130
        if isinstance(ended, SystemExit) and ended.code != 130:
            raise
        Console(stderr=True).print(
            "Stopped. What was done is kept: give the same command again to go on."
        )
        sys.exit(130)
