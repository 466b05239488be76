"""Text from data and file names, made fit to be shown."""

import re

from ..errors import InvalidInput

# Control characters but for tab and line feed, halves of surrogate pairs, line and paragraph
# separators, and what changes the direction of text: on a terminal or a page they hide or forge it.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    r"""The text with its unprintable characters escaped: a NUL becomes the four letters `\x00`."""
    return _UNPRINTABLE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def check_encodable(name: str) -> None:
    """Refuse the name of a file that is not UTF-8: no report, list or page could hold it."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput(
            f"The name of {printable(name)} is not UTF-8. Give the file another name."
        ) from None
