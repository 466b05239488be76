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
    """Clean 900 digits of scikit-learn, 5 % of whose labels are wrong on purpose.

    Reads them as pictures, examines every label with models that did not learn it, recommends what
    to relabel or remove, judges that with fresh seeds on parts of the data that had no part in it,
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
    if result.copy is not None:
        console.print(
            f"Wrong labels: {result.flipped} of {TRAIN} before, {result.wrong_left} of "
            f"{result.written} in the cleaned copy, {result.copy}."
        )
        before, after = result.errors
        console.print(
            f"A logistic regression that learns them is wrong about {before:.1%} of other digits "
            f"before and {after:.1%} after.\n"
        )
    if result.verdict is not None:
        print_verdict(result.verdict)
    folder = result.project.folder
    console.print(
        f"\nRead the report: {folder / 'report.html'}\nLook and decide: dross review {folder}",
        soft_wrap=True,
    )
