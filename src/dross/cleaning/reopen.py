"""The data and the recipe of a finished project, read again from the input."""

from collections.abc import Sequence

from ..errors import InputChanged
from .features import encode_again
from .inputs import digest_inputs, prepare
from .modality import PreparedData, data_digest
from .project import Project
from .training import Recipe
from .user_code import check_trusted, import_function, source_digest

_MEND = "Put it back as it was, or run dross clean again."


def needed_code(project: Project, *, needs_model: bool = True) -> list[str]:
    """The `module:function`s that `reopen_inputs` imports."""
    options, request = project.info.options, project.request
    model = options.make if options is not None and needs_model else None
    return [*([request.data] if request.is_code else []), *([model] if model else [])]


def reopen_inputs(
    project: Project, trust_code: Sequence[str] = (), *, needs_model: bool = True
) -> tuple[PreparedData, Recipe]:
    """Read the input once more, and make the recipe of the models.

    Arguments:
        project: The project.
        trust_code: The `module:function`s that may be imported. The project's own word is not
            enough.
        needs_model: Whether the recipe is to build models. If not, no code is needed for them.

    Raises:
        InvalidInput: the project needs code that `trust_code` does not name.
        InputChanged: the input, or the code, has changed since `dross clean` read it.
    """
    info = project.info
    assert info.training is not None and info.options is not None  # only chats have none
    check_trusted(needed_code(project, needs_model=needs_model), trust_code, project.folder)
    compare_digests(project, digest_inputs(project.request))
    prepared = prepare(project.request)
    if data_digest(prepared) != info.digest:
        raise InputChanged(f"{info.request.data} has changed since dross clean read it. {_MEND}")
    prepared = encode_again(prepared, info.training.encoding, project.folder, info.digest)
    function = None
    if needs_model and info.options.make is not None:
        function = import_function(info.options.make)
        if source_digest(info.options.make) != info.model_source:
            raise InputChanged(f"The module of {info.options.make} has changed. {_MEND}")
    return prepared, Recipe(**vars(info.training.recipe), make=function)


def compare_digests(project: Project, found: dict[str, str]) -> None:
    """Refuse input files that are not, byte for byte, those that `dross clean` read.

    Raises:
        InputChanged: one of them has changed.
    """
    for name, digest in found.items():
        if project.info.input_files.get(name) != digest:
            path = getattr(project.request, name, name)
            raise InputChanged(
                f"{path} has changed since dross clean read it, if only in a column or a file "
                f"that is not learned from. {_MEND}"
            )
