"""Notices of a full disk budget or a spent daily allowance."""

from dataclasses import dataclass

from kvchat.errors import StorageError

_KIB, _MIB = 2**10, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetNotices:
    """What has a claim on the room for blocks, beside what may go.

    Args:
        new_bytes: of blocks that are to be written.
        source_bytes: of blocks that they are made from, and of which nothing else may let go meanwhile.
        kept_bytes: what packs and pinned sessions have of the rest.
        writing_bytes: of blocks that others are at work on.
        aside_bytes: of damaged blocks that were set aside.
    """

    new_bytes: int
    source_bytes: int
    kept_bytes: int
    writing_bytes: int
    aside_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.new_bytes + self.source_bytes + self.kept_bytes + self.writing_bytes + self.aside_bytes


def require_allowance(*, today_bytes: int, num_bytes: int, daily_bytes: int | None) -> None:
    """Raise StorageError if so many bytes more would be written on one day than may be.

    Args:
        daily_bytes: most bytes of one day; None: any number.
    """
    if daily_bytes is not None and today_bytes + num_bytes > daily_bytes:
        raise StorageError(
            f"The cache has written its {daily_bytes:,} bytes of today; blocks are saved again tomorrow. "
            "Give it more with --kv-disk-daily-bytes."
        )


def require_room(demand: BudgetNotices, *, limit_bytes: int, elsewhere_bytes: int) -> None:
    """Raise StorageError, with the numbers, where blocks and what they are made from have no room together.

    Args:
        limit_bytes: what blocks may take.
        elsewhere_bytes: what prepared weights take of the limit that a person gave.
    """
    if demand.num_bytes <= limit_bytes:
        return
    told = (
        f"new blocks of {_size(demand.new_bytes)} have no room beside those of {_size(demand.source_bytes)}"
        " that they are made from"
    )
    others = (
        (demand.kept_bytes, "packs and pinned sessions keep"),
        (demand.writing_bytes, "others are just writing"),
        (demand.aside_bytes, "damaged blocks that were set aside hold"),
        (elsewhere_bytes, "prepared weights hold"),
    )
    told += "".join(f", {words} {_size(num_bytes)}" for num_bytes, words in others if num_bytes)
    raise StorageError(
        f"{told}, and the disk limit is {_size(limit_bytes + elsewhere_bytes)}; nothing was changed: give it"
        " more with KVCHAT_KV_DISK_BYTES for as long as this takes"
    )


def no_room(
    *, limit_bytes: int, kept_bytes: int, elsewhere_bytes: int, block_bytes: int, aside_bytes: int = 0
) -> str:
    """Return what holds the room although all that may go has gone, and what to do.

    Args:
        limit_bytes: what blocks may take.
        kept_bytes: what packs and pinned sessions have of that.
        elsewhere_bytes: what prepared weights take of the limit that a person gave.
        block_bytes: of the block that finds no room.
        aside_bytes: what damaged blocks that were set aside have of what blocks may take.
    """
    told = f"blocks may take {_size(limit_bytes)} on disk"
    if elsewhere_bytes:
        told += f", since prepared weights hold {_size(elsewhere_bytes)} of --kv-disk-bytes"
    if block_bytes > limit_bytes:
        return f"{told}, and one block takes {_size(block_bytes)}; give more with --kv-disk-bytes"
    advice = "give more with --kv-disk-bytes"
    if kept_bytes:
        told += f", and packs and pinned sessions keep {_size(kept_bytes)} of it"
        advice += ", unpin sessions with `kvchat sessions unpin`, or remove packs with `kvchat pack rm`"
    if aside_bytes:
        told += f", and damaged blocks that were set aside hold {_size(aside_bytes)} of it"
        advice += ", or let `kvchat cache gc` empty what was set aside"
    return f"{told}, and there is no room for more; {advice}"


def too_long(limit_bytes: int) -> str:
    """Return what is said where a conversation's end is left out, so that its beginning, and conversations
    that were used again, stay.
    """
    return (
        f"blocks may take {_size(limit_bytes)} on disk: of the last conversation its beginning alone is kept"
        " there, and its end is computed again; give more with --kv-disk-bytes"
    )


def _size(num_bytes: int) -> str:
    if num_bytes < _MIB:
        return f"{num_bytes / _KIB:,.1f} KiB"
    return f"{num_bytes / _MIB:,.1f} MiB"
