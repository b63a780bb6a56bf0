"""Printable text: removes what would steer a terminal or hide text from a reader."""

import re

# C0 but tab and newline, DEL, C1, and the marks that reorder a line: a model must not be able to steer the
# terminal or to show text in another order than it is stored in.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def clean_text(text: str) -> str:
    """Return `text` without control characters; what remains of an escape sequence stays as plain text.

    It looks at single characters only: a stream cleaned piece by piece equals the whole cleaned at once.
    """
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """Return `text` cleaned and with every run of white space as one space."""
    return " ".join(clean_text(text).split())
