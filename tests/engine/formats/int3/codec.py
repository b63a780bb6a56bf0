"""Records of 3 bits: made of numbers, and read as numbers."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.formats.attention_metadata import LayerPool
from kvchat.engine.formats.full.codec import Codec
from tests.engine.formats.int3.spec import BITS, METADATA_BYTES, Int3Spec

LEAST_SCALE = 1e-30


def pack(numbers: Tensor) -> Tensor:
    """Return the records [..., b], uint8, of numbers [..., D]."""
    numbers = numbers.float()
    least, most = numbers.amin(-1, keepdim=True), numbers.amax(-1, keepdim=True)
    scale = ((most - least) / (2**BITS - 1)).clamp_min(LEAST_SCALE)
    codes = ((numbers - least) / scale).round().to(torch.uint8)
    bits = (codes[..., None] >> torch.arange(BITS, dtype=torch.uint8)) & 1
    bits = bits.flatten(-2)
    bits = functional.pad(bits, (0, -bits.shape[-1] % 8)).unflatten(-1, (-1, 8))
    packed = (bits << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)
    metadata = torch.cat([scale, least], -1).contiguous().view(torch.uint8)
    return torch.cat([metadata, packed], -1)


def unpack(records: Tensor, dim: int) -> Tensor:
    """Return the numbers [..., D], float32, of records [..., b]."""
    scale, least = records[..., :METADATA_BYTES].contiguous().view(torch.float32).split(1, -1)
    packed = records[..., METADATA_BYTES:, None]
    bits = ((packed >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(-2)[..., : dim * BITS]
    codes = (bits.unflatten(-1, (dim, BITS)) << torch.arange(BITS, dtype=torch.uint8)).sum(-1)
    return codes * scale + least


class Int3Codec(Codec):
    """Codec of layers of 3 bits."""

    def __init__(self, spec: Int3Spec) -> None:
        self._dims = {"k": spec.head_dim_k, "v": spec.head_dim_v}

    def copy_blocks(self, target: LayerPool, source: LayerPool, sources: Tensor, targets: Tensor) -> None:
        target.keys[targets] = pack(source.keys[sources])
        target.values[targets] = pack(source.values[sources])

    def numbers(self, stored: Tensor, region: str) -> Iterator[Tensor]:
        yield unpack(stored, self._dims[region[-1]])
