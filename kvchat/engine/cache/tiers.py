"""The slower tiers as bookkeeping sees them: what is there, not how it is read."""

from collections.abc import Sequence
from typing import Protocol

from kvchat.engine.api.ids import BlockKey, GroupId


class StoredNode(Protocol):
    """A block of a slower tier: its ids, and the groups that have its bytes."""

    @property
    def key(self) -> BlockKey: ...

    @property
    def token_ids(self) -> tuple[int, ...]: ...

    @property
    def groups(self) -> frozenset[GroupId]: ...


class SlowTier(Protocol):
    def has_all(self, keys: Sequence[BlockKey], group: GroupId) -> Sequence[bool]:
        """For each key, whether the tier has its bytes for `group`. Pure."""
        ...

    def children(self, parent: BlockKey) -> Sequence[StoredNode]:
        """Return the full blocks and tails directly behind `parent`. Pure."""
        ...


class NoTier:
    """The absent tier: it has nothing."""

    def has_all(self, keys: Sequence[BlockKey], group: GroupId) -> Sequence[bool]:
        return [False] * len(keys)

    def children(self, parent: BlockKey) -> Sequence[StoredNode]:
        return ()
