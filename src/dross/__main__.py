"""`python -m dross`: the command line."""

from .cli import main

main()
