"""Disk pressure: converts blocks that are next to be evicted to a smaller format, if so configured."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Protocol

from kvchat.app.config import Settings
from kvchat.app.conversion.child_process import convert_words
from kvchat.app.conversion.format_downgrade import wanted_formats, way_back
from kvchat.app.open_store import open_cache, open_store
from kvchat.app.retention.block_owners import BlockOwner, holders
from kvchat.app.retention.session_removal import SessionService
from kvchat.app.unlock import opens_unasked
from kvchat.engine.models.checkpoints.prepared import blocks_limit
from kvchat.errors import EngineFailed, KvchatError, UsageError
from kvchat.session.tree import SessionId
from kvchat.session.turn_lock import is_being_answered, turn_lock
from kvchat.text.fit_text import one_line

FREE_SHARE = 5
"""A disk is nearly full while less than one byte in so many of its limit is free. What is converted finds
room beside what it is made of then, so that nothing goes for it.
"""
MOST_AT_ONCE = 4
"""Conversations behind one answer: each takes a process that loads the model."""
_LEFT = 0.6
"""Converted blocks take at most this of exact ones: 8 bits and a scale of 16, heads of files included."""


class Progress(Protocol):
    """Where progress is told: a line that is replaced, and lines that stay."""

    def show(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...


def compress_unused(settings: Settings, status: Progress, answered: SessionId | None = None) -> None:
    """Keep conversations in fewer bits, longest unused first, until the disk is not nearly full any more.

    What cannot be converted stays as it is, and makes room like any other. Nothing is raised: an answer has
    been given by now. Where each process that converts would have to ask for a passphrase, none is started.

    Args:
        answered: the session that was used just now.
    """
    cache_dir = settings.paths.cache_dir
    limit_bytes = blocks_limit(settings.engine.disk_bytes, cache_dir)
    formats = wanted_formats(settings.when_full)
    if not formats or limit_bytes is None or not cache_dir.is_dir():
        return
    try:
        if not opens_unasked(settings):
            return
        with closing(open_store(settings)) as store:
            _compress(settings, store, answered, limit_bytes, formats, status)
    except KvchatError as error:
        status.note(f"nothing more was kept in fewer bits: {error}")


def first_that_pays(unused: Iterable[BlockOwner], free_bytes: int) -> BlockOwner | None:
    """Return the first conversation whose converted blocks find room beside the exact ones, and take less
    than what goes for them. Pure.
    """
    paying = (one for one in unused if one.num_bytes * _LEFT <= min(free_bytes, one.own_bytes))
    return next(paying, None)


def is_nearly_full(free_bytes: int, limit_bytes: int) -> bool:
    """Whether less than a share of the limit is free. Pure."""
    return free_bytes * FREE_SHARE < limit_bytes


def _compress(
    settings: Settings,
    store: SessionService,
    answered: SessionId | None,
    limit_bytes: int,
    formats: Sequence[str],
    status: Progress,
) -> None:
    free_bytes = limit_bytes - _used_bytes(settings)
    if not is_nearly_full(free_bytes, limit_bytes):
        return
    unused = _unused(settings, store, answered)
    for _ in range(MOST_AT_ONCE):
        one = first_that_pays(unused, free_bytes)
        if one is None or not is_nearly_full(free_bytes, limit_bytes):
            return
        unused.remove(one)
        title = one_line(one.name)
        status.show(f"the disk for KV is nearly full: keeping “{title}” in {formats[0]} …")
        status.note(f"the disk for KV is nearly full: “{title}” {_converted(settings, store, one, formats)}")
        free_bytes = limit_bytes - _used_bytes(settings)


def _converted(settings: Settings, store: SessionService, one: BlockOwner, formats: Sequence[str]) -> str:
    """Convert a conversation, if nobody is at work in it, and return what became of it."""
    session = store.session(SessionId(one.id))
    why = ""
    try:
        with turn_lock(settings.paths.data_dir / "locks", session.id, _give_up):
            if is_being_answered(store, session.id):
                _give_up()
            for cache_format in formats:
                try:
                    done = convert_words(settings, session.id, cache_format, session.model, dry_run=False)
                except EngineFailed as error:
                    why = why or str(error)
                else:
                    how = f"{done}; {way_back(store, session)}".replace("\n", "; ")
                    return f"is kept in {cache_format}, and approximate: {how}"
    except UsageError as error:
        why = str(error)
    return f"stays exact: {why}"


def _give_up() -> None:
    raise UsageError("an answer is being written in it")


def _unused(settings: Settings, store: SessionService, answered: SessionId | None) -> list[BlockOwner]:
    """Return the conversations that may be converted, longest unused first. Looks at every block."""
    held = {row.id: row for row in holders(store, settings) if row.kind == "session"}
    return [
        held[one.session.id]
        for one in reversed(store.list_sessions())
        if one.session.id in held
        and one.session.id != answered
        and one.is_exact
        and one.session.model
        and not one.session.namespace  # neither converted nor imported
        and not one.session.pinned  # what is kept makes no room
    ]


def _used_bytes(settings: Settings) -> int:
    with closing(open_cache(settings)) as admin:
        return admin.usage().num_bytes + admin.aside_bytes()
