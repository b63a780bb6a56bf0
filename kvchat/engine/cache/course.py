"""What a branch keeps in sight, and how that shows in the names of its blocks.

In the exact format every block descends from the one before. Over a view, what is computed once something is
out of sight is another text's KV, so from there on names descend from a taint too: the view, and whose
branch it is. No other session's prompt is ever matched with them, and the same session finds them again.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from kvchat.engine.api.ids import KEY_BYTES, BlockKey
from kvchat.engine.api.namespace import Namespace, parse_namespace
from kvchat.engine.cache.spec import Group
from kvchat.engine.cache.view_spec import WindowSpec

_TAINT_PERSON = b"kvchat.taint1"
Hole = tuple[int, int]
"""Blocks [start, end) that are out of sight."""


def taint_key(parent: BlockKey, salt: bytes) -> BlockKey:
    """Return the parent of what is computed behind `parent` over a view."""
    return BlockKey(blake2b(parent + salt, digest_size=KEY_BYTES, person=_TAINT_PERSON).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Args:
    salt: what the taint consists of: view and owner.
    first_tainted: of a window: the first block whose queries miss something; None: there is none.
    """

    salt: bytes = b""
    first_tainted: int | None = None

    def parent(self, number: int, previous: BlockKey, num_tokens: int) -> BlockKey:
        """Return the parent of block `number` of a branch with `num_tokens` tokens. Pure.

        Args:
            previous: key of the block before, or the root.
        """
        return taint_key(previous, self.salt) if number == self.first_tainted else previous

    def holes(self, group: Group, num_tokens: int, block_size: int) -> tuple[Hole, ...]:
        """Return what is out of sight behind `num_tokens` tokens, ascending. Pure."""
        first = group.spec.first_visible(num_tokens) // block_size
        sinks = group.spec.num_sink_blocks
        return ((sinks, first),) if first > sinks else ()

    def numbers(self, group: Group, num_tokens: int, block_size: int) -> list[int]:
        """Return the numbers of the blocks among those of `num_tokens` tokens that are in sight. Pure."""
        return in_sight(self.holes(group, num_tokens, block_size), group.num_blocks(num_tokens, block_size))


EXACT = Course()


class Courses:
    """The courses of branches whose layers are these."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._windows = [group.spec for group in groups if isinstance(group.spec, WindowSpec)]

    @property
    def are_exact(self) -> bool:
        """Whether all of every branch stays in sight."""
        return not self._windows

    def parse(self, namespace: str) -> Namespace:
        """Return what a namespace says. Pure."""
        return parse_namespace(namespace)

    def of(self, owner: str, namespace: str) -> Course:
        """Return the course of a new branch.

        Args:
            owner: whose branch it is, where the namespace does not say it; nobody's blocks are never found
                again.
        """
        if self.are_exact:
            return EXACT
        name = self.parse(namespace).owner or owner
        nonce = b"owner" + name.encode() if name else secrets.token_bytes(KEY_BYTES)
        spec = self._windows[0]
        return Course(
            salt=f"window {spec.num_recent} of {spec.block_size}".encode() + nonce,
            first_tainted=spec.first_tainted,
        )


def in_sight(holes: Sequence[Hole], end: int) -> list[int]:
    """Return the numbers below `end` that are in no hole. Pure."""
    numbers: list[int] = []
    start = 0
    for first, last in holes:
        numbers += range(start, min(first, end))
        start = last
    return numbers + list(range(start, end))
