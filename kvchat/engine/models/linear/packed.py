"""A model's linear layers as the processor multiplies them fastest.

Weights lie in the order in which they are read: packed, or in bfloat16 with inputs in pairs where the
processor multiplies numbers of 32 bits. The numbers are the same, and a model computes the same with them but
for the order of sums. Such weights take the place of plain ones, except where an embedding shares them: it
keeps its own.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from kvchat.engine.kernels.cpu_dtypes import is_emulated
from kvchat.engine.kernels.linear import can_pack, linear, native, pack, widened
from kvchat.engine.kernels.linear.widened_layout import BLOCK, InterleavedWeight
from kvchat.engine.models.latent import projections


class PackedLinear(nn.Module):
    """Stands in for `nn.Linear`. `weight` is opaque: it has a shape and a dtype, and `to_dense()`."""

    weight: Tensor

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.register_buffer("weight", pack(plain.weight.detach()))
        self.bias = plain.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., T, K] → [..., T, N]."""
        return linear(x, self.weight, self.bias)


class WidenedLinear(nn.Module):
    """Stands in for `nn.Linear` of 16 bits, shares its parameters, and multiplies numbers of 32."""

    weight: Tensor

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., T, K] → [..., T, N]."""
        return widened.linear(x, self.weight, self.bias)


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


def is_better_widened(weight: Tensor) -> bool:
    """Whether this processor computes the products of a weight faster in float32. Pure."""
    return weight.device.type == "cpu" and is_emulated(weight.dtype)


def is_better_paired(weight: Tensor) -> bool:
    """Whether this processor computes the products of a weight fastest from pairs of its inputs. Pure."""
    is_large = weight.dim() == 2 and len(weight) >= BLOCK
    return is_large and weight.dtype == torch.bfloat16 and native.takes(weight) and is_emulated(weight.dtype)


def pack_linears(model: nn.Module) -> int:
    """Replace every plain linear layer whose weight can be packed, one at a time, and return how many.

    Where the processor multiplies no numbers of 16 bits, layers of them are replaced by paired ones, or
    by widened ones, which share their weight with an embedding or have no native kernel. Those whose weights
    latent attention reads stay.
    """
    num_packed, spared = 0, projections(model)
    embedded = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    # A list with the layers in it would keep the plain weights of all of them to the end.
    for parent in [module for module in model.modules() if type(module) is not nn.Linear]:
        for name, layer in list(parent.named_children()):
            if type(layer) is not nn.Linear or layer in spared:
                continue
            if is_better_paired(layer.weight) and id(layer.weight) not in embedded:
                setattr(parent, name, InterleavedLinear(layer))
                num_packed += 1
            elif is_better_widened(layer.weight):
                setattr(parent, name, WidenedLinear(layer))
            elif can_pack(layer.weight):
                setattr(parent, name, PackedLinear(layer))
                num_packed += 1
    return num_packed


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor | InterleavedWeight]]:
    """Yield every parameter and buffer under each of its names, also those that are not saved, and paired
    weights under those of the plain ones.
    """
    paired = {
        f"{name}.pairs": (f"{name}.weight", layer.paired)
        for name, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, InterleavedLinear)
    }
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield name, parameter.data
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield paired.get(name, (name, buffer))


def overwrite(present: Tensor | InterleavedWeight, tensor: Tensor) -> None:
    """Copy plain weights over present ones, which may be packed or paired."""
    if isinstance(present, InterleavedWeight):
        present.numbers.copy_(native.pair(tensor).numbers)
    else:
        present.copy_(pack(tensor) if present.is_mkldnn and not tensor.is_mkldnn else tensor)
