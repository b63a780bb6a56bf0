"""Cache inspection: the blocks of one path, wherever they are. Reads bookkeeping and moves nothing."""

from collections import abc
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, SequenceId, block_key
from kvchat.engine.api.inspection import BlockPlace, InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.view_schedule import ViewSchedule
from kvchat.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class _Link:
    """A block of a path, or a state. `written`: where the groups have a tail that has no name yet."""

    key: BlockKey
    parent: BlockKey
    token_ids: tuple[int, ...]
    start: int
    written: Mapping[GroupId, BlockId]
    is_state: bool = False


def inspected(
    manager: CacheManager, request: InspectionRequest, running: Collection[SequenceId]
) -> tuple[InspectedBlock, ...]:
    """Return what is wished for; see `InspectionRequest`. Pure.

    Args:
        running: the sequences that requests run on.
    """
    is_path = request.sequence is not None or request.token_ids
    links = _path_links(manager, request) if is_path else _kept_links(manager, request.most)
    if is_path and request.with_states:
        links = [one for link in links for one in (link, *_states(manager, link))]
    keys = [link.key for link in links]
    stored = {group.id: manager.disk.has_all(keys, group.id) for group in manager.groups}
    return tuple(
        _block(manager, link, {group: flags[number] for group, flags in stored.items()}, running)
        for number, link in enumerate(links)
    )


def _path_links(manager: CacheManager, request: InspectionRequest) -> list[_Link]:
    sequence = manager.sequences.get(request.sequence) if request.sequence is not None else None
    if sequence is None:
        view_schedule = manager.view_schedules.of("", request.namespace)
        return _chain(manager, manager.root_of(request.namespace), view_schedule, request.token_ids)
    ids = tuple(sequence.token_ids[: sequence.computed_len or None])
    links = _chain(manager, sequence.root, sequence.view_schedule, ids)
    for number, key in enumerate(sequence.keys):  # what is out of sight is named by what it was pruned with
        links[number] = replace(links[number], key=key, parent=sequence.parent_of(number))
    if sequence.computed_len % manager.block_size:
        links[-1] = replace(links[-1], parent=sequence.last_key, written=_written(manager, sequence))
    return links


def _chain(
    manager: CacheManager, root: BlockKey, view_schedule: ViewSchedule, ids: abc.Sequence[int]
) -> list[_Link]:
    links: list[_Link] = []
    previous = root
    for number, start in enumerate(range(0, len(ids), manager.block_size)):
        block_ids = tuple(ids[start : start + manager.block_size])
        parent = view_schedule.parent(number, previous, len(ids))
        previous = block_key(parent, block_ids)
        links.append(_Link(previous, parent, block_ids, start, {}))
    return links


def _states(manager: CacheManager, link: _Link) -> list[_Link]:
    """Return the states that stand in a block of a path, or at its end."""
    groups = [group for group in manager.groups if group.is_state]
    if not groups:
        return []
    ends = manager.matcher.states_behind(link.parent, link.token_ids)
    states = [_Link(end.key, end.parent, end.token_ids, link.start, {}, is_state=True) for end in ends]
    has_last = any(len(state.token_ids) == len(link.token_ids) for state in states)
    if not has_last and any(group.id in link.written for group in groups):
        states.append(replace(link, is_state=True))
    return states


def _written(manager: CacheManager, sequence: Sequence) -> dict[GroupId, BlockId]:
    """Return where the groups have a sequence's tail, and the state behind it."""
    tables = ((group.id, sequence.tables[group.id]) for group in manager.device.groups_with_tail)
    number = sequence.computed_len // manager.block_size
    states = [(group.id, sequence.tables[group.id][0]) for group in manager.groups if group.is_state]
    tails = ((group, table[number]) for group, table in tables if number < len(table))
    return {group: block for group, block in (*tails, *states) if block is not None}


def _kept_links(manager: CacheManager, most: int) -> list[_Link]:
    """Return the blocks and states on the device that no sequence holds, those used last first."""
    found: list[tuple[float, _Link]] = []
    for node in manager.index:
        for is_state in (False, True):
            blocks = [
                (group.id, node.blocks[group.id])
                for group in manager.groups
                if group.is_state == is_state and group.id in node.blocks
            ]
            if blocks and all(manager.pools[group].is_cached(block) for group, block in blocks):
                unused_s = min(manager.pools[group].unused_s(block) for group, block in blocks)
                link = _Link(node.key, node.parent, node.token_ids, node.start, {}, is_state=is_state)
                found.append((unused_s, link))
    found.sort(key=lambda entry: entry[0])
    return [link for _, link in found[:most]]


def _block(
    manager: CacheManager, link: _Link, is_stored: Mapping[GroupId, bool], running: Collection[SequenceId]
) -> InspectedBlock:
    places = tuple(
        _place(manager, link, group.id, is_stored=is_stored[group.id])
        if group.is_state == link.is_state
        else BlockPlace(group=group.id, tier=None, is_kept=False)
        for group in manager.groups
    )
    ages = [
        age
        for group in manager.groups
        if group.is_state == link.is_state
        and (age := _unused_s(manager, link, group.id, running)) is not None
    ]
    return InspectedBlock(
        key="" if link.written else link.key.hex(),
        parent=link.parent.hex(),
        start=link.start,
        token_ids=link.token_ids,
        places=places,
        unused_s=min(ages, default=None),
        is_state=link.is_state,
    )


def _place(manager: CacheManager, link: _Link, group: GroupId, *, is_stored: bool) -> BlockPlace:
    block = _device_block(manager, link, group)
    if block is None:
        slower = Tier.DISK if is_stored else None
        tier = Tier.HOST if manager.host.find(link.key, group) is not None else slower
        return BlockPlace(group=group, tier=tier, is_stored=is_stored)
    pool = manager.pools[group]
    return BlockPlace(
        group=group,
        tier=Tier.DEVICE,
        is_stored=is_stored,
        num_holders=pool.count(block),
        is_pinned=(group, block) in manager.pins.held,
    )


def _unused_s(
    manager: CacheManager, link: _Link, group: GroupId, running: Collection[SequenceId]
) -> float | None:
    block = _device_block(manager, link, group)
    if block is not None:
        in_use = any(sequence in running for sequence in manager.device.references.holders(group, block))
        return 0.0 if in_use else manager.pools[group].unused_s(block)
    place = manager.host.find(link.key, group)
    return None if place is None else manager.host.pools[group].unused_s(place)


def _device_block(manager: CacheManager, link: _Link, group: GroupId) -> BlockId | None:
    return link.written.get(group, manager.index.block(link.key, group))
