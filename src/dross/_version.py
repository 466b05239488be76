"""The version of dross."""

__version__ = "0.1.0"
