"""Linear layers of 16 bits for processors that multiply numbers of 32: the weights stay as they are."""

from torch import Tensor, nn

from kvchat.engine.kernels.cpu_dtypes import is_emulated
from kvchat.engine.kernels.linear.widened import linear


class WidenedLinear(nn.Module):
    """Stands in for `nn.Linear`, and shares its parameters."""

    weight: Tensor

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., T, K] → [..., T, N]."""
        return linear(x, self.weight, self.bias)


def is_better_widened(weight: Tensor) -> bool:
    """Whether this processor computes the products of a weight faster in float32. Pure."""
    return weight.device.type == "cpu" and is_emulated(weight.dtype)
