"""Blocks over views that the stored conversations can still use.

Exact blocks follow from token ids alone; those over a view follow from the view, the session and where its
answers start as well.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvchat.engine.api.ids import BlockKey, block_key, u32le
from kvchat.engine.api.view import View
from kvchat.engine.formats.view_schedule import schedule_over
from kvchat.engine.memory.disk.pinned_blocks import used_views
from kvchat.session.kv.block_references import References, Run, chain_root
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.tree import Session, Turn, path_to, path_token_ids


def add_view_turns(
    found: References, session: Session, turns: Sequence[Turn], block_size: int, cache_dir: Path
) -> None:
    """Add what some turns of a session, a parent before its children, refer to over the views used there."""
    roots = [
        root
        for fingerprint in sorted({turn.fingerprint for turn in turns})
        if (root := chain_root(fingerprint, session.namespace)) is not None
    ]
    for view in used_views(cache_dir):
        for path in _paths(turns):
            for root in roots:
                found.add(_runs(session, path, root, block_size, view))


def _paths(turns: Sequence[Turn]) -> Iterator[tuple[Turn, ...]]:
    """Yield the path to each turn that nothing follows."""
    known = {turn.id: turn for turn in turns}
    parents = {turn.parent_id for turn in turns}
    for turn in turns:
        if turn.id not in parents:
            yield tuple(path_to(known, turn))


def _runs(
    session: Session, path: Sequence[Turn], root: BlockKey, block_size: int, view: View
) -> Iterator[Run]:
    while path and path_token_ids(path) is None:
        path = path[:-1]
    ids = path_token_ids(path) or ()
    schedule = schedule_over(view, block_size, namespace_of(session, path))
    spine: list[BlockKey] = []
    for number in range(len(ids) // block_size + 1):
        block = ids[number * block_size : (number + 1) * block_size]
        parent = schedule.parent(number, spine[-1] if spine else root, len(ids))
        key = block_key(parent, block) if len(block) == block_size else None
        if block:
            yield Run(parent, u32le(block), key)
        if key is not None:
            spine.append(key)
    for prune_point in schedule.prune_points:
        if prune_point.at <= len(ids):
            for number, (key, parent) in schedule.kept_names(prune_point, spine, ids).items():
                yield Run(parent, u32le(ids[number * block_size : (number + 1) * block_size]), key)
