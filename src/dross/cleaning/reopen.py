"""The data and the recipe of a finished project, read again from the input."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from .._checks import fit_together, fits
from ..errors import InputChanged
from .features import Encoding, encode_again
from .inputs import Request, digest_inputs, digest_listed_pictures, prepare
from .modality import PreparedData, data_digest
from .project import Project
from .project_files import explain_lack
from .training import Recipe
from .user_code import check_trusted, import_function, source_digest

_MEND = "Put it back as it was, or run dross clean again."


def read_request(project: Project) -> Request:
    """What the project was made from; raises CorruptFile."""
    said = project.about.get("request")
    if not isinstance(said, dict) or not fit_together(said, get_type_hints(Request)):
        raise explain_lack(project.folder, "request")
    try:
        return Request(**said).located(project.folder)
    except TypeError:
        raise explain_lack(project.folder, "request") from None


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
        CorruptFile: project.json lacks something.
    """
    about, make = project.about, _model_code(project) if needs_model else None
    try:
        saved = about["recipe"] | {"inputs": tuple(about["recipe"]["inputs"])}
    except (KeyError, TypeError):
        raise explain_lack(project.folder, "recipe") from None
    needed = needed_code(project) if needs_model else _data_code(project)
    check_trusted(needed, trust_code, str(project.folder))
    encoding = Encoding.from_json(about.get("encoding"))
    if encoding is None:
        raise explain_lack(project.folder, "encoding")
    prepared = _reopen_data(project)
    prepared = encode_again(prepared, encoding, project.folder, about["digest"])
    function = None
    if make is not None:
        _check_source(make, about.get("model_source"))
        function = import_function(make)
    try:
        return prepared, Recipe.from_json(saved, function)
    except TypeError:
        raise explain_lack(project.folder, "recipe") from None


def reopen_data(project: Project) -> PreparedData:
    """Read the input once more; no code is imported, and none is trusted.

    Models may have learnt other inputs: features, which `reopen_inputs` reads.

    Raises as `reopen_inputs`.
    """
    check_trusted(_data_code(project), (), str(project.folder))
    return _reopen_data(project)


def needed_code(project: Project) -> list[str]:
    """The `module:function`s that `reopen_inputs` imports; raises CorruptFile."""
    make = _model_code(project)
    return [*_data_code(project), *([] if make is None else [make])]


def check_code_unchanged(project: Project, entries: Sequence[str]) -> None:
    """Refuse code that is not what the project was made with; nothing is imported.

    Arguments:
        project: The project.
        entries: The `module:function`s to look at; those that it does not need are skipped.

    Raises:
        InputChanged: one of their modules has changed.
        CorruptFile: project.json lacks something.
    """
    recorded = dict.fromkeys(_data_code(project), project.about.get("data_source"))
    if (make := _model_code(project)) is not None:
        recorded[make] = project.about.get("model_source")
    for entry in entries:
        _check_source(entry, recorded.get(entry))


def check_unchanged(project: Project, prepared: PreparedData) -> None:
    """Refuse input files that are not, byte for byte, those that `dross clean` read.

    Raises:
        InputChanged: one of them has changed.
    """
    request = read_request(project)
    _compare_digests(project, digest_inputs(request) | digest_listed_pictures(request, prepared))


def compare_inputs(project: Project) -> None:
    """The same for inputs that list no other files; nothing is read into memory."""
    _compare_digests(project, digest_inputs(read_request(project)))


def _data_code(project: Project) -> list[str]:
    """The function that the data come from, if there is one."""
    request = read_request(project)
    return [request.data] if names_code(request) else []


def _model_code(project: Project) -> str | None:
    """The function that builds the model, if there is one."""
    try:
        return project.about["options"]["make"]
    except (KeyError, TypeError):
        raise explain_lack(project.folder, "recipe") from None


def _reopen_data(project: Project) -> PreparedData:
    """Read the input once more. Code that it needs is trusted by now, but may have changed."""
    request = read_request(project)
    for entry in _data_code(project):
        _check_source(entry, project.about.get("data_source"))
    _compare_digests(project, digest_inputs(request))
    prepared = prepare(request)
    if data_digest(prepared) != project.about.get("digest"):
        raise InputChanged(f"{request.data} has changed since dross clean read it. {_MEND}")
    return prepared


def _check_source(entry: str, recorded: Any) -> None:
    """Compare a module with the one that was used, before it is imported."""
    if recorded is not None and source_digest(entry) != recorded:
        raise InputChanged(f"The module of {entry} has changed since dross clean used it. {_MEND}")


def _compare_digests(project: Project, found: dict[str, str]) -> None:
    recorded = project.about.get("input_files", {})  # earlier versions wrote none
    if not fits(recorded, dict[str, str]):
        raise explain_lack(project.folder, "input_files")
    for name, digest in found.items():
        if recorded.get(name, digest) != digest:
            given = getattr(read_request(project), name, name)
            raise InputChanged(
                f"{given} has changed since dross clean read it, if only in a column or a file "
                f"that is not learnt from. {_MEND}"
            )
