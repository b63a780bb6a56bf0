"""Text that comes in pieces, of which a server may cut one in the middle of a character.

JSON writes a character beyond the first 65,536 as a pair of surrogates; half of one is no text, and neither a
database nor a terminal takes it.
"""

_LEADING = range(0xD800, 0xDC00)
"""The first halves."""
_CODEC = "utf-16-le"


class Pairs:
    """Joins halves that come in two pieces; one that stays alone becomes U+FFFD."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Return what can be told of all that has come; a half at its end waits for the other."""
        text = self._held + text
        is_cut = bool(text) and ord(text[-1]) in _LEADING
        self._held = text[-1] if is_cut else ""
        return _whole(text[:-1] if is_cut else text)

    def finish(self) -> str:
        """Return what still waits, at the end."""
        left, self._held = self._held, ""
        return _whole(left)


def _whole(text: str) -> str:
    return text.encode(_CODEC, "surrogatepass").decode(_CODEC, "replace")
