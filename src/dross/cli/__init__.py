"""The command line: `dross clean`, `dross review`, `dross judge`, `dross export` and the rest."""

from . import demo, cleaning, tapes  # in the order of the help  # isort: skip
from .app import app, main

__all__ = ["app", "cleaning", "demo", "main", "tapes"]
