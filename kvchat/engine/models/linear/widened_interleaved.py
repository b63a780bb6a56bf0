"""Linear layers of bfloat16 for processors that multiply numbers of 32 bits: their inputs lie in pairs."""

import torch
from torch import Tensor, nn

from kvchat.engine.kernels.cpu_dtypes import is_emulated
from kvchat.engine.kernels.linear import native
from kvchat.engine.kernels.linear.widened_layout import BLOCK, InterleavedWeight


class InterleavedLinear(nn.Module):
    """Stands in for `nn.Linear`. `pairs` [N / 48, K / 2, 48, 2] holds the numbers of its weight."""

    pairs: Tensor

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.register_buffer("pairs", native.pair(plain.weight.detach()).numbers)
        self.bias = plain.bias

    @property
    def paired(self) -> InterleavedWeight:
        return InterleavedWeight(numbers=self.pairs, shape=torch.Size((self.out_features, self.in_features)))

    @property
    def weight(self) -> Tensor:
        """[N, K], made anew each time, for models that multiply by it themselves."""
        return self.paired.to_dense()

    def forward(self, x: Tensor) -> Tensor:
        """[..., T, K] → [..., T, N]."""
        rows = x.reshape(-1, x.shape[-1]).float()
        return native.linear(rows, self.paired, self.bias, x.dtype).view(*x.shape[:-1], self.out_features)


def is_better_paired(weight: Tensor) -> bool:
    """Whether this processor computes the products of a weight fastest from pairs of its inputs. Pure."""
    is_large = weight.dim() == 2 and len(weight) >= BLOCK
    return is_large and weight.dtype == torch.bfloat16 and native.takes(weight) and is_emulated(weight.dtype)
