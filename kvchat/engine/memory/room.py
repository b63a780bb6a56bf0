"""What is said where blocks find no room on disk, although all that may go has gone, or where enough was
written on a day.
"""

from kvchat.errors import StorageError

_MIB = 2**20


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
    told = f"blocks may take {_mib(limit_bytes)} on disk"
    if elsewhere_bytes:
        told += f", since prepared weights hold {_mib(elsewhere_bytes)} of --kv-disk-bytes"
    if block_bytes > limit_bytes:
        return f"{told}, and one block takes {_mib(block_bytes)}; give more with --kv-disk-bytes"
    advice = "give more with --kv-disk-bytes"
    if kept_bytes:
        told += f", and packs and pinned sessions keep {_mib(kept_bytes)} of it"
        advice += ", unpin sessions with `kvchat sessions unpin`, or remove packs with `kvchat pack rm`"
    if aside_bytes:
        told += f", and damaged blocks that were set aside hold {_mib(aside_bytes)} of it"
        advice += ", or let `kvchat cache gc` empty what was set aside"
    return f"{told}, and there is no room for more; {advice}"


def too_long(limit_bytes: int) -> str:
    """Return what is said where a conversation's end is left out, so that its beginning, and conversations
    that were used again, stay.
    """
    return (
        f"blocks may take {_mib(limit_bytes)} on disk: of the last conversation its beginning alone is kept"
        " there, and its end is computed again; give more with --kv-disk-bytes"
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.1f} MiB"
