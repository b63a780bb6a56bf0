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

    def found(key: BlockKey, token_ids: tuple[int, ...]) -> PathBlock:
        return PathBlock(
            number=start // size,
            key=key,
            parent=parent,
            native_parent=native_parent,
            token_ids=token_ids,
            groups=tuple(stored.groups_of(key)),
        )

    size = stored.block_size
    parent, native_parent = root, native_root
    for start in range(0, len(path), size):
        ids = tuple(path[start : start + size])
        for key, tail_ids in stored.tails_behind(parent):
            if ids[: len(tail_ids)] == tail_ids:
                yield found(key, tail_ids)
        if len(ids) == size:
            key = block_key(parent, ids)
            if (block := found(key, ids)).groups:
                yield block
            parent, native_parent = key, block_key(native_parent, ids)
