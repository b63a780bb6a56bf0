"""Pruned view: exact blocks, of which a part of each long prompt is kept."""

from dataclasses import dataclass
from typing import ClassVar

from kvchat.engine.formats.spec import CacheSpec, Selection

BETA = 20
"""The last layer of a pyramid keeps about this part of the mean."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedSpec(CacheSpec):
    """A layer that keeps a part of each long prompt, once the prompt has been read.

    Args:
        rule: what is kept; see `api.view`.
        num_kept: blocks that are kept of a stretch of more, the last tokens of the prompt aside; of a
            pyramid the mean over all layers.
        layer: of a pyramid, where deeper layers keep less: which of so many pruned layers this is.
        block_size: tokens of a block.
    """

    stands_alone: ClassVar[bool] = True
    selection: ClassVar[Selection] = Selection.PRUNED

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
    def kind(self) -> str:
        return self.rule
