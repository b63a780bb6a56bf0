"""The selective scan of state space models, token by token: Mamba, and Mamba2, whose heads decay as one.

    S = exp(dt A) S + dt x B';  y = S C + D x

Dimensions: B sequences, n tokens of each, H heads of P channels, G groups of heads, N numbers of a channel's
state. Mamba has heads of one channel and a decay for each of the N. Sources: Gu, Dao (arXiv:2312.00752);
Mamba2: Dao, Gu (arXiv:2405.21060).
"""

import torch
from torch import Tensor


def selective_scan(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return what the tokens read, and the state behind the last of them; both float32. Pure.

    Args:
        x: [B, n, H, P].
        dt: step sizes [B, n, H].
        a: [H], or [H, N].
        b, c: [B, n, G, N]; a group serves H / G heads side by side.
        skip: D, [H]; None: zeros.
        state: before the first token, float32 [B, H, P, N]; None: zeros.

    Returns:
        [B, n, H, P], [B, H, P, N].
    """
    x, dt, a, b, c = (one.float() for one in (x, dt, a, b, c))
    num_heads = x.shape[2]
    b, c = (one.repeat_interleave(num_heads // one.shape[2], dim=2) for one in (b, c))
    a = a if a.dim() == 2 else a[:, None]
    if state is None:
        state = x.new_zeros(len(x), num_heads, x.shape[3], b.shape[3])
    outs = []
    for t in range(x.shape[1]):
        decay = (dt[:, t, :, None] * a).exp()[:, :, None]
        state = state * decay + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        outs.append((state * c[:, t, :, None]).sum(-1))
    read = torch.stack(outs, dim=1)
    return read if skip is None else read + skip.float()[:, None] * x, state
