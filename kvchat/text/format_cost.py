"""Wording of a revision's cost in tokens and bytes. Bytes are those of whole blocks on the device."""

from collections import Counter
from collections.abc import Sequence
from math import ceil

from kvchat.chat.events import EditCost
from kvchat.engine.api.inspection import InspectedBlock
from kvchat.engine.api.snapshot import CacheSnapshot, Tier
from kvchat.text.figures import bytes_text, count_text, plural

_FASTEST_FIRST = (Tier.DEVICE, Tier.HOST, Tier.DISK)
_WHERE = {Tier.DEVICE: "on the device", Tier.HOST: "in host memory", Tier.DISK: "on disk"}


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
    computed = plural(cost.computed_tokens, "token") if cost.computed_tokens else "nothing"
    return f"shares {count_text(cost.reused_tokens)} tokens{of_bytes} · computes {computed}"


def tier_words(blocks: Sequence[InspectedBlock]) -> str:
    """Return where the blocks of a path are, with the tokens in each tier where they are in several; a block
    counts where the slowest of its groups has it.
    """
    tokens: Counter[Tier] = Counter()
    for block in blocks:
        if tiers := [place.tier for place in block.places if place.tier is not None]:
            tokens[max(tiers, key=_FASTEST_FIRST.index)] += len(block.token_ids)
    found = [tier for tier in _FASTEST_FIRST if tokens[tier]]
    if len(found) < 2:
        return "".join(f" {_WHERE[tier]}" for tier in found)
    return ": " + ", ".join(f"{count_text(tokens[tier])} {_WHERE[tier]}" for tier in found)


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
    came = f"; {bytes_text(loaded_bytes)} loaded just now" if loaded_bytes else ""
    kept = f"{count_text(cost.reused_tokens)} of {plural(total, 'token')} are kept{of_bytes}"
    return f"{kept}{tier_words(blocks)}{came}{rest}"
