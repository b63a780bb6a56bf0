"""A short convolution over the last tokens, channel by channel, as layers with a recurrent state have it.

Dimensions: B sequences, n tokens of each, C channels, L taps.
"""

import torch
from torch import Tensor
from torch.nn import functional


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor | None = None, *, is_activated: bool
) -> Tensor:
    """Return the sums over each token and the L - 1 before it, in the dtype of `x`. Pure.

    Args:
        x: [B, n, C].
        weight: [C, L], of the oldest token first.
        bias: [C], or None.
        past: [B, C, P], the last inputs before `x`, P >= L - 1; None: zeros.
        is_activated: apply SiLU to the rounded sums.
    """
    num_taps = weight.shape[1]
    before = (
        x.new_zeros(len(x), x.shape[2], num_taps - 1)
        if past is None
        else past[..., past.shape[-1] - num_taps + 1 :]
    )
    rows = torch.cat((before.to(x.dtype), x.transpose(1, 2)), dim=-1).float()
    sums = functional.conv1d(
        rows, weight.float()[:, None], None if bias is None else bias.float(), groups=x.shape[2]
    )
    sums = sums.to(x.dtype).transpose(1, 2)
    return functional.silu(sums) if is_activated else sums
