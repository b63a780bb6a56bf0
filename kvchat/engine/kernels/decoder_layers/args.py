"""Arguments of fused decoder layers: their weights, and the rows of one step.

Dimensions: T rows, H query heads, H_kv key-value heads, D head size, K inputs, N outputs; of layers with a
state C channels, L taps, P kept inputs, G key heads or groups, K and V numbers of a key and of a value; of
experts E of them, I inner numbers of each.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any

from torch import Tensor

from kvchat.engine.kernels.linear.widened_layout import InterleavedWeight
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, Prepared, SequenceSpan
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool
from kvchat.engine.kernels.quantized_linear import QuantizedWeight


class Activation(StrEnum):
    """What the gate of an MLP goes through."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    RELU_SQUARED = "relu_squared"


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
        is_gated: whether each query head has a gate [D] behind it, whose sigmoid multiplies what it reads.
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
    is_gated: bool = False

    def args(self, spans: Sequence[SequenceSpan], prepared: Prepared | None = None) -> AttentionArgs:
        """Return how its queries see the sequences of a step."""
        return AttentionArgs(
            spans, self.scale, self.window, self.chunk, self.softcap, self.sinks, prepared=prepared
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution:
    """A layer's inputs are [b | c | x]: it gives c * conv(b * x), with the last L inputs of each channel.

    Args:
        taps: [C, L], of any floating dtype.
        bias: [C], or None.
    """

    taps: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """A layer's inputs are queries, keys and values, gates z, and of each head b and a.

    The first go through a convolution and SiLU, and then through the gated delta rule with beta = sigmoid(b)
    and decay -exp(decay) * softplus(a + step_bias); of what comes out, each head is normed and multiplied by
    silu(z).

    Args:
        conv: of 2 G K + H V channels.
        decay: [H], of any floating dtype.
        step_bias: [H].
        norm: of each head [V].
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    conv: ShortConvolution
    decay: Tensor
    step_bias: Tensor
    norm: Norm

    @property
    def num_inputs(self) -> tuple[int, ...]:
        """How many numbers it gets of each kind, in order."""
        return len(self.conv.taps), self.num_heads * self.value_dim, self.num_heads, self.num_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveScan:
    """A layer's inputs are gates z, then values, keys and queries of the scan, and of each head a step.

    The values x, keys b and queries c go through a convolution and SiLU, and then through the selective scan
    with steps softplus(step + step_bias), decays -exp(decay) and D = skip; what comes out is multiplied by
    silu(z), and of each group normed.

    Args:
        num_groups: of heads that share keys and queries.
        key_dim: N of the scan.
        value_dim: P of the scan.
        conv: of H V + 2 G K channels.
        decay: [H], of any floating dtype.
        step_bias, skip: the same.
        norm: of all heads [H V]; the mean is a group's.
        least_step: steps are no shorter, but for a token on its own that goes on from a state.
    """

    num_heads: int
    num_groups: int
    key_dim: int
    value_dim: int
    conv: ShortConvolution
    decay: Tensor
    step_bias: Tensor
    skip: Tensor
    norm: Norm
    least_step: float = 0.0


Mixer = Heads | ShortConvolution | GatedDelta | SelectiveScan
"""What lets tokens see those before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMixing:
    """after(output(mixer(inputs(before(h))))).

    Args:
        inputs: what the mixer gets: of attention queries, keys and values.
        output: of what it gives.
        after: None: the result is added as it is.
        places: where the mixer finds each number that the inputs give, one after the other, int64; None:
            they are in its order.
    """

    before: Norm
    inputs: tuple[Linear, ...]
    mixer: Mixer
    output: Linear
    after: Norm | None = None
    places: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """after(down(activation(gate(x)) * up(x))) with x = before(h), or without `up` in it.

    Args:
        up: None: `gate` gives both, gates first; or only what `down` takes, and nothing is gated.
        after: None: the result is added as it is.
    """

    before: Norm
    gate: Linear
    up: Linear | None
    down: Linear
    activation: Activation
    after: Norm | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self.gate, self.down) if self.up is None else (self.gate, self.up, self.down)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Sum of p * down(activation(gate(x)) * up(x)) of the experts with the largest p = softmax(router(x)).

    Args:
        before: x = before(h), the same as that of an MLP beside them.
        gate_up: gates, then ups [E, 2 I, K], of any floating dtype.
        down: [E, N, I].
        num_chosen: of E.
        is_normalized: whether the p of those that are chosen are divided by their sum.
        shared_gate: its sigmoid multiplies what an MLP beside them gives; None: nothing does.
    """

    before: Norm
    router: Linear
    gate_up: Tensor
    down: Tensor
    activation: Activation
    num_chosen: int
    is_normalized: bool
    shared_gate: Linear | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """What every row goes through."""
        return (self.router,) if self.shared_gate is None else (self.router, self.shared_gate)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """h += residual * mixing(h); h += residual * (mlp(h) + experts(h)).

    Args:
        mixing, mlp, experts: None: it has none.
        rope: number of the rotary embedding; None: queries and keys are not turned.
        residual: factor of what is added.
    """

    mixing: TokenMixing | None
    mlp: Mlp | None
    experts: Experts | None = None
    rope: int | None = 0
    residual: float = 1.0

    @property
    def mixer(self) -> Mixer | None:
        return None if self.mixing is None else self.mixing.mixer

    @property
    def heads(self) -> Heads:
        """How a layer attends that does."""
        assert isinstance(self.mixer, Heads)
        return self.mixer

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All products, in order."""
        of_mixing = () if self.mixing is None else (*self.mixing.inputs, self.mixing.output)
        of_mlp = () if self.mlp is None else self.mlp.linears
        return of_mixing + of_mlp + (() if self.experts is None else self.experts.linears)

    @property
    def kind(self) -> Hashable:
        """The same for layers that compute the same with other numbers."""
        return _kind_of(self)


