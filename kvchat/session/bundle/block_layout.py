"""Block layout as a bundle declares it, and tails without their empty slots."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Annotated

from msgspec import Meta, Struct

from kvchat.session.bundle.container import Name

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}

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
    return sum(num_bytes for _, num_bytes in _runs(layout, num_tokens))


def trimmed(payload: bytes, layout: BundleLayout, num_tokens: int) -> bytes:
    """Return a block without the slots behind its tokens. Layout: each region [H_kv, num_tokens, D]."""
    return b"".join(payload[start : start + num_bytes] for start, num_bytes in _runs(layout, num_tokens))


def padded(trimmed_payload: Sequence[int], layout: BundleLayout, num_tokens: int) -> bytearray:
    """Return a whole block again; the slots behind its tokens are zero."""
    source = memoryview(bytes(trimmed_payload))
    payload = bytearray(sum(region.num_bytes for region in layout))
    taken = 0
    for start, num_bytes in _runs(layout, num_tokens):
        payload[start : start + num_bytes] = source[taken : taken + num_bytes]
        taken += num_bytes
    assert taken == len(source)
    return payload


def _runs(layout: BundleLayout, num_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield, head by head, where its slots start, and the bytes of those that are stored."""
    start = 0
    for region in layout:
        num_heads, num_slots, _ = region.shape
        head_bytes = region.num_bytes // num_heads
        for _ in range(num_heads):
            yield start, min(num_tokens, num_slots) * head_bytes // num_slots
            start += head_bytes
