"""Blocks of a bundle: the stored blocks that a session takes along, and their keys."""

from collections.abc import Iterable, Iterator, Sequence

from kvchat.engine.api.ids import BlockKey, GroupId, block_key, from_u32le, root_key
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.session.bundle.writer import SourceBlock
from kvchat.session.kv.block_references import Run, runs_of
from kvchat.session.tree import Turn


def session_blocks(
    source: DiskStore, turns: Sequence[Turn], fingerprint: bytes, namespace: str, block_size: int
) -> Iterator[SourceBlock]:
    """Yield what is stored of a session's blocks and tails, with the names that native ones have, and the
    states of recurrent layers behind all of its tails: each is a place to go on from.

    Args:
        turns: a parent before its children.
    """
    stored = runs_of(turns, root_key(fingerprint, namespace), block_size)
    native = runs_of(turns, root_key(fingerprint), block_size)
    runs = dict.fromkeys(zip(stored, native, strict=True))
    full: dict[BlockKey, list[bytes]] = {}
    for run, _ in runs:
        if run.key is not None:
            full.setdefault(run.parent, []).append(run.token_ids)
    # A state has neither values nor a place for each of a block's tokens: it stands behind all of them.
    state_groups = [
        group
        for group, regions in source.layouts.items()
        if all(one.name.endswith(".k") and one.shape[1] != block_size for one in regions)
    ]
    seen: set[BlockKey] = set()
    states: set[tuple[BlockKey, GroupId]] = set()
    for run, named in runs:
        for key, token_ids in _tails_of(source, run) if state_groups else ():
            fresh = [group for group in state_groups if (key, group) not in states and source.has(key, group)]
            states.update((key, group) for group in fresh)
            yield from _parts(source, run, named.parent, fresh, token_ids)
        held = _stored_ids(source, run, full.get(run.parent, ()))
        if held is None:
            continue
        key = block_key(run.parent, from_u32le(held))
        if key not in seen:
            seen.add(key)
            groups = [group for group in source.groups_of(key) if (key, group) not in states]
            yield from _parts(source, run, named.parent, groups, held)


def _stored_ids(source: DiskStore, run: Run, full: Sequence[bytes]) -> bytes | None:
    """Return the ids of the block that holds a run, or of the tail that holds most of it.

    A tail that begins a full block is not needed: the block can be copied as far as the ids agree.
    """
    if run.key is not None:
        return run.token_ids
    tail = max((tail for _, tail in _tails_of(source, run)), key=len, default=b"")
    return None if not tail or any(block.startswith(tail) for block in full) else tail


def _tails_of(source: DiskStore, run: Run) -> Iterator[tuple[BlockKey, bytes]]:
    """Yield key and packed ids of the stored tails that begin a run."""
    ids = tuple(from_u32le(run.token_ids))
    for key, tail in source.tails_behind(run.parent):
        if ids[: len(tail)] == tail:
            yield key, run.token_ids[: 4 * len(tail)]


def _parts(
    source: DiskStore, run: Run, parent: BlockKey, groups: Iterable[GroupId], token_ids: bytes
) -> Iterator[SourceBlock]:
    for group in groups:
        payload = source.read_if_sound(BlockHeader.of(group, run.parent, from_u32le(token_ids)))
        if payload is not None:
            yield SourceBlock(group=group, parent=parent, token_ids=token_ids, payload=payload)