def _kind_of(part: Any) -> Hashable:
    """Return a layer, or a part of one, with the sizes of its tensors in their place."""
    if isinstance(part, Tensor | InterleavedWeight | QuantizedWeight):
        return tuple(part.shape)
    if isinstance(part, tuple):
        return tuple(map(_kind_of, part))
    if is_dataclass(part):
        return type(part).__name__, *map(_kind_of, _fields_of(part))
    kind: Hashable = part
    return kind


def tensors_of(part: Any) -> Iterator[Tensor]:
    """Yield the tensors of a layer, or of a part of one."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple) or is_dataclass(part):
        for one in part if isinstance(part, tuple) else _fields_of(part):
            yield from tensors_of(one)


def _fields_of(part: Any) -> list[Any]:
    return [getattr(part, field.name) for field in fields(part)]


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
class FusedStatePool:
    """Where a layer's states lie, and in which group of those.

    Args:
        inputs: the last ones of its convolution [N, C, P], of the model's dtype.
        states: of the gated delta rule [N, H, K, V], or of the selective scan [N, H, V, K], float32; None: it
            has none.
    """

    inputs: Tensor
    states: Tensor | None
    group: int


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
class StateRows:
    """How the rows of a step change the states of one group: runs of rows, sequence after sequence.

    Args:
        runs: of each the first row of its sequence, its own first row, the one behind its last, the slot of
            the state before its sequence (-1: there is none) and that of the state behind the run [R, 5],
            int64.
        offsets: number of each sequence's first run, and of all runs [B + 1], int64.
    """

    runs: Tensor
    offsets: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The rows of one step.

    Args:
        positions: of each row in its sequence [T], int64.
        groups: by number.
        sampling: rows whose logits are wanted [R], int64.
        old: of each group of quantized blocks, by number: those of each sequence from the first one on, as
            many as its last row sees [n], int64. They were quantized before the step.
        states: of each group of states, by number.
    """

    positions: Tensor
    groups: Sequence[GroupRows]
    sampling: Tensor
    old: Sequence[Sequence[Tensor]] = ()
    states: Sequence[StateRows] = ()
