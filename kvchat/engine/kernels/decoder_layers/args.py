"""Arguments of fused decoder layers: their weights, and the rows of one step.

Dimensions: T rows, H query heads, H_kv key-value heads, D head size, K inputs, N outputs.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from kvchat.engine.kernels.linear.widened_layout import InterleavedWeight
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool
from kvchat.engine.kernels.quantized_linear import QuantizedWeight


class Activation(StrEnum):
    """What the gate of an MLP goes through."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """x / sqrt(mean(x ** 2) + epsilon) * weight, or * (1 + weight).

    Args:
        weight: [N], of any floating dtype.
    """

    weight: Tensor
    epsilon: float
    adds_one: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """x @ weight.T + bias.

    Args:
        weight: [N, K], as it is, packed, paired, or quantized.
        bias: [N], or None.
    """

    weight: Tensor | InterleavedWeight | QuantizedWeight
    bias: Tensor | None

    @property
    def num_inputs(self) -> int:
        return self.weight.shape[1]

    @property
    def num_outputs(self) -> int:
        return self.weight.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """How a layer attends.

    Args:
        scale: factor of the query-key products.
        window: tokens a query sees, itself included; None: all.
        chunk: a query at p sees [p - p % chunk, p]; None: no such bound.
        softcap: bound of the scores, or None.
        sinks: one more logit per query head [H], or None.
        query_norm: of each query head, before its rotary embedding; None: there is none.
        key_norm: of each key head.
    """

    num_heads: int
    num_kv_heads: int
    dim: int
    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Projections:
    """The products of a layer."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    gate: Linear
    up: Linear
    down: Linear

    @property
    def all(self) -> tuple[Linear, ...]:
        return self.query, self.key, self.value, self.output, self.gate, self.up, self.down


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """h += after_attention(output(attention(before_attention(h)))), then the same with the gated MLP.

    Args:
        after_attention: None: the result is added as it is.
        after_mlp: the same.
        rope: number of the rotary embedding; None: queries and keys are not turned.
    """

    heads: Heads
    projections: Projections
    activation: Activation
    before_attention: Norm
    before_mlp: Norm
    after_attention: Norm | None = None
    after_mlp: Norm | None = None
    rope: int | None = 0

    @property
    def kind(self) -> Hashable:
        """The same for layers that compute the same with other numbers."""
        heads = self.heads
        norms = (
            *(self.before_attention, self.before_mlp, self.after_attention, self.after_mlp),
            *(heads.query_norm, heads.key_norm),
        )
        sizes = tuple((linear.num_outputs, linear.bias is not None) for linear in self.projections.all)
        reach = (heads.window, heads.chunk, heads.scale, heads.softcap, heads.sinks is not None, self.rope)
        return self.activation, sizes, reach, tuple(norm and (norm.epsilon, norm.adds_one) for norm in norms)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayerPool:
    """Where a layer's keys [N, H_kv, P, D] and values [N, H_kv, P, D] lie, and in which group.

    Args:
        quantized: older blocks, where they are quantized; None: all are exact.
        old: number of the group that has those.
    """

    keys: Tensor
    values: Tensor
    group: int
    quantized: QuantizedPool | None = None
    old: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeTable:
    """Cosines and sines of positions [0, n), [n, D_rope], float32.

    The first D_rope numbers of a head are turned, number i together with number i + D_rope / 2.
    """

    cosines: Tensor
    sines: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRows:
    """Where the rows of a step lie in one group.

    Args:
        slots: slot of every row [T], int64.
        spans: the sequences of the step.
        table: the same as the native kernel reads them [B, 5], int64.
    """

    slots: Tensor
    spans: Sequence[SequenceSpan]
    table: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The rows of one step.

    Args:
        positions: of each row in its sequence [T], int64.
        groups: by number.
        sampling: rows whose logits are wanted [R], int64.
        old: of each group of quantized blocks, by number: those of each sequence from the first one on, as
            many as its last row sees [n], int64. They were quantized before the step.
    """

    positions: Tensor
    groups: Sequence[GroupRows]
    sampling: Tensor
    old: Sequence[Sequence[Tensor]] = ()
