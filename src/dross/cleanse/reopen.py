"""The data and the recipe of a finished project, read again from the input."""

from ..errors import TapeMismatch
from .inputs.load import Request, prepare
from .inputs.prepared import PreparedData, data_digest
from .inputs.user_code import import_function, source_digest
from .learning.recipe import Recipe
from .project import Project

_MEND = "Put it back as it was, or run dross clean again."


def reopen_inputs(project: Project) -> tuple[PreparedData, Recipe]:
    """Read the input once more; refuse it if it has changed since `dross clean` read it."""
    about = project.about
    prepared = prepare(Request(**about["request"]))
    if data_digest(prepared) != about["digest"]:
        data = about["request"]["data"]
        raise TapeMismatch(f"{data} has changed since dross clean read it. {_MEND}")
    make = about["options"]["make"]
    if make is not None and source_digest(make) != about["model_source"]:
        raise TapeMismatch(f"The module of {make} has changed since dross clean used it. {_MEND}")
    saved = about["recipe"] | {"inputs": tuple(about["recipe"]["inputs"])}
    return prepared, Recipe(
        **saved, make=None if make is None else import_function(make, "--model")
    )
