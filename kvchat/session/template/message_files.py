"""Files in a message, ahead of its text: written with tags, and parsed back.

The number of lines in the tag says where a file ends, whatever is written in it.
"""

import re
from collections.abc import Sequence

OPENING = re.compile(r'<file name="([^"\n]*)" lines="(\d{1,9})">\n')
_CLOSING = "</file>\n\n"

NamedText = tuple[str, str]


def with_files(files: Sequence[NamedText], words: str = "") -> str:
    """Return a message of some files, each a name and a text, and words."""
    written = (
        f'<file name="{name}" lines="{text.count(chr(10)) + 1}">\n{text}\n{_CLOSING}' for name, text in files
    )
    return "".join(written) + words


def split_files(text: str) -> tuple[tuple[NamedText, ...], str]:
    """Return the files of a message, and its words."""
    found = []
    while (opening := OPENING.match(text)) is not None:
        lines = text[opening.end() :].split("\n", int(opening[2]))
        rest = lines.pop() if len(lines) > int(opening[2]) else ""
        if not rest.startswith(_CLOSING):
            break
        found.append((opening[1], "\n".join(lines)))
        text = rest.removeprefix(_CLOSING)
    return tuple(found), text
