"""The data and the recipe of a finished project, read again from the input."""

from ..errors import TapeMismatch
from .inputs.load import Prepared, Request, digest, loaded, prepare, source_of
from .project import Project
from .train_many import Recipe

_MEND = "Put it back as it was, or run dross clean again."


def reopen_inputs(project: Project) -> tuple[Prepared, Recipe]:
    """Read the input once more; refuse it if it has changed since `dross clean` read it."""
    about = project.about
    prepared = prepare(Request(**about["request"]))
    if digest(prepared) != about["digest"]:
        data = about["request"]["data"]
        raise TapeMismatch(f"{data} has changed since dross clean read it. {_MEND}")
    make = about["options"]["make"]
    if make is not None and source_of(make) != about["model_source"]:
        raise TapeMismatch(f"The module of {make} has changed since dross clean used it. {_MEND}")
    saved = about["recipe"] | {"inputs": tuple(about["recipe"]["inputs"])}
    return prepared, Recipe(**saved, make=None if make is None else loaded(make, "--model"))
