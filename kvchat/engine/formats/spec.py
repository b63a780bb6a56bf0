"""Cache specs: what one layer stores per token, and which layers share a spec.

A spec is a frozen value. Everything that differs between kinds of attention is looked up from it: which
blocks a position still needs (`first_visible`), how many bytes a block has, how those bytes are laid out.

Layout of one block of a group: for each layer of the group, in order, its K region `[H_kv, P, D_k]` and then
its V region `[H_kv, P, D_v]`, without padding. The same run of bytes is used in host memory, on disk and in
bundles.

A quantised layer is in two groups: its recent blocks are exact, and a block gets quantised, once, when its
successor is full. Each of the two has pools, tables and names of its own, as any group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvchat.engine.api.ids import GroupId
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord, num_quantized

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSpec:
    """A layer whose queries see every earlier token.

    Args:
        num_kv_heads: key-value heads, H_kv.
        head_dim_k: numbers per key and head, D_k.
        head_dim_v: numbers per value and head, D_v.
        dtype: safetensors name of the stored type (F32, BF16, F16; U8 for packed bytes).
    """

    num_kv_heads: int
    head_dim_k: int
    head_dim_v: int
    dtype: str

    @property
    def kind(self) -> str:
        return "full"

    @property
    def max_visible(self) -> int | None:
        """The most tokens that a query sees, itself included; None: all before it, however many."""
        return None

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return self.num_kv_heads * (self.head_dim_k + self.head_dim_v) * ITEM_BYTES[self.dtype]

    @property
    def has_tail(self) -> bool:
        """Whether tokens have a place here as soon as they are computed, and not only block by block."""
        return True

    @property
    def is_passing(self) -> bool:
        """Whether full blocks are of use only until others replace them, and are stored where a turn ends."""
        return False

    @property
    def stands_alone(self) -> bool:
        """Whether a block is worth something without those before it."""
        return self.max_visible is not None

    @property
    def is_view(self) -> bool:
        """Whether block tables have hidden_ranges behind their beginning."""
        return False

    @property
    def is_pruned(self) -> bool:
        """Whether stretches of a sequence are replaced by what is kept of them."""
        return False

    @property
    def is_shadowed(self) -> bool:
        """Whether steps behind a long prompt choose which tokens they look at."""
        return False

    @property
    def is_remote(self) -> bool:
        """Whether blocks lie in host memory, and a GPU reads of them what it needs."""
        return False

    def shadow_bytes(self, num_tokens: int) -> int:
        """Return the most that the shadow of a conversation takes in one layer, beside its blocks. Pure."""
        return 0

    @property
    def num_spare_blocks(self) -> int:
        """Blocks that a sequence needs for a moment beside those of its tokens."""
        return 0

    @property
    def num_sink_blocks(self) -> int:
        """Blocks at the beginning that every query sees, wherever what it sees begins again."""
        return 0

    def first_visible(self, position: int) -> int:
        """Return the first position that a query at `position` sees, sinks aside."""
        return 0

    def num_blocks(self, num_tokens: int, block_size: int) -> int:
        """Return how many blocks hold something of the first `num_tokens` tokens, windows aside."""
        return -(-num_tokens // block_size)

    def layer_bytes(self, block_size: int) -> int:
        """Return the bytes of one block in one layer."""
        return self.token_bytes * block_size

    def shapes(self, block_size: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return the shapes of a block's keys and values: heads, slots, numbers of a slot."""
        heads = self.num_kv_heads
        return (heads, block_size, self.head_dim_k), (heads, block_size, self.head_dim_v)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualSpec(FullSpec):
    """The exact part of a quantised layer: a query sees its own block here and the one before.

    Args:
        block_size: tokens of a block.
    """

    block_size: int

    @property
    def exact(self) -> FullSpec:
        """The same layer as it is where all its blocks are exact."""
        heads = {"head_dim_k": self.head_dim_k, "head_dim_v": self.head_dim_v}
        return FullSpec(num_kv_heads=self.num_kv_heads, **heads, dtype=self.dtype)

    @property
    def kind(self) -> str:
        return "recent"

    @property
    def max_visible(self) -> int | None:
        return 2 * self.block_size

    @property
    def is_passing(self) -> bool:
        return True

    def first_visible(self, position: int) -> int:
        return num_quantized(position, self.block_size) * self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedSpec(FullSpec):
    """The quantised part of a layer: all blocks before the recent ones, each written once, as a whole.

    A slot of a block is one head's record of the whole block, so there is one for each head.

    Args:
        key_code: what a number of a key becomes.
        value_code: what a number of a value becomes.
        block_size: tokens of a block.
    """

    key_code: Code
    value_code: Code
    block_size: int

    @property
    def kind(self) -> str:
        if self.key_code is self.value_code:
            return self.key_code.value
        return f"k={self.key_code.value},v={self.value_code.value}"

    @property
    def has_tail(self) -> bool:
        return False

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingSpec(FullSpec):
    """A layer whose queries see themselves and the `window_len - 1` tokens before."""

    window_len: int

    @property
    def kind(self) -> str:
        return "sliding"

    @property
    def max_visible(self) -> int | None:
        return self.window_len

    def first_visible(self, position: int) -> int:
        return max(0, position - self.window_len + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedSpec(FullSpec):
    """A layer whose queries see themselves and what came before in their own chunk of `chunk_len` tokens."""

    chunk_len: int

    @property
    def kind(self) -> str:
        return "chunked"

    @property
    def max_visible(self) -> int | None:
        return self.chunk_len

    def first_visible(self, position: int) -> int:
        return position - position % self.chunk_len


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec(FullSpec):
    """A layer that keeps one latent and one rope key per token for all its heads (MLA).

    Both stand in one row of `head_dim_k` numbers, the latent first; there are no values beside it. Queries
    see every earlier token.

    Args:
        rank: numbers of the latent.
        rope_dim: numbers of the rope key.
        rope_layout: in which order they stand; keys of one order mean nothing in another.
    """

    rank: int
    rope_dim: int
    rope_layout: str

    @property
    def kind(self) -> str:
        return "latent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8LatentSpec(LatentSpec):
    """A latent layer whose rows are packed into 8-bit records of `head_dim_k` bytes; see `Fp8Record`.

    A record follows from its own token alone, so the last block of a sequence is packed like all others.
    """

    @property
    def kind(self) -> str:
        return "latent fp8"

    @property
    def record(self) -> Fp8Record:
        return Fp8Record(self.rank, self.rope_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers with the same spec; they share block tables and a pool.

    Args:
        layers: the layers that store keys and values.
        borrowers: layers that attend to what another layer has stored, as (layer, that layer); they keep
            nothing themselves.
        quantized_from: of quantised layers: the group whose blocks are quantised into those of this one.
    """

    id: GroupId
    spec: FullSpec
    layers: tuple[int, ...]
    borrowers: tuple[tuple[int, int], ...] = ()
    quantized_from: GroupId | None = None

    def block_bytes(self, block_size: int) -> int:
        return self.spec.layer_bytes(block_size) * len(self.layers)

    def num_blocks(self, num_tokens: int, block_size: int) -> int:
        """Return how many entries a table has here once `num_tokens` tokens are computed."""
        return self.spec.num_blocks(num_tokens, block_size)


def group_layers(
    specs: Mapping[int, FullSpec], borrowed: Mapping[int, int] | None = None
) -> tuple[Group, ...]:
    """Return the groups of a model, in the order of their first layers.

    The order is a function of the model alone, so a group's id means the same in every process.

    Args:
        specs: what each layer keeps, by layer index.
        borrowed: layers without a spec of their own, each with the layer whose keys and values it reads.
    """
    borrowers = sorted((borrowed or {}).items())
    members: dict[FullSpec, list[int]] = {}
    for layer in sorted(specs):
        members.setdefault(specs[layer], []).append(layer)
    return tuple(
        Group(
            id=GroupId(index),
            spec=spec,
            layers=tuple(layers),
            borrowers=tuple((layer, lender) for layer, lender in borrowers if lender in layers),
        )
        for index, (spec, layers) in enumerate(members.items())
    )


def exact_twins(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return the groups that tokens are written to, as they are where no block becomes quantised."""
    return tuple(
        replace(group, spec=group.spec.exact) if isinstance(group.spec, ResidualSpec) else group
        for group in groups
        if group.quantized_from is None
    )
