"""What a layer keeps of which queries see a part: exact blocks as any full layer's, and holes between them.

A hole is an entry of a block table without a block. Its tokens count: positions behind it are what they were.
Behind a shadow there are none: all blocks stay, and each step chooses what it looks at.
"""

from kvchat.engine.api.view import View
from kvchat.engine.formats.shadow.settings import (
    CHUNK_SIZE,
    LayerShape,
    least_prompt,
    most_bytes,
    settings_for,
)
from kvchat.engine.formats.spec import ITEM_BYTES, FullSpec
from kvchat.platform.values import dataclass

BETA = 20
"""The last layer keeps about this part of the mean."""


def pyramid_budgets(*, mean: int, most: int, num_layers: int) -> tuple[int, ...]:
    """Return the tokens that each layer keeps, the first layer's first.

    Args:
        mean: of all layers, about.
        most: as many there are.
    """
    assert 0 < mean < most
    least = mean // BETA
    first = 2 * mean - least
    if first >= most:
        first, least = most, 2 * mean - most
    step = (first - least) // max(1, num_layers - 1)
    return tuple(first - number * step for number in range(num_layers))


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
    def is_view(self) -> bool:
        return True

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
        num_kept: blocks that are kept of a stretch of more, the last tokens of the prompt aside; of a
            pyramid the mean over all layers.
        layer: of a pyramid, where deeper layers keep less: which of so many pruned layers this is.
        block_size: tokens of a block.
    """

    rule: str
    num_kept: int
    block_size: int
    layer: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        """What is pruned how, in all layers."""
        shape = "" if self.layer is None else " as a pyramid"
        return f"{self.rule} {self.num_kept} of {self.block_size}{shape}"

    def kept_blocks(self, num_blocks: int) -> int:
        """Return how many blocks this layer keeps of a stretch of `num_blocks`, at least one. Pure."""
        if num_blocks <= self.num_kept or self.layer is None:
            return min(num_blocks, self.num_kept)
        number, num_layers = self.layer
        size = self.block_size
        budgets = pyramid_budgets(mean=self.num_kept * size, most=num_blocks * size, num_layers=num_layers)
        return max(1, -(-budgets[number] // size))

    @property
    def num_spare_blocks(self) -> int:
        """The most blocks that are kept of any stretch: they are filled beside it."""
        return 2 * self.num_kept if self.layer is not None else self.num_kept

    @property
    def stands_alone(self) -> bool:
        return True

    @property
    def is_pruned(self) -> bool:
        return True

    @property
    def is_view(self) -> bool:
        return True

    @property
    def kind(self) -> str:
        return self.rule


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSpec(FullSpec):
    """A layer that a sequence looks at through a shadow, once a long prompt has been read.

    Args:
        view: how much a step looks at.
        block_size: tokens of a block.
        has_remote_blocks: the device is a GPU: blocks lie in host memory, their shadows on the device.
    """

    view: View
    block_size: int
    has_remote_blocks: bool = False

    @property
    def kind(self) -> str:
        return "shadow"

    @property
    def is_remote(self) -> bool:
        return self.has_remote_blocks

    @property
    def is_shadowed(self) -> bool:
        return True

    @property
    def shape(self) -> LayerShape:
        return LayerShape(
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim_k,
            value_dim=self.head_dim_v,
            element_size=ITEM_BYTES[self.dtype],
        )

    def shadow_bytes(self, num_tokens: int) -> int:
        """Return the most that the shadow of a conversation takes in one layer, beside its blocks. Pure."""
        if num_tokens < least_prompt(self.view):
            return 0
        is_sourced = self.block_size % CHUNK_SIZE == 0
        settings = settings_for(
            self.view, num_tokens, is_sourced=is_sourced, is_remote=self.has_remote_blocks
        )
        return most_bytes(settings, self.shape, num_tokens)
