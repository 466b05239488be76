"""From a file to a better model: read, train, score, suggest, decide, judge, export."""

from . import export as _export  # noqa: F401  # Project.cleaned needs it, and is below it
