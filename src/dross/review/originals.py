"""The pictures of the input in their own size; a project itself holds small copies only."""

import io
from functools import cached_property
from pathlib import Path

from ..cleaning.images import load_picture
from ..cleaning.inputs import picture_root
from ..cleaning.project import Project
from ..cleaning.reopen import names_code, read_request
from ..errors import DrossError

_MAX_SIDE = 4096  # pixels; browsers and people see no more at once


class Originals:
    """Where the pictures of a project's instances come from.

    Arguments:
        project: What is reviewed.
    """

    def __init__(self, project: Project):
        self.project = project

    def read(self, part: str, id: int) -> bytes | None:
        """Read a picture in its own size.

        Arguments:
            part: train or validation.
            id: The place of the instance in that part.

        Returns:
            The bytes of a PNG file; None where the input is not where it was.
        """
        path = self._find(part, id)
        if path is None:
            return None
        try:
            picture = load_picture(path)
        except DrossError:
            return None  # it was moved, or is damaged by now
        picture.thumbnail((_MAX_SIDE, _MAX_SIDE))
        written = io.BytesIO()
        picture.save(written, "PNG", compress_level=1)  # quick: it goes to this machine
        return written.getvalue()

    def _find(self, part: str, id: int) -> Path | None:
        tables = {"train": "content", "validation": "validation"}
        if self._root is None or part not in tables:
            return None
        table = getattr(self.project, tables[part])
        return self._root / str(table.at[id, "path"]) if id in table.index else None

    @cached_property
    def _root(self) -> Path | None:
        """The folder that paths are relative to; None where the project does not say."""
        if self.project.about["kind"] != "images":
            return None
        try:
            request = read_request(self.project)
        except DrossError:
            return None
        return None if names_code(request) else picture_root(Path(request.data))
