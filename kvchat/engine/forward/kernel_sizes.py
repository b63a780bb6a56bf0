"""Sizes in which a model calls the attention kernels, from its config and from what its layers cache."""

from collections.abc import Sequence
from typing import Any

from kvchat.engine.formats.shadow.spec import shadow_specs
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.attention_shapes import AttentionSizes, KernelSizes, LatentSizes, ShadowSizes


def sizes_in_config(config: Any, block_size: int) -> tuple[KernelSizes, ...]:
    """Return the sizes that a model's config tells before any layer has been looked at; none where it tells
    them in another way. Pure.

    Args:
        block_size: of the first blocks that its kernels read.
    """
    num_heads = _count(config, "num_attention_heads")
    if num_heads is None:
        return ()
    rank = _count(config, "kv_lora_rank")
    if rank is not None:
        rope_dim, nope_dim = _count(config, "qk_rope_head_dim"), _count(config, "qk_nope_head_dim")
        if rope_dim is None or nope_dim is None:
            return ()
        latent = LatentSizes(
            num_heads=num_heads, rank=rank, rope_dim=rope_dim, head_dim=nope_dim, block_size=block_size
        )
        return (latent,)
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


def sizes_in_groups(config: Any, groups: Sequence[Group], block_size: int) -> tuple[KernelSizes, ...]:
    """Return the sizes of all layers, each once. Pure."""
    nope_dim = _count(config, "qk_nope_head_dim")
    listed = (
        group.spec.kernel_sizes(
            _count(config, "num_attention_heads") or group.spec.num_kv_heads, nope_dim, block_size
        )
        for group in groups
    )
    return tuple(dict.fromkeys(sizes for sizes in listed if sizes is not None))


def shadow_sizes(config: Any, groups: Sequence[Group]) -> tuple[ShadowSizes, ...]:
    """Return the sizes of layers that are looked at through shadows, each once. Pure."""
    num_heads = _count(config, "num_attention_heads")
    specs = shadow_specs(groups).values()
    return tuple(dict.fromkeys(spec.shadow_sizes(num_heads or spec.num_kv_heads) for spec in specs))


def _count(config: Any, name: str) -> int | None:
    """Return a number above 0 of a config; None where it has none, or one for each layer."""
    try:
        value = getattr(config, name, None)
    except RuntimeError:  # transformers refuses to give one number where each layer has its own
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
