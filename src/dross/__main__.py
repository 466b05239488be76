"""`dross`, or `python -m dross`: the command line."""

import sys


def main() -> None:
    """Run the command line, or say what it needs where dross was installed without it."""
    try:
        from .cli import main as run
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in ("", "dross", "torch", "numpy"):
            raise
        from ._checks import explain_uninstalled

        print(explain_uninstalled("The command line", module), file=sys.stderr)
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
