"""Paths of a session's tree as token ids, and the stored blocks on each."""

from collections.abc import Iterator, Sequence

from kvchat.engine.api.ids import BlockKey, block_key
from kvchat.engine.api.inspection import PathBlock
from kvchat.engine.memory.disk.offline_block_store import OfflineBlockStore
from kvchat.session.tree import Turn, TurnId


def leaf_paths(turns: Sequence[Turn]) -> Iterator[tuple[int, ...]]:
    """Yield the ids of every path that no other goes on from, as far as they are known.

    Args:
        turns: a whole tree, a parent before its children.
    """
    ids: dict[TurnId, tuple[int, ...]] = {}
    continued: set[TurnId] = set()
    for turn in turns:
        before = () if turn.starts_over or turn.parent_id is None else ids.get(turn.parent_id, ())
        if turn.parent_id is not None and not turn.starts_over and turn.has_ids:
            continued.add(turn.parent_id)
        # Behind ids that are missing nothing is known to the model either.
        ids[turn.id] = before + (turn.token_ids or ()) if turn.has_ids else ()
    yield from dict.fromkeys(path for turn_id, path in ids.items() if turn_id not in continued and path)


def blocks_on(
    stored: OfflineBlockStore, path: Sequence[int], root: BlockKey, native_root: BlockKey
) -> Iterator[PathBlock]:
    """Yield the stored blocks and tails of a path, block by block."""
    size = stored.block_size
    parent, native_parent = root, native_root
    for number, start in enumerate(range(0, len(path), size)):
        ids = tuple(path[start : start + size])
        for key, tail_ids in stored.tails_behind(parent):
            if ids[: len(tail_ids)] == tail_ids:
                yield _found(stored, number, key, (parent, native_parent), tail_ids)
        if len(ids) == size:
            key = block_key(parent, ids)
            found = _found(stored, number, key, (parent, native_parent), ids)
            if found.groups:
                yield found
            parent, native_parent = key, block_key(native_parent, ids)


def _found(
    stored: OfflineBlockStore,
    number: int,
    key: BlockKey,
    parents: tuple[BlockKey, BlockKey],
    token_ids: tuple[int, ...],
) -> PathBlock:
    return PathBlock(
        number=number,
        key=key,
        parent=parents[0],
        native_parent=parents[1],
        token_ids=token_ids,
        groups=tuple(stored.groups_of(key)),
    )
