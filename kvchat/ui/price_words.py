"""What a course costs, in tokens and bytes, in words."""

from math import ceil

from kvchat.chat import EditCost
from kvchat.engine.api.snapshot import CacheSnapshot
from kvchat.ui.figures import bytes_text, count_text, plural


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


def price_words(cost: EditCost, snapshot: CacheSnapshot | None) -> str:
    """Return what is shared and what is computed."""
    shared = bytes_of(cost.reused_tokens, snapshot) if cost.reused_tokens else None
    of_bytes = f" ({bytes_text(shared)})" if shared else ""
    computed = plural(cost.computed_tokens, "token") if cost.computed_tokens else "nothing"
    return f"shares {count_text(cost.reused_tokens)} tokens{of_bytes} · computes {computed}"


def reach_words(cost: EditCost, snapshot: CacheSnapshot | None) -> str:
    """Return what of a conversation that was opened is there, and what must be computed or is not known."""
    total = cost.reused_tokens + cost.computed_tokens
    if not total:
        return ""
    held = bytes_of(cost.reused_tokens, snapshot) if cost.reused_tokens else None
    of_bytes = f" ({bytes_text(held)})" if held else ""
    rest = f"; {count_text(cost.computed_tokens)} to compute" if cost.computed_tokens > 1 else ""
    return f"{count_text(cost.reused_tokens)} of {plural(total, 'token')} are kept{of_bytes}{rest}"
