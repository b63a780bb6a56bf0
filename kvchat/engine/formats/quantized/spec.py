"""Quantized layers: recent blocks are exact, older ones quantized once their successor is full.

Each of the two parts is a group with pools, tables and names of its own.
Source: KIVI, arXiv 2402.02750.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from kvchat.engine.api.cache_format import SideFormat
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.spec import CacheSpec, Lifetime, StoredLayer
from kvchat.engine.kernels.attention_shapes import KernelSizes
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord, num_quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualSpec(CacheSpec):
    """The exact part of a quantised layer: a query sees its own block here and the one before.

    Args:
        block_size: tokens of a block.
    """

    kind: ClassVar[str] = "recent"
    lifetime: ClassVar[Lifetime] = Lifetime.SUPERSEDED

    block_size: int

    @property
    def exact(self) -> FullSpec:
        """The same layer as it is where all its blocks are exact."""
        heads = {"head_dim_k": self.head_dim_k, "head_dim_v": self.head_dim_v}
        return FullSpec(num_kv_heads=self.num_kv_heads, **heads, dtype=self.dtype)

    @property
    def max_visible(self) -> int | None:
        return 2 * self.block_size

    def first_visible(self, position: int) -> int:
        return num_quantized(position, self.block_size) * self.block_size

    def kernel_sizes(self, num_heads: int, nope_dim: int | None, block_size: int) -> KernelSizes | None:
        return None  # its quantized twin says them


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedSpec(CacheSpec):
    """The quantised part of a layer: all blocks before the recent ones, each written once, as a whole.

    A slot of a block is one head's record of the whole block, so there is one for each head.

    Args:
        key_code: what a number of a key becomes.
        value_code: what a number of a value becomes.
        block_size: tokens of a block.
    """

    is_exact: ClassVar[bool] = False
    keeps_heads: ClassVar[bool] = False

    key_code: Code
    value_code: Code
    block_size: int

    @property
    def kind(self) -> str:
        if self.key_code is self.value_code:
            return self.key_code.value
        return f"k={self.key_code.value},v={self.value_code.value}"

    @property
    def key_record(self) -> QuantizedRecord:
        return QuantizedRecord(self.key_code, self.block_size, self.head_dim_k, is_by_channel=True)

    @property
    def value_record(self) -> QuantizedRecord:
        return QuantizedRecord(self.value_code, self.block_size, self.head_dim_v, is_by_channel=False)

    def num_blocks(self, num_tokens: int, block_size: int) -> int:
        return num_quantized(num_tokens, block_size)

    def layer_bytes(self, block_size: int) -> int:
        assert block_size == self.block_size
        return self.num_kv_heads * (self.key_record.num_bytes + self.value_record.num_bytes)

    def shapes(self, block_size: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        assert block_size == self.block_size
        heads = self.num_kv_heads
        return (heads, 1, self.key_record.num_bytes), (heads, 1, self.value_record.num_bytes)

    def kernel_sizes(self, num_heads: int, nope_dim: int | None, block_size: int) -> KernelSizes | None:
        sizes = self.attention_sizes(num_heads, block_size)
        return replace(sizes, codes=(self.key_code, self.value_code))


def quantized_layer(spec: CacheSpec, form: SideFormat, block_size: int) -> StoredLayer:
    """Return what is stored of a full layer in a quantized form."""
    heads = {"num_kv_heads": spec.num_kv_heads, "head_dim_k": spec.head_dim_k, "head_dim_v": spec.head_dim_v}
    return StoredLayer(
        ResidualSpec(**heads, dtype=spec.dtype, block_size=block_size),
        QuantizedSpec(
            **heads, dtype="U8", key_code=Code(form.key), value_code=Code(form.value), block_size=block_size
        ),
    )
