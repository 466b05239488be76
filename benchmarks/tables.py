"""What the benchmarks share: a parser that shows docstrings, tables in Markdown and CSV."""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


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


def merge_rows(path: Path, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    """Put rows into a CSV file, in the place of those with the same keys or else at its end.

    Arguments:
        path: the file; its columns and its line ends stay as they are.
        rows: their columns must be among them.
        keys: the columns that name a row.
    """
    ends = "\r\n" if b"\r\n" in path.read_bytes() else "\n"
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns, old = list(reader.fieldnames or []), list(reader)
    name = lambda row: tuple(str(row[key]) for key in keys)
    merged = {name(row): row for row in old} | {name(row): dict(row) for row in rows}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator=ends)
        writer.writeheader()
        writer.writerows(merged.values())
