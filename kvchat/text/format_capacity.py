"""Wording of remaining capacity."""

from kvchat.engine.api.snapshot import CacheSnapshot, Tier


def room_words(snapshot: CacheSnapshot, context_len: int) -> tuple[int, str]:
    """Return how many more tokens the conversation on screen can have, and before what.

    The context's end comes first where it is nearer than the end of the free blocks. Then blocks give way
    that are kept for nobody: to host memory if there is any, else they are given up. Where none are kept,
    other conversations leave the device, and where there are none either, the cache is full.
    """
    left = max(0, snapshot.max_context - context_len)
    if left <= snapshot.room_tokens:
        return left, "before the context is full"
    if any(group.cached_blocks for group in snapshot.groups):
        host = next((tier for tier in snapshot.tiers if tier.tier is Tier.HOST), None)
        to_host = host is not None and host.total_bytes != 0
        return (
            snapshot.room_tokens,
            f"before kept blocks {'move to host memory' if to_host else 'are given up'}",
        )
    if len(snapshot.sequences) > 1:
        return snapshot.room_tokens, "before other branches leave the device"
    return snapshot.room_tokens, "before the cache is full"
