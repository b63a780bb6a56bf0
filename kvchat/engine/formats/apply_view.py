"""Views: which spec each layer of a model gets where only a part of its exact blocks is seen."""

from collections.abc import Sequence
from typing import Any

from kvchat.engine.api.view import SHADOW, WINDOW, View
from kvchat.engine.formats.pruned.spec import PrunedSpec
from kvchat.engine.formats.shadow.settings import CHUNK_SIZE, LEAST_WIDTH
from kvchat.engine.formats.shadow.spec import ShadowSpec
from kvchat.engine.formats.spec import CacheSpec, Group, group_layers
from kvchat.engine.formats.window.spec import WindowSpec
from kvchat.errors import ConfigError


def viewed_groups(groups: Sequence[Group], view: View, block_size: int) -> tuple[Group, ...]:
    """Return the groups of a model over a view: layers with a window of their own keep what they keep.

    Raises:
        ConfigError: the model cannot be seen in part; the message says why.
    """
    specs = {layer: group.spec for group in groups for layer in group.layers}
    _require_parts(specs, view)
    borrowed = {layer: lender for group in groups for layer, lender in group.borrowers}
    full = [layer for layer in sorted(specs) if specs[layer].max_visible is None]
    seen: dict[int, CacheSpec] = dict(specs)
    if view.rule == SHADOW:
        _require_gain({layer: specs[layer] for layer in full}, borrowed, view)
        if block_size % CHUNK_SIZE:
            raise ConfigError(
                f"cache format '{view}' selects chunks of {CHUNK_SIZE} tokens within blocks, and "
                f"{CHUNK_SIZE} does not divide a block's {block_size}; choose another block size"
            )
    for number, layer in enumerate(full):
        place = (number, len(full)) if view.is_pyramid else None
        seen[layer] = viewed_spec(specs[layer], view, block_size, place)
    return group_layers(seen, borrowed)


def _require_parts(specs: dict[int, CacheSpec], view: View) -> None:
    latent = next((layer for layer, spec in specs.items() if not spec.keeps_heads), None)
    if latent is not None:
        raise ConfigError(
            f"cache format '{view}' keeps parts of keys and values, and layer {latent} of this model keeps "
            f"one record for all its heads ({specs[latent].kind}); use --cache-format exact"
        )
    if all(spec.max_visible is not None for spec in specs.values()):
        raise ConfigError(
            f"cache format '{view}' would leave this model as it is: all of its layers have a window of "
            "their own; use --cache-format exact"
        )


def _require_gain(specs: dict[int, CacheSpec], borrowed: dict[int, int], view: View) -> None:
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


def viewed_spec(
    spec: CacheSpec, view: View, block_size: int, place: tuple[int, int] | None
) -> WindowSpec | PrunedSpec | ShadowSpec:
    """Return what a full layer keeps over a view. `place`: of a pyramid's layer; see `PrunedSpec`."""
    sizes: dict[str, Any] = {
        "num_kv_heads": spec.num_kv_heads,
        "head_dim_k": spec.head_dim_k,
        "head_dim_v": spec.head_dim_v,
    }
    if view.rule == SHADOW:
        return ShadowSpec(**sizes, dtype=spec.dtype, view=view)
    sizes["block_size"] = block_size
    num_blocks = -(-view.budget // block_size)
    if view.rule == WINDOW:
        return WindowSpec(**sizes, dtype=spec.dtype, num_recent=num_blocks)
    return PrunedSpec(**sizes, dtype=spec.dtype, rule=view.rule, num_kept=num_blocks, layer=place)
