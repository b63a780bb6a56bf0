"""A linear layer: the definition.

Dimensions: T tokens, K inputs, N outputs.
"""

from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias`.

    Args:
        x: [..., T, K].
        weight: [N, K].
        bias: [N], or None.

    Returns:
        [..., T, N] in the dtype of `x`.
    """
    out = x @ weight.T
    return out if bias is None else out + bias
