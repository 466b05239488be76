"""`dross info`."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from ..errors import InvalidInput
from . import options as option
from .app import app, command
from .output import print_json, print_tape


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
