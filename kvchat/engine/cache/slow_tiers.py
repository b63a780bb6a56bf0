"""The slower tiers as bookkeeping sees them: what is there, not how it is read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvchat.engine.api.ids import BlockKey, GroupId


@dataclass(frozen=True, slots=True)
class TierNode:
    """A block of a slower tier: its ids, and the groups that have its bytes."""

    key: BlockKey
    token_ids: tuple[int, ...]
    groups: frozenset[GroupId]


class SlowTier:
    """What is to be known of a slower tier. This one is absent: it has nothing."""

    def has_all(self, keys: Sequence[BlockKey], group: GroupId) -> Sequence[bool]:
        """For each key, whether the tier has its bytes for `group`. Pure."""
        return [False] * len(keys)

    def nearest(self, parent: BlockKey, token_ids: Sequence[int], most: int) -> Sequence[TierNode]:
        """Return full blocks and tails directly behind `parent`: those that begin most like `token_ids`, at
        most `most` in each direction of an order in which like stands beside like. Pure.
        """
        return ()

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Note that a request uses blocks, whether they are there or not. Never waits for a medium."""


class SlowTiers(SlowTier):
    """Host memory and the disk, seen as one slower tier."""

    def __init__(self, host: SlowTier, disk: SlowTier) -> None:
        self._host = host
        self._disk = disk

    def has_all(self, keys: Sequence[BlockKey], group: GroupId) -> Sequence[bool]:
        there = list(self._host.has_all(keys, group))
        absent = [key for key, flag in zip(keys, there, strict=True) if not flag]
        stored = iter(self._disk.has_all(absent, group) if absent else ())
        return [flag or next(stored) for flag in there]

    def nearest(self, parent: BlockKey, token_ids: Sequence[int], most: int) -> Sequence[TierNode]:
        nodes = {node.key: node for node in self._disk.nearest(parent, token_ids, most)}
        for node in self._host.nearest(parent, token_ids, most):
            stored = nodes.get(node.key)
            groups = node.groups | stored.groups if stored else node.groups
            nodes[node.key] = TierNode(node.key, node.token_ids, groups)
        return list(nodes.values())
