"""Specs of layers under a view: exact blocks as any full layer's, with hidden ranges between them.

A hidden_range is an entry of a block table without a block. Its tokens count: positions behind it are what they were.
Behind a shadow there are none: all blocks stay, and each step chooses what it looks at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.engine.api.view import SHADOW, WINDOW, View
from kvchat.engine.formats.shadow.settings import (
    CHUNK_SIZE,
    LEAST_WIDTH,
    LayerShape,
    least_prompt,
    most_bytes,
    settings_for,
)
from kvchat.engine.formats.spec import ITEM_BYTES, FullSpec, Group, LatentSpec, group_layers
from kvchat.errors import ConfigError

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


def viewed_groups(groups: Sequence[Group], view: View, block_size: int) -> tuple[Group, ...]:
    """Return the groups of a model over a view: layers with a window of their own keep what they keep.

    Raises:
        ConfigError: the model cannot be seen in part; the message says why.
    """
    specs = {layer: group.spec for group in groups for layer in group.layers}
    _require_parts(specs, view)
    borrowed = {layer: lender for group in groups for layer, lender in group.borrowers}
    full = [layer for layer in sorted(specs) if specs[layer].max_visible is None]
    seen: dict[int, FullSpec] = dict(specs)
    if view.rule == SHADOW:
        _require_gain({layer: specs[layer] for layer in full}, borrowed, view)
    for number, layer in enumerate(full):
        place = (number, len(full)) if view.is_pyramid else None
        seen[layer] = _seen(specs[layer], view, block_size, place)
    return group_layers(seen, borrowed)


def _require_parts(specs: dict[int, FullSpec], view: View) -> None:
    latent = next((layer for layer, spec in specs.items() if isinstance(spec, LatentSpec)), None)
    if latent is not None:
        raise ConfigError(
            f"cache format '{view}' keeps parts of keys and values, and layer {latent} of this model keeps "
            "latents (MLA), one for all its heads; use --cache-format fp8 or exact"
        )
    if all(spec.max_visible is not None for spec in specs.values()):
        raise ConfigError(
            f"cache format '{view}' would leave this model as it is: all of its layers have a window of "
            "their own; use --cache-format exact"
        )


def _require_gain(specs: dict[int, FullSpec], borrowed: dict[int, int], view: View) -> None:
    """Refuse layers that gain nothing from a shadow, unless it is forced, and those that two layers read."""
    for layer, lender in borrowed.items():
        if lender in specs:
            raise ConfigError(
                f"cache format '{view}' has no form for layer {layer} of this model, which reads the keys of "
                f"layer {lender}; use --cache-format exact"
            )
    for layer, spec in specs.items():
        width = spec.num_kv_heads * spec.head_dim_k
        if width <= LEAST_WIDTH and not view.is_forced:
            raise ConfigError(
                f"cache format '{view}' gains nothing on this model: keys of {spec.num_kv_heads} x "
                f"{spec.head_dim_k} = {width} numbers in layer {layer} are hardly larger than their shadow, "
                f"which takes more than {LEAST_WIDTH}; use --cache-format exact, or {view}:forced to try it"
            )


def _seen(
    spec: FullSpec, view: View, block_size: int, place: tuple[int, int] | None
) -> WindowSpec | PrunedSpec | ShadowSpec:
    """Return what a full layer keeps over a view. `place`: of a pyramid's layer; see `PrunedSpec`."""
    if view.rule == SHADOW:
        return ShadowSpec(
            num_kv_heads=spec.num_kv_heads,
            head_dim_k=spec.head_dim_k,
            head_dim_v=spec.head_dim_v,
            dtype=spec.dtype,
            view=view,
            block_size=block_size,
        )
    heads = {
        "num_kv_heads": spec.num_kv_heads,
        "head_dim_k": spec.head_dim_k,
        "head_dim_v": spec.head_dim_v,
    }
    num_blocks = -(-view.budget // block_size)
    kept = {**heads, "block_size": block_size}
    if view.rule == WINDOW:
        return WindowSpec(**kept, dtype=spec.dtype, num_recent=num_blocks)
    return PrunedSpec(**kept, dtype=spec.dtype, rule=view.rule, num_kept=num_blocks, layer=place)
