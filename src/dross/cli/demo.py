"""`dross demo`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from .app import app, command
from .output import console, print_verdict, say


@command(app)
def demo(
    out: Annotated[
        Path, Option(help="Where everything goes. What an earlier demo left there is replaced.")
    ] = Path("runs/demo"),
    seeds: Annotated[int, Option(min=2, help="How many fresh seeds the verdict rests on.")] = 10,
) -> None:
    """Clean the digits of scikit-learn, with 5 % of the training labels flipped on purpose.

    Reads them as pictures, trains and records four runs, scores every training instance by how
    much worse it makes the model, checks the scores against real retraining, recommends a plan of
    what to remove or relabel, and judges that plan with fresh seeds on test data.
    """
    from ..demo import FLIPPED_SHARE, TRAIN, run_demo

    console.print(
        f"{TRAIN} digits to learn from, {FLIPPED_SHARE:.0%} of them with a wrong label on purpose."
    )
    result = run_demo(out, seeds=seeds, say=say)
    console.print(
        f"\nThe plan touches {result.acted_on} instances. {result.found} of them are among the "
        f"{result.flipped} whose label was flipped; it misses {result.flipped - result.found}.\n"
    )
    if result.verdict is not None:
        print_verdict(result.verdict)
    folder = result.project.folder
    console.print(
        f"\nRead the report: {folder / 'report.html'}\nLook and decide: dross review {folder}",
        soft_wrap=True,
    )
