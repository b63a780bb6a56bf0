"""Cache specs: what one layer stores, and which layers share a spec.

A spec is a frozen value without torch; each kind has a folder beside this file. What differs between kinds is
looked up from it: which blocks a position still needs (`visible_blocks`), how many bytes a block has and how
they are laid out, how long a block is of use.

Layout of one block of a group: for each layer of the group, in order, its K region `[H_kv, P, D_k]` and then
its V region `[H_kv, P, D_v]`, without padding. The same run of bytes is used in host memory, on disk and in
bundles.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import ClassVar

from kvchat.engine.api.ids import GroupId
from kvchat.engine.kernels.attention_shapes import AttentionSizes, KernelSizes

BlockRange = tuple[int, int]
"""Blocks [start, end) of a sequence, by number."""
ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "I64": 8}


class Lifetime(Enum):
    """How long a block is of use to its sequence."""

    SEQUENCE = auto()
    """As long as the sequence."""
    WINDOW = auto()
    """Until no later query sees it."""
    SUPERSEDED = auto()
    """Until blocks of another group are made of it; it is stored where a turn ends."""
    SNAPSHOT = auto()
    """As long as it is worth its room: it holds all tokens before its position, and serves there alone."""


class Selection(Enum):
    """Which earlier tokens queries see, of those that the model lets them see."""

    ALL = auto()
    SINKS_AND_WINDOW = auto()
    """The first blocks and the last ones."""
    PRUNED = auto()
    """What is kept of each long prompt once it has been read."""
    EACH_STEP = auto()
    """What each step behind a long prompt chooses."""

    @property
    def has_hidden_blocks(self) -> bool:
        """Whether block tables have hidden ranges behind their beginning."""
        return self in (Selection.SINKS_AND_WINDOW, Selection.PRUNED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec(ABC):
    """What a layer stores; as it stands, keys and values of every token, exact, for all later queries.

    Args:
        num_kv_heads: key-value heads, H_kv.
        head_dim_k: numbers per key and head, D_k.
        head_dim_v: numbers per value and head, D_v.
        dtype: safetensors name of the stored type (F32, BF16, F16; U8 for packed bytes).
    """

    is_exact: ClassVar[bool] = True
    """Whether stored numbers are those that were computed."""
    keeps_heads: ClassVar[bool] = True
    """Whether keys and values of each head are stored as they were computed."""
    selection: ClassVar[Selection] = Selection.ALL

    num_kv_heads: int
    head_dim_k: int
    head_dim_v: int
    dtype: str

    @property
    @abstractmethod
    def kind(self) -> str:
        """The name that people read."""

    @property
    def window(self) -> int | None:
        """Tokens that the model lets a query see, itself included; None: all before it."""
        return None

    @property
    def chunk(self) -> int | None:
        """Tokens of the chunks before which the model lets queries see nothing; None: there are none."""
        return None

    @property
    def max_visible(self) -> int | None:
        """The most tokens that a query sees, itself included; None: all before it, however many."""
        return None

    @property
    def exact(self) -> "CacheSpec":
        """What the layer stores where nothing is made of its blocks."""
        return self

    @property
    def may_be_cut(self) -> bool:
        """Whether tokens give the same bits however they are divided into steps."""
        return True

    @property
    def in_float32(self) -> "CacheSpec":
        """The same for a layer that computes in float32."""
        return replace(self, dtype="F32")

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return self.num_kv_heads * (self.head_dim_k + self.head_dim_v) * ITEM_BYTES[self.dtype]

    @property
    def lifetime(self) -> Lifetime:
        return Lifetime.SEQUENCE if self.max_visible is None else Lifetime.WINDOW

    @property
    def stands_alone(self) -> bool:
        """Whether a block is worth something without those before it."""
        return self.lifetime is not Lifetime.SEQUENCE

    def beside_bytes(self, num_tokens: int, *, in_host_memory: bool) -> int:
        """Return the most that a conversation takes in one layer beside its blocks. Pure.

        Args:
            in_host_memory: see `Group`.
        """
        return 0

    @property
    def num_spare_blocks(self) -> int:
        """Blocks that a sequence needs for a moment beside those of its tokens."""
        return 0

    def first_visible(self, position: int) -> int:
        """Return the position from which on a query at `position` sees all up to itself."""
        return 0

    def visible_blocks(self, position: int, block_size: int) -> tuple[BlockRange, ...]:
        """Return the blocks that a query at `position` sees, ascending, its own last, as far as its position
        alone decides.
        """
        return ((self.first_visible(position) // block_size, position // block_size + 1),)

    def hidden_blocks(self, position: int, block_size: int) -> tuple[BlockRange, ...]:
        """Return the blocks before a query at `position` that it does not see, ascending."""
        seen = self.visible_blocks(position, block_size)
        before = (0, *(end for _, end in seen))
        return tuple((end, start) for end, (start, _) in zip(before, seen, strict=False) if start > end)

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

    def fingerprint_fields(self) -> dict[str, str]:
        """Return what gives a block's bytes their meaning, besides sizes and types."""
        return {}

    def kernel_sizes(self, num_heads: int, nope_dim: int | None, block_size: int) -> KernelSizes | None:
        """Return the sizes in which attention kernels are called for this layer; None: another group's.

        Args:
            num_heads: query heads of the model.
            nope_dim: numbers of a latent layer's head that are not rotated.
        """
        return self.attention_sizes(num_heads, block_size)

    def attention_sizes(self, num_heads: int, block_size: int) -> AttentionSizes:
        """Return the sizes of attention over exact keys and values of this layer. Pure."""
        return AttentionSizes(
            num_heads=heads_for(num_heads, self.num_kv_heads),
            num_kv_heads=self.num_kv_heads,
            head_dim_k=self.head_dim_k,
            head_dim_v=self.head_dim_v,
            block_size=block_size,
            window=self.window,
            chunk=self.chunk,
        )


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """What is stored of one layer.

    Args:
        spec: what its tokens are written to.
        derived: what is made of its full blocks, in a group of its own; None: they stay as they are.
    """

    spec: CacheSpec
    derived: CacheSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers with the same spec; they share block tables and a pool.

    Args:
        layers: the layers that store keys and values.
        borrowers: layers that attend to what another layer has stored, as (layer, that layer); they keep
            nothing themselves.
        source: the group whose full blocks are turned into those of this one; None: tokens are written here.
        in_host_memory: blocks lie in host memory, and a GPU reads of them what it needs.
    """

    id: GroupId
    spec: CacheSpec
    layers: tuple[int, ...]
    borrowers: tuple[tuple[int, int], ...] = ()
    source: GroupId | None = None
    in_host_memory: bool = False

    @property
    def is_state(self) -> bool:
        """Whether a block is a snapshot of all tokens instead of a part of them."""
        return self.spec.lifetime is Lifetime.SNAPSHOT

    def block_bytes(self, block_size: int) -> int:
        return self.spec.layer_bytes(block_size) * len(self.layers)

    def beside_bytes(self, num_tokens: int) -> int:
        """Return the most that a conversation takes here beside its blocks."""
        return len(self.layers) * self.spec.beside_bytes(num_tokens, in_host_memory=self.in_host_memory)

    def num_blocks(self, num_tokens: int, block_size: int) -> int:
        """Return how many entries a table has here once `num_tokens` tokens are computed."""
        return self.spec.num_blocks(num_tokens, block_size)


def group_layers(
    specs: Mapping[int, CacheSpec],
    borrowed: Mapping[int, int] | None = None,
    states: Mapping[int, CacheSpec] | None = None,
) -> tuple[Group, ...]:
    """Return the groups of a model, in the order of their first layers; those with states last.

    The order is a function of the model alone, so a group's id means the same in every process.

    Args:
        specs: what each layer keeps, by layer index.
        borrowed: layers without a spec of their own, each with the layer whose keys and values it reads.
        states: what layers keep beside that, or instead.
    """
    borrowers = sorted((borrowed or {}).items())
    members: dict[CacheSpec, list[int]] = {}
    for layer in sorted(specs):
        members.setdefault(specs[layer], []).append(layer)
    groups = tuple(
        Group(
            id=GroupId(index),
            spec=spec,
            layers=tuple(layers),
            borrowers=tuple((layer, lender) for layer, lender in borrowers if lender in layers),
        )
        for index, (spec, layers) in enumerate(members.items())
    )
    if not states:
        return groups
    return groups + tuple(
        replace(group, id=GroupId(len(groups) + group.id)) for group in group_layers(states)
    )


def heads_for(num_heads: int, num_kv_heads: int) -> int:
    """Return query heads, as many for each of a layer's key-value heads."""
    return num_kv_heads * max(1, num_heads // num_kv_heads)
