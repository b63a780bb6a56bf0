"""Tiling of a Triton kernel's launch."""

from dataclasses import dataclass

HALF = 2
"""Bytes of a 16-bit number. Products of wider ones do not run on tensor cores and need many registers."""
MOST_REGISTERS = 255
"""A thread has no more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Chosen so that nothing spills on sm_80, sm_90 and sm_100.

    Args:
        block_m: rows of a tile, a query and a head each.
        block_n: keys per turn.
        max_registers: of a thread; None: as many as the compiler thinks best.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None
