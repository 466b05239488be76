"""`dross reproduce`: the paper's experiments."""

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from .app import app, command
from .output import console, print_table1, print_test_errors

reproduce = typer.Typer(no_args_is_help=True, help="Run the paper's experiments again.")
app.add_typer(reproduce, name="reproduce")


@command(reproduce)
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
    from ..reproduce import table1 as experiment

    cells = experiment.check_cells(_split(only)) or list(experiment.CELLS)
    results = experiment.run_all(out, cells, repetitions, n_jobs=jobs)
    rows = experiment.summarize(results)
    print_table1(rows, repetitions)
    written = experiment.write_report(out, rows, results)
    console.print(f"Written: {', '.join(str(path) for path in written)}")


@command(reproduce)
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
    from ..reproduce import cleansing as experiment
    from ..reproduce import cleansing_report
    from ..reproduce import cleansing_settings as settings_of

    settings = settings_of.Settings.of(data, quick)
    known = settings_of.METHODS
    chosen = settings_of.check_names("method", _split(methods), known) or list(known)
    ways = settings_of.check_names("way to retrain", _split(retrain), settings_of.RETRAIN_WAYS)
    numbers, again = settings_of.parse_draws(draws), ", ".join(ways)
    console.print(
        f"Draws {draws}: train, score by {len(chosen)} methods, train again ({again}) ..."
    )
    for number in experiment.compute_all(
        settings, numbers, chosen, ways, out, device=device, n_jobs=jobs
    ):
        console.print(f"Draw {number} is done.")
    results = experiment.load_results(out, settings)
    rows = [row for result in results for row in result["rows"]]
    summary = experiment.summarize(rows)
    print_test_errors(rows, summary, ways, chosen)
    for sentence in cleansing_report.findings(summary):
        console.print(sentence)
    command = (
        f"dross reproduce cleansing --data {data} --draws {draws} --retrain {','.join(ways)} "
        f"--methods '{','.join(chosen)}'{' --quick' * quick}"
    )
    *tables, page = cleansing_report.write_report(out, results, settings, command)
    console.print(f"Look at {page}. Beside it: {', '.join(path.name for path in tables)}")


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
