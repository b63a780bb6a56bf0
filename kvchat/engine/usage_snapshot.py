"""The cache's state as a snapshot, read from counters: nothing here walks blocks."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.snapshot import (
    STATE_KIND,
    GroupUsage,
    LayerUsage,
    MovedBytes,
    OwnerUsage,
    SequenceUsage,
    Tier,
    TierUsage,
)
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.shadow.shadows import Shadows
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.memory.rates import Direction, Rates
from kvchat.engine.sequences.sequence import Sequence


def group_usages(manager: CacheManager) -> tuple[GroupUsage, ...]:
    return tuple(_group_usage(manager, group) for group in manager.groups)


def layer_usages(manager: CacheManager, shadows: Shadows | None) -> tuple[LayerUsage, ...]:
    """Return each layer's part of its group's pool, in the order of layers; a quantised layer has parts of
    two, and stands under the group of its quantised blocks.
    """
    usages: dict[int, LayerUsage] = {}
    for group in group_usages(manager):
        for layer in group.layers:
            own = _layer_usage(group, layer)
            known = usages.get(layer)
            usages[layer] = own if known is None else _together(known, own)
    for borrowing in manager.groups:
        for layer, lender in borrowing.borrowers:
            usages[layer] = LayerUsage(
                layer=layer, group=borrowing.id, kind="borrowed", window=None, lender=lender
            )
    if shadows is not None:
        usages = {layer: replace(usage, shadow=shadows.usage(layer)) for layer, usage in usages.items()}
    return tuple(usages[layer] for layer in sorted(usages))


def device_usage(manager: CacheManager, shadows: Shadows | None) -> TierUsage:
    """Return what the device holds: blocks, or shadows of those that a GPU has in host memory."""
    if shadows is None or shadows.remote is None:
        return _pool_usage(manager, Tier.DEVICE, in_host_memory=False)
    own = _pool_usage(manager, Tier.DEVICE, in_host_memory=False, beside_bytes=shadows.limit_bytes)
    return replace(own, used_bytes=own.used_bytes + shadows.used_bytes)


def host_usage(manager: CacheManager) -> TierUsage:
    """Return what host memory holds: what may be evicted, and a GPU's blocks where it has shadows of them."""
    sizes = manager.device.block_bytes
    pools = manager.host.pools
    evictable_bytes = sum(pool.num_blocks * sizes[group] for group, pool in pools.items())
    own = _pool_usage(manager, Tier.HOST, in_host_memory=True, beside_bytes=evictable_bytes)
    return replace(
        own,
        cached_bytes=own.cached_bytes + sum(pool.num_cached * sizes[group] for group, pool in pools.items()),
        num_blocks=own.num_blocks + sum(pool.num_cached for pool in pools.values()),
    )


def _pool_usage(
    manager: CacheManager, tier: Tier, *, in_host_memory: bool, beside_bytes: int = 0
) -> TierUsage:
    """Return the usage of the pools whose blocks are remote, or of the others.

    Args:
        beside_bytes: what the tier has room for beside them.
    """
    places = {group.id: group.in_host_memory for group in manager.groups}
    groups = [usage for usage in group_usages(manager) if places[usage.group] is in_host_memory]
    return TierUsage(
        tier=tier,
        used_bytes=sum(group.used_blocks * group.block_bytes for group in groups),
        cached_bytes=sum(group.cached_blocks * group.block_bytes for group in groups),
        total_bytes=beside_bytes + sum(group.total_blocks * group.block_bytes for group in groups),
        num_blocks=sum(group.used_blocks + group.cached_blocks for group in groups),
    )


def disk_usage(store: DiskStore | None) -> TierUsage:
    """Return what all fingerprints have on disk, nothing without a store; all of it may be evicted."""
    if store is None:
        return TierUsage(tier=Tier.DISK, used_bytes=0, cached_bytes=0, total_bytes=0, num_blocks=0)
    usage = store.total_usage()
    return TierUsage(
        tier=Tier.DISK,
        used_bytes=0,
        cached_bytes=usage.num_bytes,
        total_bytes=store.limit_bytes,
        num_blocks=usage.num_blocks,
    )


