"""KV references: the blocks that stored conversations can still use, derived from their token ids, and those
of them that are stored.

Deleting a session or collecting garbage asks here before a block goes. The result may name keys that no tier
holds, and errs on the side of keeping: a whole tree counts under every fingerprint that answered in it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvchat.engine.api.ids import KEY_BYTES, BlockKey, block_key, root_key, u32le
from kvchat.engine.api.inspection import PathBlock
from kvchat.session.kv.provenance import origin_of
from kvchat.session.store import SessionStore
from kvchat.session.tree import SessionId, Turn, TurnId

if TYPE_CHECKING:
    from kvchat.engine.memory.disk.store import DiskStore


@dataclass(frozen=True, slots=True)
class Run:
    """Ids that follow a block on some path, packed; `key` names them if they fill a block."""

    parent: BlockKey
    token_ids: bytes
    key: BlockKey | None


@dataclass(frozen=True, slots=True)
class References:
    """Blocks that conversations refer to.

    `keys` are full blocks. `runs` are the ids that follow a block on some path, packed, up to a whole block:
    a tail is referenced if it begins one of them.
    """

    keys: set[BlockKey] = field(default_factory=set)
    runs: dict[BlockKey, set[bytes]] = field(default_factory=dict)

    def add(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self.runs.setdefault(run.parent, set()).add(run.token_ids)
            if run.key is not None:
                self.keys.add(run.key)

    def covers_tail(self, parent: BlockKey, token_ids: Sequence[int]) -> bool:
        """Return whether a tail of these ids behind `parent` lies on a stored path."""
        tail = u32le(token_ids)
        return any(run.startswith(tail) for run in self.runs.get(parent, ()))


def add_turns(
    found: References, store: SessionStore, session_id: SessionId, turns: Sequence[Turn], block_size: int
) -> None:
    """Add what some turns of a session refer to, a parent before its children."""
    namespace = store.session(session_id).namespace
    fingerprints = {turn.fingerprint for turn in store.all_turns(session_id)}
    if (conversion := origin_of(namespace)) is not None:
        fingerprints.add(conversion.fingerprint)  # nobody may have answered in that format yet
    for fingerprint in sorted(fingerprints):
        root = chain_root(fingerprint, namespace)
        if root is not None:
            found.add(runs_of(turns, root, block_size))


def chain_root(fingerprint: str, namespace: str = "") -> BlockKey | None:
    """Return the root of a fingerprint in hex; None if it is none."""
    try:
        digest = bytes.fromhex(fingerprint)
    except ValueError:
        return None
    return root_key(digest, namespace) if len(digest) == KEY_BYTES else None


def runs_of(turns: Iterable[Turn], root: BlockKey, block_size: int) -> Iterator[Run]:
    """Yield what lies on the paths of a tree: its full blocks, parents first, and what each turn ends with.

    The runs of two roots correspond one to one.

    Args:
        turns: a parent before its children, so that each turn is walked once.
    """
    # Where paths have got to: the last full block, and the ids behind it that fill no block yet.
    ends: dict[TurnId | None, tuple[BlockKey, tuple[int, ...]]] = {None: (root, ())}
    for turn in turns:
        begin = (root, ()) if turn.starts_over else ends.get(turn.parent_id)
        if begin is None or turn.token_ids is None or not turn.has_ids:
            continue
        parent, ids = begin[0], begin[1] + turn.token_ids
        full_len = len(ids) // block_size * block_size
        for start in range(0, full_len, block_size):
            block = ids[start : start + block_size]
            key = block_key(parent, block)
            yield Run(parent, u32le(block), key)
            parent = key
        if rest := ids[full_len:]:
            yield Run(parent, u32le(rest), None)
        ends[turn.id] = parent, rest


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
    stored: "DiskStore", path: Sequence[int], root: BlockKey, native_root: BlockKey
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
