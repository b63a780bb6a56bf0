"""Text made safe to draw, and cut to the room there is."""

from kvchat.session.plain_text import clean_text as clean_text
from kvchat.session.plain_text import one_line as one_line


def fitted(text: str, width: int) -> str:
    """Return one line cut to `width` characters, with a mark where something is missing."""
    return text if len(text) <= width else text[: width - 1] + "…"
