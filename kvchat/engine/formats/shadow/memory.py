"""Memory split between pools and shadows. Arithmetic alone.

Such a step reads what it chooses where it lies, so blocks may lie in host memory too. A processor's get as
much of it as one conversation of full length needs beside the device's, as far as its shadow leaves that; a
GPU's lie there all, and shadows on the device.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvchat.engine.formats.pool_sizing import Lengths, full_bytes
from kvchat.engine.formats.shadow.settings import TABLE_STEP
from kvchat.engine.formats.shadow.spec import ShadowSpec, shadow_specs
from kvchat.engine.formats.spec import Group
from kvchat.errors import ConfigError

COPIES = 3
"""Of a layer's keys and values while a shadow is made of them: as blocks, as rows, and on their way there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowedMemory:
    """Args:
    block_bytes: that blocks may take, on the device and in host memory.
    host_bytes: of these, in host memory.
    shadow_bytes: that shadows may take: of host memory, or of a GPU's own.
    is_remote: all blocks lie in host memory, and shadows on a GPU.
    """

    block_bytes: int
    host_bytes: int
    shadow_bytes: int
    is_remote: bool = False

    @property
    def device_shadow_bytes(self) -> int:
        """What shadows may take of a GPU's memory."""
        return self.shadow_bytes if self.is_remote else 0

    @property
    def beside_bytes(self) -> int:
        """What blocks and shadows may take of host memory together."""
        return self.host_bytes + self.shadow_bytes


def beside_bytes(groups: Sequence[Group], num_tokens: int) -> int:
    """Return the most that the shadows of a conversation take beside its blocks, in all layers, and on a GPU
    the table by which their keys turn. Pure.
    """
    layers = sum(group.beside_bytes(num_tokens) for group in groups)
    widths = [group.spec.head_dim_k for group in groups if group.in_host_memory]
    return layers + sum(table_bytes(width, num_tokens) for width in set(widths) if layers)


def table_bytes(num_turned: int, num_positions: int) -> int:
    """Return what cosines and sines of so many numbers of a head take at all positions. Pure."""
    return -(-num_positions // TABLE_STEP) * TABLE_STEP * num_turned * 4


def in_host_memory(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return the groups as a GPU stores them: blocks that are looked at through shadows lie in host memory.

    Raises:
        ConfigError: only some layers are looked at so.
    """
    if not shadow_specs(groups):
        return tuple(groups)
    placed = []
    for group in groups:
        if not isinstance(group.spec, ShadowSpec):
            raise ConfigError(
                f"layers {', '.join(map(str, group.layers))} of this model have no shadow as its others do, "
                "and a GPU has one for all layers or none; use --cache-format exact"
            )
        placed.append(replace(group, in_host_memory=True))
    return tuple(placed)


def making_bytes(groups: Sequence[Group], num_tokens: int) -> int:
    """Return what a GPU needs for a moment while a prompt's shadow is made, layer by layer. Pure."""
    token_bytes = max((group.spec.token_bytes for group in groups if group.in_host_memory), default=0)
    return COPIES * token_bytes * num_tokens


def divided(groups: Sequence[Group], device_bytes: int, host_bytes: int, lengths: Lengths) -> ShadowedMemory:
    """Return how the memory is divided. Pure.

    Args:
        device_bytes, host_bytes: that may be had in each.
    """
    context_len, block_size = lengths.context_len, lengths.block_size

    def taken(num_blocks: int) -> int:
        """Return what blocks take of host memory."""
        return max(0, full_bytes(groups, num_blocks, lengths) - device_bytes)

    def needed(num_blocks: int) -> int:
        """Return what blocks and the shadow of a conversation that fills them take of it."""
        return taken(num_blocks) + beside_bytes(groups, min(num_blocks * block_size, context_len))

    num_blocks = bisect_right(range(1, -(-context_len // block_size) + 1), host_bytes, key=needed)
    lent = taken(num_blocks) if num_blocks else 0
    return ShadowedMemory(block_bytes=device_bytes + lent, host_bytes=lent, shadow_bytes=host_bytes - lent)
