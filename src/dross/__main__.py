"""`dross`, or `python -m dross`: the command line."""

import sys


def main() -> None:
    """Run the command line, or say what it needs where dross was installed without it."""
    try:
        from .cli import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("dross", "torch", "numpy"):
            raise
        print(
            f"The command line needs {error.name}, which is not installed. Install what is "
            "missing: pip install dross, without --no-deps.",
            file=sys.stderr,
        )
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
