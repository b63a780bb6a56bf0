"""What a layer keeps of which queries see a part: exact blocks as any full layer's, and holes between them.

A hole is an entry of a block table without a block. Its tokens count: positions behind it are what they were.
"""

from dataclasses import dataclass

from kvchat.engine.cache.spec import FullSpec

NUM_SINK_BLOCKS = 1
"""The first block stays in sight: models put the attention there that has no better place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec(FullSpec):
    """A layer whose queries see the first block, their own, and the `num_recent` blocks before that.

    Args:
        num_recent: whole blocks before a query's own.
        block_size: tokens of a block.
    """

    num_recent: int
    block_size: int

    @property
    def kind(self) -> str:
        return "sinks and window"

    @property
    def max_visible(self) -> int | None:
        return (NUM_SINK_BLOCKS + self.num_recent + 1) * self.block_size

    @property
    def num_sink_blocks(self) -> int:
        return NUM_SINK_BLOCKS

    @property
    def first_tainted(self) -> int:
        """The first block whose queries miss something: what is computed from here on is not exact."""
        return NUM_SINK_BLOCKS + self.num_recent + 1

    def first_visible(self, position: int) -> int:
        return max(0, position // self.block_size - self.num_recent) * self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedSpec(FullSpec):
    """A layer that keeps a part of each long prompt, once the prompt has been read.

    Args:
        rule: what is kept; see `api.view`.
        num_kept: blocks that are kept of a stretch of more, the last tokens of the prompt aside.
    """

    rule: str
    num_kept: int

    @property
    def kind(self) -> str:
        return self.rule
