"""Recurrent state: what a layer keeps of all tokens so far, of the same size behind any of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import lcm, prod
from typing import ClassVar

from kvchat.engine.api.snapshot import STATE_KIND
from kvchat.engine.formats.spec import ITEM_BYTES, BlockRange, CacheSpec, Group, Lifetime

ALIGNMENT = 64
"""Bytes at multiples of which the tensors of a state begin."""


@dataclass(frozen=True, slots=True, order=True)
class StateTensor:
    """One tensor of a layer's state.

    Args:
        kind: `conv`: the last inputs of a convolution; `rec`: what a recurrence has accumulated.
        number: among those of the same kind in the layer.
        dtype: safetensors name.
        shape: of one sequence.
    """

    kind: str
    number: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec(CacheSpec):
    """A layer with a recurrent state. A block is one whole state, behind the last token of a block or tail.

    Args:
        tensors: in the order of their bytes, each at the next multiple of `ALIGNMENT`.
        piece: steps compute a sequence in pieces that end at multiples of so many tokens; 1: any cut gives
            the same bits.
        is_stepwise: whether tokens behind a state are computed one by one, since the layer would ignore it.
        is_stacked: whether sequences with one token each are computed together.
    """

    kind: ClassVar[str] = STATE_KIND
    keeps_heads: ClassVar[bool] = False

    tensors: tuple[StateTensor, ...]
    piece: int
    is_stepwise: bool = False
    is_stacked: bool = True

    @property
    def may_be_cut(self) -> bool:
        return self.piece == 1 and not self.is_stepwise and self.is_stacked

    @property
    def lifetime(self) -> Lifetime:
        return Lifetime.SNAPSHOT

    @property
    def in_float32(self) -> "StateSpec":
        return state_spec([replace(one, dtype="F32") for one in self.tensors], self.piece)

    @property
    def token_bytes(self) -> int:
        return 0

    @property
    def num_spare_blocks(self) -> int:
        return 1  # a step reads one state and writes another

    def visible_blocks(self, position: int, block_size: int) -> tuple[BlockRange, ...]:
        return ()

    def hidden_blocks(self, position: int, block_size: int) -> tuple[BlockRange, ...]:
        return ()

    def num_blocks(self, num_tokens: int, block_size: int) -> int:
        return min(num_tokens, 1)

    def layer_bytes(self, block_size: int) -> int:
        return self.head_dim_k

    def shapes(self, block_size: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        return (1, 1, self.head_dim_k), (1, 1, 0)

    def fingerprint_fields(self) -> dict[str, str]:
        described = ", ".join(f"{one.kind} {one.number} {one.dtype} {one.shape}" for one in self.tensors)
        how = f"in pieces of {self.piece}" + (", then one by one" if self.is_stepwise else "")
        return {"state": f"{described}; {how}"}

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each tensor begins in a layer's bytes."""
        return tuple(accumulate((_padded(one.num_bytes) for one in self.tensors[:-1]), initial=0))


def state_spec(tensors: Sequence[StateTensor], piece: int) -> StateSpec:
    """Return the spec of a layer that keeps these tensors."""
    num_bytes = sum(_padded(one.num_bytes) for one in tensors)
    return StateSpec(
        num_kv_heads=1, head_dim_k=num_bytes, head_dim_v=0, dtype="U8", tensors=tuple(tensors), piece=piece
    )


def piece_of(groups: Sequence[Group]) -> int:
    """Return at which multiple of tokens the steps of a model's sequences end; 0: it has no states."""
    return lcm(*(group.spec.piece for group in groups if isinstance(group.spec, StateSpec))) if groups else 0


def computes_whole_steps(groups: Sequence[Group]) -> bool:
    """Return whether layers compute all tokens that a sequence has in a step in one call."""
    return any(isinstance(group.spec, StateSpec) and not group.spec.is_stacked for group in groups)


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
