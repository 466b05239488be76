"""What a tape holds, as values and in words: for `dross info` and for notebooks."""

import math
from typing import Any

from .._text import say_count
from .reader import Tape


def summarize_tape(tape: Tape) -> dict[str, Any]:
    """What was trained, how far it got, and what is kept, as values that JSON can hold."""
    manifest = tape.manifest
    shapes = {name: shape for name, (shape, _) in manifest["model"]["parameters"].items()}
    trained = [shape for name, shape in shapes.items() if name in manifest["layout"]["names"]]
    return {
        "model": manifest["model"]["class"],
        "parameters": sum(math.prod(shape) for shape in trained),
        "optimizer": manifest["optimizer"]["name"],
        "loss": manifest["loss"],
        "penalty": bool(manifest["penalty"]),
        "instances": manifest["instances"],
        "steps": tape.steps,
        "planned_steps": manifest["planned"],
        "complete": tape.complete,
        "first_step": tape.first,
        "segments": len(tape.entries),
        "bytes": tape.nbytes,
        "device": manifest["device"],
        "torch": manifest["torch"],
        "dross": manifest["dross"],
    }


def describe_tape(tape: Tape) -> dict[str, str]:
    """The same in words: a name and a text for each row of a table."""
    about = summarize_tape(tape)
    planned, instances = about["planned_steps"], about["instances"]
    of_planned = "" if planned in (None, tape.steps) else f" of {planned:,} planned"
    state = "complete" if tape.complete else "not complete: continue with resume=True"
    return {
        "model": f"{about['model']}, {about['parameters']:,} parameters in training",
        "optimizer": about["optimizer"],
        "loss": about["loss"] + (" with a penalty" if about["penalty"] else ""),
        "instances": "not recorded" if instances is None else f"{instances:,}",
        "steps": f"{tape.steps:,}{of_planned} ({state})",
        "kept": f"steps {tape.first:,} to {tape.steps:,} in "
        f"{say_count(len(tape.entries), 'segment')}, {tape.nbytes / 1e6:,.1f} MB",
        "recorded on": f"{about['device']}, torch {about['torch']}, dross {about['dross']}",
    }
