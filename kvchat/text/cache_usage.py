"""Wording of cache usage: what is reused and computed, where blocks lie, capacity left, what a server says.

Bytes are those of whole blocks on the device. What a server does not report is unknown, never nothing.
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil

from kvchat.chat.events import EditCost
from kvchat.engine.api.inspection import InspectedBlock
from kvchat.engine.api.server_cache import ServerCache
from kvchat.engine.api.snapshot import CacheSnapshot, Tier
from kvchat.text.figures import bytes_text, count_text, plural, short_count_text

UNTOLD = "unknown"
_FASTEST_FIRST = (Tier.DEVICE, Tier.HOST, Tier.DISK)
_WHERE = {Tier.HOST: "in host memory", Tier.DISK: "on disk"}


def bytes_of(num_tokens: int, snapshot: CacheSnapshot | None) -> int | None:
    """Return what a branch of this length takes on the device; None while that is not known."""
    if snapshot is None:
        return None
    size = snapshot.block_size
    total = 0
    for group in snapshot.groups:
        blocks = ceil(num_tokens / size)
        if group.window is not None:
            blocks = min(blocks, ceil(group.window / size) + 1)
        total += blocks * group.block_bytes
    return total


def in_bytes(num_tokens: int, snapshot: CacheSnapshot | None) -> str:
    """Return what so many tokens take on the device, in brackets; nothing where it is not known."""
    num_bytes = bytes_of(num_tokens, snapshot) if num_tokens else None
    return f" ({bytes_text(num_bytes)})" if num_bytes else ""


def price_words(cost: EditCost, snapshot: CacheSnapshot | None) -> str:
    """Return what is shared and what is computed."""
    of_bytes = in_bytes(cost.reused_tokens, snapshot)
    computed = (
        f"computes {plural(cost.computed_tokens, 'token')}" if cost.computed_tokens else "nothing recomputed"
    )
    return f"shares {plural(cost.reused_tokens, 'token')}{of_bytes} · {computed}"


def tier_words(blocks: Sequence[InspectedBlock]) -> str:
    """Return how many tokens of a path are in slower tiers; a block counts where the slowest of its groups
    has it.
    """
    tokens: Counter[Tier] = Counter()
    for block in blocks:
        if tiers := [place.tier for place in block.places if place.tier is not None]:
            tokens[max(tiers, key=_FASTEST_FIRST.index)] += len(block.token_ids)
    return "".join(f", {count_text(tokens[tier])} {where}" for tier, where in _WHERE.items() if tokens[tier])


def reach_words(
    cost: EditCost,
    snapshot: CacheSnapshot | None,
    blocks: Sequence[InspectedBlock] = (),
    loaded_bytes: int = 0,
) -> str:
    """Return what of a conversation that was opened is there, and what must be computed or is not known.

    Args:
        blocks: those of its path.
        loaded_bytes: came up from a slower tier since it was asked for.
    """
    total = cost.reused_tokens + cost.computed_tokens
    if not total:
        return ""
    of_bytes = in_bytes(cost.reused_tokens, snapshot)
    rest = f"; {count_text(cost.computed_tokens)} to compute" if cost.computed_tokens > 1 else ""
    came = f", {bytes_text(loaded_bytes)} loaded" if loaded_bytes else ""
    ready = f"{count_text(cost.reused_tokens)} of {plural(total, 'token')} cached{of_bytes}"
    reused = [block for block in blocks if block.start < cost.reused_tokens]
    return f"{ready}{tier_words(reused)}{came}{rest}"


def capacity_words(snapshot: CacheSnapshot, context_len: int) -> tuple[int, str]:
    """Return how many more tokens the conversation on screen can have, and before what.

    The context's end comes first where it is nearer than the end of the free blocks. Then blocks give way
    that are cached for no conversation: to host memory if there is any, else they are given up. Where there
    are none, other conversations leave the device, and where there are none either, the cache is full.
    """
    left = max(0, snapshot.max_context - context_len)
    if left <= snapshot.room_tokens:
        return left, "before the context is full"
    if any(group.cached_blocks for group in snapshot.groups):
        host = next((tier for tier in snapshot.tiers if tier.tier is Tier.HOST), None)
        outcome = "go to host memory" if host is not None and host.total_bytes != 0 else "are evicted"
        return snapshot.room_tokens, f"before cached blocks {outcome}"
    if len(snapshot.sequences) > 1:
        return snapshot.room_tokens, "before other branches leave the device"
    return snapshot.room_tokens, "before the cache is full"


def share_words(share: float | None) -> str:
    return UNTOLD if share is None else f"{100 * share:.0f} %"


def reuse_words(served: ServerCache, *, short: bool = False) -> str:
    """Return what its prefix cache found of what it was asked for, since the server started."""
    hit, asked = served.hit_tokens, served.asked_tokens
    if hit is None or asked is None:
        return share_words(served.hit_rate)
    count = short_count_text if short else count_text
    share = f" · {share_words(served.hit_rate)}" if asked else ""
    return f"{count(hit)} of {count(asked)}{share}"


def request_words(served: ServerCache) -> str:
    """Return how many requests it computes, of everybody, and how many wait."""
    if served.num_running is None and served.num_waiting is None:
        return UNTOLD
    counts = ((served.num_running, "running"), (served.num_waiting, "waiting"))
    return ", ".join(f"{UNTOLD if count is None else count_text(count)} {what}" for count, what in counts)
