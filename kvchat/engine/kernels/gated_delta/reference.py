"""The gated delta rule, token by token: what gated delta nets and Kimi delta attention keep of all tokens.

    S = exp(g) S;  S = S + k (beta (v - S' k))';  o = S' q / sqrt(K)

Dimensions: B sequences, n tokens of each, G key heads, H value heads, K and V numbers of a head. Source:
Yang et al., Gated Delta Networks (arXiv:2412.06464); with a decay for each of the K: Kimi Linear
(arXiv:2510.26692).
"""

import torch
from torch import Tensor

EPSILON = 1e-6
"""Added to the squared length of keys and queries that are made one long."""


def gated_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor | None,
    *,
    is_normal: bool,
) -> tuple[Tensor, Tensor]:
    """Return what the tokens read, and the state behind the last of them. Pure.

    Args:
        query, key: [B, n, G, K]; a key head serves H / G value heads side by side.
        value: [B, n, H, V].
        decay: logarithms [B, n, H] or [B, n, H, K].
        beta: [B, n, H].
        state: before the first token, float32 [B, H, K, V]; None: zeros.
        is_normal: make queries and keys one long.

    Returns:
        [B, n, H, V] in the dtype of `query`, float32 [B, H, K, V].
    """
    num_heads, dim = value.shape[2], key.shape[-1]
    dtype = query.dtype
    query, key, value, decay, beta = (one.float() for one in (query, key, value, decay, beta))
    if is_normal:
        query, key = (one * torch.rsqrt(one.square().sum(-1, keepdim=True) + EPSILON) for one in (query, key))
    query, key = (one.repeat_interleave(num_heads // one.shape[2], dim=2) for one in (query, key))
    decay = decay if decay.dim() == 4 else decay[..., None]
    if state is None:
        state = value.new_zeros(len(value), num_heads, dim, value.shape[-1])
    outs = []
    for t in range(value.shape[1]):
        state = state * decay[:, t].exp()[..., None]
        read = (state * key[:, t, :, :, None]).sum(-2)
        change = (value[:, t] - read) * beta[:, t, :, None]
        state = state + key[:, t, :, :, None] * change[:, :, None]
        outs.append((state * query[:, t, :, :, None]).sum(-2) * dim**-0.5)
    return torch.stack(outs, dim=1).to(dtype), state
