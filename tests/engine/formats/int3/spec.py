"""Keys and values of 3 bits: each token's head is a record of codes, a scale and a minimum."""

from dataclasses import dataclass
from typing import ClassVar

from kvchat.engine.api.cache_format import SideFormat
from kvchat.engine.formats.spec import CacheSpec, StoredLayer

BITS = 3
METADATA_BYTES = 8
"""A scale and a minimum, float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Int3Spec(CacheSpec):
    """A layer whose tokens are packed one by one, so that the last block of a sequence is as all others."""

    kind: ClassVar[str] = "int3"
    is_exact: ClassVar[bool] = False
    keeps_heads: ClassVar[bool] = False

    @property
    def token_bytes(self) -> int:
        return self.num_kv_heads * (record_bytes(self.head_dim_k) + record_bytes(self.head_dim_v))

    def shapes(self, block_size: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        heads = self.num_kv_heads
        keys, values = record_bytes(self.head_dim_k), record_bytes(self.head_dim_v)
        return (heads, block_size, keys), (heads, block_size, values)


def record_bytes(dim: int) -> int:
    return METADATA_BYTES + -(-dim * BITS // 8)


def int3_layer(spec: CacheSpec, form: SideFormat, block_size: int) -> StoredLayer:
    heads = {"num_kv_heads": spec.num_kv_heads, "head_dim_k": spec.head_dim_k, "head_dim_v": spec.head_dim_v}
    return StoredLayer(Int3Spec(**heads, dtype="U8"))
