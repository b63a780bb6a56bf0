"""Namespaces: the blocks that a request may reuse, where one name is not enough.

Over a view a sequence begins with exact blocks, which all sessions of a namespace share, and goes on with
blocks of its own session. Both stand in one text, so whatever passes a namespace on passes this on too.
"""

from dataclasses import dataclass

from kvchat.errors import InvalidRequest

_SEPARATOR = "\x1f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Args:
    shared: namespace of exact blocks.
    owner: whose the other blocks are, a session's id; empty: nobody else's than the sequence's.
    answer_starts: where answers begin in the tokens, ascending: prompts have been read as a whole there.
    """

    shared: str = ""
    owner: str = ""
    answer_starts: tuple[int, ...] = ()

    def __str__(self) -> str:
        return _SEPARATOR.join((self.shared, self.owner, ",".join(map(str, self.answer_starts))))


def parse_namespace(text: str) -> Namespace:
    """Return what `str` of a namespace says; other text is that of exact blocks.

    Raises:
        InvalidRequest: it says where answers start, and these are no ascending numbers.
    """
    shared, *others = text.split(_SEPARATOR)
    if not others:
        return Namespace(shared=text)
    owner, starts = (*others, "")[:2]
    numbers = tuple(int(part) for part in starts.split(",") if part.isascii() and part.isdigit())
    is_whole = len(others) == 2 and (not starts or len(numbers) == len(starts.split(",")))
    if not is_whole or list(numbers) != sorted(set(numbers)):
        raise InvalidRequest(f"the namespace {text!r} does not say where answers start")
    return Namespace(shared=shared, owner=owner, answer_starts=numbers)
