"""The command line: `dross clean`, `dross review`, `dross judge`, `dross export` and the rest."""

from . import commands
from .app import app, main

__all__ = ["app", "commands", "main"]
