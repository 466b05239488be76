"""Cells that a spreadsheet would run as formulas."""

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def disarm_cell(cell: object) -> object:
    """A cell for a file that a person opens in a spreadsheet.

    A text that a spreadsheet would take for a formula gets an apostrophe before it, which makes it
    a text there. Numbers, and texts that are numbers, stay as they are.
    """
    if not isinstance(cell, str) or not cell.startswith(_BEGINS_A_FORMULA):
        return cell
    return cell if _is_number(cell) else f"'{cell}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return not text.isspace() and "_" not in text
