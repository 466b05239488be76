"""The command line."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .errors import DrossError

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
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def demo(
    tape: Annotated[Path, typer.Option(help="Where to record the run. Only runs/demo is replaced if it is there.")] = _DEMO,
    checked: Annotated[int, typer.Option(min=8, help="How many instances to verify by retraining without each of them.")] = 64,
) -> None:
    """The whole story on the digits inside scikit-learn, with 5 % of the labels flipped.

    Trains a small network and records the run, scores every training instance by how much worse it makes the validation
    loss, checks the scores against real retraining, and shows what removing the most harmful instances does.
    """
    from . import demo as demonstration

    console.print(
        f"Training on {demonstration.TRAIN} digits, {demonstration.FLIPPED:.0%} of them with a wrong label on purpose, "
        "and recording the run ..."
    )
    story = demonstration.tell(tape, checked=checked, overwrite=tape == _DEMO)
    digits, scores = story.digits, story.scores
    console.print(f"Scored {len(scores)} instances by retracing {story.run.steps} steps, then checked {checked} by retraining.\n")

    table = Table(title="The ten most harmful instances", title_justify="left")
    for name in ("id", "score", "label", "true label", "flipped"):
        table.add_column(name, justify="right")
    for j in scores.most_harmful(10):
        label, true = int(digits.train[1][j]), digits.true_labels[j]
        table.add_row(str(j), f"{scores.values[j]:+.5f}", str(label), str(true), "yes" if digits.flipped[j] else "")
    console.print(table)
    console.print("A score is the estimated change of the validation loss had the instance been absent: below 0 it did harm.\n")

    m, total = story.removed, int(digits.flipped.sum())
    by_chance = m * digits.flipped.mean()
    console.print(
        f"Of the {m} most harmful, {story.found(m)} are among the {total} flipped ones; by chance it would be {by_chance:.0f}.\n"
    )
    console.print(f"[bold]Can the scores be trusted?[/bold] {story.verification.sentence}\n")

    table = Table(title=f"The same training again, without {m} instances", title_justify="left")
    for name in ("removed", "validation loss", "test loss", "test error"):
        table.add_column(name, justify="left" if name == "removed" else "right")
    for kind in story.test:
        row = (f"{story.validation[kind]:.4f}", f"{story.test[kind]:.4f}", f"{story.test_error[kind]:.1%}")
        table.add_row(kind, *row)
    console.print(table)
    tested = len(digits.test[1])
    console.print(
        f"The test error counts mistakes among only {tested} digits, so a difference of a few tenths of a percent means nothing; "
        "the loss says more.\n"
    )
    console.print(f"The run is kept in {tape}; [bold]dross info {tape}[/bold] describes it.")


reproduce = typer.Typer(no_args_is_help=True, help="Run the paper's experiments again.")
app.add_typer(reproduce, name="reproduce")


@reproduce.command()
def table1(
    repetitions: Annotated[int, typer.Option(min=1, help="How many times to draw, train and compare. The paper has 100.")] = 10,
    only: Annotated[str, typer.Option(help="Cells to compute, separated by commas: adult-dnn, 20news-logreg, ...")] = "",
    out: Annotated[Path, typer.Option(help="Where results are kept. A run that was stopped goes on from there.")] = Path(
        "runs/table1"
    ),
    jobs: Annotated[int, typer.Option(min=1, help="How many repetitions to compute at once.")] = os.cpu_count() or 1,
) -> None:
    """Table 1: how well the linear influence is estimated, against 200 counterfactual runs per repetition.

    Needs Adult, 20 Newsgroups and MNIST: in the folder that DROSS_DATA names, in the cache, or from the network. About 40 seconds of
    one core per repetition of all six cells.
    """
    from .reproduce import table1 as experiment

    cells = experiment.check_cells([name.strip() for name in only.split(",") if name.strip()]) or list(experiment.CELLS)
    results = experiment.run_all(out, cells, repetitions, jobs=jobs)
    rows = experiment.summarized(results)
    table = Table(title=f"{repetitions} repetitions: mean (std), and the paper's mean", title_justify="left")
    for name in ("cell", "estimate", "tau", "paper", "Jaccard", "paper"):
        table.add_column(name, justify="left" if name in ("cell", "estimate") else "right")
    for row in rows:
        if row["truth"] == "change":
            known = [experiment.paper_value(row["cell"], row["method"], metric) for metric in ("tau", "jaccard")]
            shown = [f"{row[metric]:.2f} ({row[metric + '_std']:.2f})" for metric in ("tau", "jaccard")]
            tau, jaccard = ("" if value is None else f"{value:.2f}" for value in known)
            table.add_row(row["cell"], experiment.METHODS[row["method"]], shown[0], tau, shown[1], jaccard)
    console.print(table)
    written = experiment.write(out, rows, results)
    console.print(f"Written: {', '.join(str(path) for path in written)}")


@reproduce.command()
def cleansing(
    data: Annotated[str, typer.Option(help="mnist, fashion-mnist or cifar10.")] = "mnist",
    draws: Annotated[str, typer.Option(help="Which draws of validation data: 0:30 are the first thirty.")] = "0:3",
    retrain: Annotated[str, typer.Option(help="How to train again, separated by commas: last, all, fresh.")] = "last",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas. Default: all of them.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A small subset and few epochs: a few minutes on two cores.")] = False,
    out: Annotated[Path, typer.Option(help="Where results are kept, draw by draw; a run that was stopped goes on.")] = Path(
        "runs/cleansing"
    ),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Section 7.2: remove what each method finds harmful, train again, and measure the test error.

    Full size means 20 epochs on 50,000 pictures per draw: use a GPU, or --quick. Draws computed on different machines are merged by
    putting their files into one folder.
    """
    from .reproduce import cleansing as experiment
    from .reproduce import cleansing_report

    settings = experiment.Settings.of(data, quick)
    split = lambda text: [part.strip() for part in text.split(",") if part.strip()]
    chosen = experiment.check("method", split(methods), experiment.METHODS) or list(experiment.METHODS)
    ways = experiment.check("way to retrain", split(retrain), experiment.RETRAINED)
    for number in experiment.numbers(draws):
        console.print(f"Draw {number}: train, score by {len(chosen)} methods, train again ({', '.join(ways)}) ...")
        experiment.compute(settings, number, chosen, ways, out, device=device)
    results = experiment.merged(out, settings)
    rows = [row for result in results for row in result["rows"]]
    table = Table(
        title=f"Test error after removing m, mean over draws; nothing removed: {_mean(rows, 'error_kept'):.2%}",
        title_justify="left",
    )
    summary = [row for row in experiment.summarized(rows) if row["method"] in chosen and row["retrain"] in ways]
    sizes = sorted({row["m"] for row in summary})
    for name in ("retrain", "method", *map(str, sizes)):
        table.add_column(name, justify="left" if name in ("retrain", "method") else "right")
    for way in ways:
        for method in chosen:
            cells = {row["m"]: row for row in summary if (row["retrain"], row["method"]) == (way, method)}
            table.add_row(way, method, *(f"{cells[m]['error']:.2%}" if m in cells else "" for m in sizes))
    console.print(table)
    for sentence in cleansing_report.findings(experiment.summarized(rows)):
        console.print(sentence)
    command = f"dross reproduce cleansing --data {data} --draws {draws} --retrain {','.join(ways)} --methods '{','.join(chosen)}'{' --quick' * quick}"
    *tables, page = cleansing_report.write(out, results, settings, command)
    console.print(f"Look at {page}. Beside it: {', '.join(path.name for path in tables)}")


def _mean(rows: list[dict], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


@app.command()
def info(tape: Annotated[Path, typer.Argument(help="The folder that a run was recorded in.")]) -> None:
    """Describe a recorded run: what was trained, how far it got, what the tape holds."""
    from .tape import Tape

    opened = Tape(tape)
    made = opened.manifest
    parameters = sum(_size(shape) for name, (shape, _) in made["model"]["parameters"].items() if name in made["layout"]["names"])
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
        Console(stderr=True).print(f"[bold red]{type(error).__name__}:[/bold red] {error}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped. What was recorded is kept.")
        sys.exit(130)
