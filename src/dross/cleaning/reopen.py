"""The data and the recipe of a finished project, read again from the input."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import InputChanged
from .features import encode_again
from .inputs import Request, digest_inputs, digest_listed_pictures, prepare
from .modality import PreparedData, data_digest
from .project import Project
from .training import Recipe
from .user_code import check_trusted, import_function, source_digest

_MEND = "Put it back as it was, or run dross clean again."


def names_code(request: Request) -> bool:
    """Whether `prepare` would import a function."""
    return ":" in request.data and not Path(request.data).exists()


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
    assert info.training is not None  # only chats have none
    make = _model_code(project) if needs_model else None
    needed = needed_code(project) if needs_model else _data_code(project)
    check_trusted(needed, trust_code, str(project.folder))
    prepared = _reopen_data(project)
    prepared = encode_again(prepared, info.training.encoding, project.folder, info.digest)
    function = None
    if make is not None:
        _check_source(make, info.model_source)
        function = import_function(make)
    return prepared, Recipe(**vars(info.training.recipe), make=function)


def reopen_data(project: Project) -> PreparedData:
    """Read the input once more; no code is imported, and none is trusted.

    Models may have learnt other inputs: features, which `reopen_inputs` reads.

    Raises as `reopen_inputs`.
    """
    check_trusted(_data_code(project), (), str(project.folder))
    return _reopen_data(project)


def needed_code(project: Project) -> list[str]:
    """The `module:function`s that `reopen_inputs` imports."""
    make = _model_code(project)
    return [*_data_code(project), *([] if make is None else [make])]


def check_code_unchanged(project: Project, entries: Sequence[str]) -> None:
    """Refuse code that is not what the project was made with; nothing is imported.

    Arguments:
        project: The project.
        entries: The `module:function`s to look at; those that it does not need are skipped.

    Raises:
        InputChanged: one of their modules has changed.
    """
    recorded = dict.fromkeys(_data_code(project), project.info.data_source)
    if (make := _model_code(project)) is not None:
        recorded[make] = project.info.model_source
    for entry in entries:
        _check_source(entry, recorded.get(entry))


def check_unchanged(project: Project, prepared: PreparedData) -> None:
    """Refuse input files that are not, byte for byte, those that `dross clean` read.

    Raises:
        InputChanged: one of them has changed.
    """
    request = project.request
    _compare_digests(project, digest_inputs(request) | digest_listed_pictures(request, prepared))


def compare_inputs(project: Project) -> None:
    """The same for inputs that list no other files; nothing is read into memory."""
    _compare_digests(project, digest_inputs(project.request))


def _data_code(project: Project) -> list[str]:
    """The function that the data come from, if there is one."""
    request = project.request
    return [request.data] if names_code(request) else []


def _model_code(project: Project) -> str | None:
    """The function that builds the model, if there is one."""
    return None if project.info.options is None else project.info.options.make


def _reopen_data(project: Project) -> PreparedData:
    """Read the input once more. Code that it needs is trusted by now, but may have changed."""
    request = project.request
    for entry in _data_code(project):
        _check_source(entry, project.info.data_source)
    _compare_digests(project, digest_inputs(request))
    prepared = prepare(request)
    if data_digest(prepared) != project.info.digest:
        raise InputChanged(f"{request.data} has changed since dross clean read it. {_MEND}")
    return prepared


def _check_source(entry: str, recorded: str | None) -> None:
    """Compare a module with the one that was used, before it is imported."""
    if recorded is not None and source_digest(entry) != recorded:
        raise InputChanged(f"The module of {entry} has changed since dross clean used it. {_MEND}")


def _compare_digests(project: Project, found: dict[str, str]) -> None:
    for name, digest in found.items():
        if project.info.input_files.get(name) != digest:
            given = getattr(project.request, name, name)
            raise InputChanged(
                f"{given} has changed since dross clean read it, if only in a column or a file "
                f"that is not learnt from. {_MEND}"
            )
