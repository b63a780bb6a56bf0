"""Size of a layer's recurrent state, from a model's config alone: no weights, no torch.

What a recurrence accumulates has 4 bytes a number, what a convolution keeps of its inputs those of the model.
"""

from collections.abc import Callable
from typing import Any

Get = Callable[..., Any]
"""Returns the first of some fields that a config has, or `default`."""


def state_bytes(get: Get, item: int) -> int | None:
    """Return the bytes of one layer; None: the config is of no known kind.

    Args:
        get: reads the config.
        item: bytes of a number of the model's dtype.
    """
    return next(
        (
            size
            for kind in (_delta, _kda, _short, _lightning, _lru, _mamba2, _mamba1)
            if (size := kind(get, item))
        ),
        None,
    )


def _delta(get: Get, item: int) -> int | None:
    """Gated delta net: Qwen3-Next, Qwen3.5, OLMo hybrid."""
    value_heads = get("linear_num_value_heads", default=None)
    if value_heads is None:
        return None
    key_dim, value_dim = get("linear_key_head_dim"), get("linear_value_head_dim")
    channels = 2 * get("linear_num_key_heads") * key_dim + value_heads * value_dim
    return int(
        channels * get("linear_conv_kernel_dim", default=4) * item + value_heads * key_dim * value_dim * 4
    )


def _kda(get: Get, item: int) -> int | None:
    """Kimi delta attention: Kimi-Linear."""
    heads, dim = get("linear_num_heads", default=None), get("linear_head_dim", default=None)
    if heads is None or dim is None:
        return None
    return int(3 * heads * dim * get("linear_conv_kernel_dim", default=4) * item + heads * dim * dim * 4)


def _short(get: Get, item: int) -> int | None:
    """Short convolution: LFM2."""
    columns = get("conv_L_cache", default=None)
    return None if columns is None else int(get("hidden_size") * columns * item)


def _lightning(get: Get, item: int) -> int | None:
    """Lightning attention: MiniMax, whose state is of the model's dtype."""
    if get("linear_attn_alpha_factor", default=None) is None:
        return None
    heads = get("num_attention_heads")
    return int(heads * get("head_dim", default=get("hidden_size") // heads) ** 2 * item)


def _lru(get: Get, item: int) -> int | None:
    """Real-gated linear recurrent unit: RecurrentGemma."""
    width = get("lru_width", default=None)
    return None if width is None else int(width * ((get("conv1d_width") - 1) * item + 4))


def _mamba2(get: Get, item: int) -> int | None:
    heads = get("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads", default=None)
    dim = get("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim", default=None)
    size = get("mamba_d_state", "ssm_state_size", "state_size", default=None)
    groups = get("mamba_n_groups", "mamba_ngroups", "n_groups", default=None)
    if None in (heads, dim, size, groups):
        return None
    channels = heads * dim + 2 * groups * size
    return int(channels * get("mamba_d_conv", "conv_kernel", default=4) * item + heads * dim * size * 4)


def _mamba1(get: Get, item: int) -> int | None:
    size = get("mamba_d_state", "state_size", default=None)
    if size is None:
        return None
    channels = get("mamba_expand", "expand", default=2) * get("hidden_size")
    return int(channels * get("mamba_d_conv", "conv_kernel", default=4) * item + channels * size * 4)
