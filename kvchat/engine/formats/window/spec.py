"""Window view: exact blocks, of which a query sees the first and the last ones.

Source: StreamingLLM, arXiv 2309.17453.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvchat.engine.formats.spec import BlockRange, CacheSpec, Selection

NUM_SINK_BLOCKS = 1
"""The first block stays visible: models put the attention there that has no better place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec(CacheSpec):
    """A layer whose queries see the first block, their own, and the `num_recent` blocks before that.

    Args:
        num_recent: whole blocks before a query's own.
        block_size: tokens of a block.
    """

    kind: ClassVar[str] = "sinks and window"
    selection: ClassVar[Selection] = Selection.SINKS_AND_WINDOW

    num_recent: int
    block_size: int

    @property
    def max_visible(self) -> int | None:
        return (NUM_SINK_BLOCKS + self.num_recent + 1) * self.block_size

    @property
    def first_tainted(self) -> int:
        """The first block whose queries miss something: what is computed from here on is not exact."""
        return NUM_SINK_BLOCKS + self.num_recent + 1

    def first_visible(self, position: int) -> int:
        return max(0, position // self.block_size - self.num_recent) * self.block_size

    def visible_blocks(self, position: int, block_size: int) -> tuple[BlockRange, ...]:
        first, end = self.first_visible(position) // block_size, position // block_size + 1
        if first <= NUM_SINK_BLOCKS:
            return ((0, end),)
        return (0, NUM_SINK_BLOCKS), (first, end)
