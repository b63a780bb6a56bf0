"""Block layout as a bundle declares it, and tails without their empty slots."""

from collections.abc import Sequence
from math import prod
from typing import Annotated

from msgspec import Meta, Struct

from kvchat.session.bundle.fields import Name

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}

_SLOT_AXIS = 1
"""Of a region [H_kv, P, D]: the block's slots."""


Size = Annotated[int, Meta(gt=0, lt=1 << 24)]


class BundleRegion(Struct, frozen=True, kw_only=True):
    """One tensor inside a block: a layer's keys or values, [H_kv, P, D]; of quantised blocks, which are never
    cut, [H_kv, 1, D], a record of the whole block for each head.
    """

    name: Name
    dtype: str
    shape: Annotated[tuple[Size, ...], Meta(min_length=3, max_length=3)]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


BundleLayout = tuple[BundleRegion, ...]


def payload_bytes(layout: BundleLayout, num_tokens: int) -> int:
    """Return the bytes of a block of which only the first `num_tokens` slots are stored."""
    return sum(stored for _, stored, _ in _runs(layout, num_tokens))


def trimmed(payload: bytes, layout: BundleLayout, num_tokens: int) -> bytes:
    """Return a block without the slots behind its tokens. Layout: each region [H_kv, num_tokens, D]."""
    return b"".join(payload[start : start + stored] for start, stored, _ in _runs(layout, num_tokens))


def padded(trimmed_payload: Sequence[int], layout: BundleLayout, num_tokens: int) -> bytearray:
    """Return a whole block again; the slots behind its tokens are zero."""
    source = memoryview(bytes(trimmed_payload))
    payload = bytearray(sum(region.num_bytes for region in layout))
    taken = 0
    for start, stored, _ in _runs(layout, num_tokens):
        payload[start : start + stored] = source[taken : taken + stored]
        taken += stored
    assert taken == len(source)
    return payload


def _runs(layout: BundleLayout, num_tokens: int) -> list[tuple[int, int, int]]:
    """Return, head by head, where its slots start, and the bytes of those that are stored and of all."""
    runs = []
    start = 0
    for region in layout:
        num_heads, num_slots = region.shape[0], region.shape[_SLOT_AXIS]
        slot_bytes = region.num_bytes // (num_heads * num_slots)
        for _ in range(num_heads):
            runs.append((start, min(num_tokens, num_slots) * slot_bytes, num_slots * slot_bytes))
            start += num_slots * slot_bytes
    return runs
