"""How a processor's memory is divided where steps look through shadows. Arithmetic alone.

Such a step reads what it chooses where it lies, so blocks may lie in host memory too. They get as much of it
as one conversation of full length needs beside the device's, as far as its shadow leaves that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.engine.cache.sizing import full_bytes
from kvchat.engine.cache.spec import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowedMemory:
    """Args:
    block_bytes: that blocks may take, on the device and in host memory.
    host_bytes: of these, in host memory.
    shadow_bytes: of host memory that shadows may take.
    """

    block_bytes: int
    host_bytes: int
    shadow_bytes: int

    @property
    def beside_bytes(self) -> int:
        """What blocks and shadows may take of host memory together."""
        return self.host_bytes + self.shadow_bytes


def beside_bytes(groups: Sequence[Group], num_tokens: int) -> int:
    """Return the most that the shadows of a conversation take beside its blocks, in all layers. Pure."""
    return sum(len(group.layers) * group.spec.shadow_bytes(num_tokens) for group in groups)


def divided(
    groups: Sequence[Group],
    device_bytes: int,
    host_bytes: int,
    *,
    context_len: int,
    chunk_len: int,
    block_size: int,
) -> ShadowedMemory:
    """Return how the memory is divided. Pure.

    Args:
        device_bytes, host_bytes: that may be had in each.
        context_len: tokens of the longest conversation.
        chunk_len: tokens computed in one step.
    """

    def taken(num_blocks: int) -> int:
        """Return what blocks take of host memory."""
        lengths = {"context_len": context_len, "chunk_len": chunk_len, "block_size": block_size}
        return max(0, full_bytes(groups, num_blocks, **lengths) - device_bytes)

    def fits(num_blocks: int) -> bool:
        num_tokens = min(num_blocks * block_size, context_len)
        return taken(num_blocks) + beside_bytes(groups, num_tokens) <= host_bytes

    low, high = 0, -(-context_len // block_size)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    lent = taken(low) if low else 0
    return ShadowedMemory(block_bytes=device_bytes + lent, host_bytes=lent, shadow_bytes=host_bytes - lent)