def sequence_usages(manager: CacheManager, running: Collection[SequenceId]) -> tuple[SequenceUsage, ...]:
    return tuple(
        _sequence_usage(manager, sequence, sequence.id in running) for sequence in manager.sequences.values()
    )


def owner_usages(manager: CacheManager) -> tuple[OwnerUsage, ...]:
    references, sizes = manager.device.references, manager.device.block_bytes
    owners = Counter(sequence.owner for sequence in manager.sequences.values())
    return tuple(
        OwnerUsage(
            owner=owner,
            num_sequences=num_sequences,
            freed_bytes=sum(references.num_exclusive(owner, group) * size for group, size in sizes.items()),
        )
        for owner, num_sequences in owners.items()
    )


def moved_bytes(rates: Rates, written_bytes: int) -> MovedBytes:
    """Return what was moved; `written_bytes`: to disk."""
    return MovedBytes(
        to_host=rates.moved_bytes(Tier.HOST, Direction.STORE),
        from_host=rates.moved_bytes(Tier.HOST, Direction.LOAD),
        to_disk=written_bytes,
        from_disk=rates.moved_bytes(Tier.DISK, Direction.LOAD),
    )


def room_tokens(manager: CacheManager, max_context: int) -> int:
    """Return how many tokens one more sequence can hold in blocks that are free; any number in states."""
    of_tokens = [group for group in manager.groups if not group.is_state]
    if not of_tokens:
        return max_context
    unbounded = [group for group in of_tokens if group.spec.max_visible is None] or of_tokens
    return min(manager.pools[group.id].num_free for group in unbounded) * manager.block_size


def _group_usage(manager: CacheManager, group: Group) -> GroupUsage:
    pool = manager.pools[group.id]
    return GroupUsage(
        group=group.id,
        kind=group.spec.kind,
        window=group.spec.max_visible,
        layers=group.layers,
        block_bytes=manager.device.block_bytes[group.id],
        total_blocks=pool.num_blocks,
        free_blocks=pool.num_free,
        cached_blocks=pool.num_cached,
        used_blocks=pool.num_used,
        shared_blocks=pool.num_shared,
        pinned_blocks=manager.pins.num_pinned(group.id),
        borrowers=tuple(layer for layer, _ in group.borrowers),
    )


def _layer_usage(group: GroupUsage, layer: int) -> LayerUsage:
    layer_bytes = group.block_bytes // len(group.layers)
    return LayerUsage(
        layer=layer,
        group=group.group,
        kind=group.kind,
        window=group.window,
        used_bytes=group.used_blocks * layer_bytes,
        shared_bytes=group.shared_blocks * layer_bytes,
        cached_bytes=group.cached_blocks * layer_bytes,
        total_bytes=group.total_blocks * layer_bytes,
    )


def _together(recent: LayerUsage, quantized: LayerUsage) -> LayerUsage:
    """Return the usage of a quantised layer: its exact blocks and its quantised ones; or of one that attends
    and has a state, which stands under the group of its keys and values.
    """
    main = quantized
    if quantized.kind == STATE_KIND:
        main = replace(recent, kind=f"{recent.kind} + state")
    return replace(
        main,
        used_bytes=recent.used_bytes + quantized.used_bytes,
        shared_bytes=recent.shared_bytes + quantized.shared_bytes,
        cached_bytes=recent.cached_bytes + quantized.cached_bytes,
        total_bytes=recent.total_bytes + quantized.total_bytes,
    )


def _sequence_usage(manager: CacheManager, sequence: Sequence, is_running: bool) -> SequenceUsage:
    references, sizes = manager.device.references, manager.device.block_bytes
    num_held = {group: references.num_held(sequence.id, group) for group in sizes}
    num_shared = {group: references.num_shared(sequence.id, group) for group in sizes}
    return SequenceUsage(
        sequence=sequence.id,
        owner=sequence.owner,
        num_tokens=sequence.computed_len,
        running=is_running,
        own_bytes=sum((num_held[group] - num_shared[group]) * size for group, size in sizes.items()),
        shared_bytes=sum(num_shared[group] * size for group, size in sizes.items()),
        blocks_per_group=tuple(num_held.values()),
        shared_per_group=tuple(num_shared.values()),
    )
