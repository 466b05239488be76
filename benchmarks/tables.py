"""What the benchmarks share: a parser that shows the module's docstring, and Markdown tables."""

import argparse


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows the description as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def print_head(*columns: str) -> None:
    """Print the first two lines of a table."""
    print_row(*columns)
    print("|" + " --- |" * len(columns), flush=True)


def print_row(*cells: object) -> None:
    """Print a line of a table."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)
