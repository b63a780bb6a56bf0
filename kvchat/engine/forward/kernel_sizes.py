"""Sizes in which a model calls the attention kernels, from its config and from what its layers cache."""

from collections.abc import Sequence
from typing import Any

from kvchat.engine.formats.shadow.settings import ShadowSettings
from kvchat.engine.formats.spec import (
    ChunkedSpec,
    Fp8LatentSpec,
    FullSpec,
    Group,
    LatentSpec,
    QuantizedSpec,
    ResidualSpec,
    SlidingSpec,
)
from kvchat.engine.kernels.kernel_checks import LatentSizes
from kvchat.engine.kernels.model_checks import AttentionSizes, Latents
from kvchat.engine.kernels.shadow_checks import ShadowSizes


def sizes_in_config(config: Any, block_size: int) -> tuple[AttentionSizes | Latents, ...]:
    """Return the sizes that a model's config tells before any layer has been looked at; none where it tells
    them in another way. Pure.

    Args:
        block_size: of the first blocks that its kernels read.
    """
    num_heads = _count(config, "num_attention_heads")
    if num_heads is None:
        return ()
    if _count(config, "kv_lora_rank") is not None:
        latents = _latents(config, num_heads, block_size)
        return () if latents is None else (latents,)
    num_kv_heads = _count(config, "num_key_value_heads") or num_heads
    head_dim = _count(config, "head_dim") or (_count(config, "hidden_size") or 0) // num_heads
    if not head_dim or num_heads % num_kv_heads:
        return ()
    sizes = AttentionSizes(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim_k=head_dim,
        head_dim_v=head_dim,
        block_size=block_size,
    )
    return (sizes,)


def sizes_in_groups(
    config: Any, groups: Sequence[Group], block_size: int
) -> tuple[AttentionSizes | Latents, ...]:
    """Return the sizes of all layers, each once. Pure."""
    listed = [sizes for group in groups if (sizes := _sizes(config, group.spec, block_size)) is not None]
    return tuple(dict.fromkeys(listed))


def shadow_sizes(config: Any, specs: Sequence[FullSpec]) -> tuple[ShadowSizes, ...]:
    """Return the sizes of layers that are looked at through shadows, each once. Pure."""
    listed = [
        ShadowSizes(
            num_heads=_num_heads(config, spec),
            num_kv_heads=spec.num_kv_heads,
            dim=spec.head_dim_k,
            value_dim=spec.head_dim_v,
            rank=ShadowSettings().rank_for(spec.num_kv_heads * spec.head_dim_k),
        )
        for spec in specs
        if spec.is_shadowed
    ]
    return tuple(dict.fromkeys(listed))


def _num_heads(config: Any, spec: FullSpec) -> int:
    """Return the query heads of a layer, as many for each of its key-value heads."""
    num_heads = _count(config, "num_attention_heads") or spec.num_kv_heads
    return spec.num_kv_heads * max(1, num_heads // spec.num_kv_heads)


def _sizes(config: Any, spec: FullSpec, block_size: int) -> AttentionSizes | Latents | None:
    num_heads = _count(config, "num_attention_heads") or spec.num_kv_heads
    if isinstance(spec, LatentSpec):
        latents = _latents(config, num_heads, block_size)
        if latents is None:
            return None
        return Latents(sizes=latents.sizes, is_packed=isinstance(spec, Fp8LatentSpec))
    if isinstance(spec, ResidualSpec):  # what its quantized twin says
        return None
    return AttentionSizes(
        num_heads=_num_heads(config, spec),
        num_kv_heads=spec.num_kv_heads,
        head_dim_k=spec.head_dim_k,
        head_dim_v=spec.head_dim_v,
        block_size=block_size,
        window=spec.window_len if isinstance(spec, SlidingSpec) else None,
        chunk=spec.chunk_len if isinstance(spec, ChunkedSpec) else None,
        codes=(spec.key_code, spec.value_code) if isinstance(spec, QuantizedSpec) else None,
    )


def _latents(config: Any, num_heads: int, block_size: int) -> Latents | None:
    rank, rope_dim = _count(config, "kv_lora_rank"), _count(config, "qk_rope_head_dim")
    head_dim = _count(config, "qk_nope_head_dim")
    if rank is None or rope_dim is None or head_dim is None:
        return None
    sizes = LatentSizes(
        num_heads=num_heads, rank=rank, rope_dim=rope_dim, head_dim=head_dim, block_size=block_size
    )
    return Latents(sizes=sizes)


def _count(config: Any, name: str) -> int | None:
    """Return a number above 0 of a config; None where it has none, or one for each layer."""
    value = getattr(config, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
