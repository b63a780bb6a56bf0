"""Decoder layers for the tokens of a step: the definition.

Dimensions: T rows, H query heads, H_kv key-value heads, D head size.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.causal_conv.reference import causal_conv
from kvchat.engine.kernels.decoder_layers.args import (
    Activation,
    DecoderLayer,
    Experts,
    FusedLayerPool,
    FusedStatePool,
    GatedDelta,
    Linear,
    Mixer,
    Mlp,
    Norm,
    RopeTable,
    SelectiveScan,
    ShortConvolution,
    StateRows,
    StepRows,
    TokenMixing,
)
from kvchat.engine.kernels.gated_delta.reference import gated_delta
from kvchat.engine.kernels.linear.widened_layout import InterleavedWeight
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.paged_attention.reference import paged_attention
from kvchat.engine.kernels.quantized_attention.reference import quantized_attention
from kvchat.engine.kernels.quantized_linear import QuantizedWeight, dequantize
from kvchat.engine.kernels.rope_and_store.reference import turned
from kvchat.engine.kernels.selective_scan.reference import selective_scan
from kvchat.engine.kernels.store_kv.reference import store_kv

BYTE_BLOCK = 32
"""Inputs of a row that share a scale where they are rounded to 8 bits."""
_Multiply = Callable[[Tensor, Linear], Tensor]


def decoder_layers(
    hidden: Tensor,
    layers: Sequence[DecoderLayer],
    pools: Sequence[FusedLayerPool | FusedStatePool | None],
    ropes: Sequence[RopeTable],
    step: StepRows,
    *,
    is_rounded: bool = False,
) -> Tensor:
    """Return what the last layer gives, [T, hidden] float32, computed in float32 throughout, but for what
    goes into a short convolution: that is rounded to the dtype in which it is kept.

    Args:
        hidden: what the first layer gets [T, hidden], float32.
        is_rounded: whether products are those of inputs rounded to bfloat16 with weights of bfloat16, and of
            inputs rounded to 8 bits with quantized weights. What queries, keys and values share is not
            rounded if their weights are of both kinds.

    Effect:
        Writes keys and values of every row into the pools, rounded to their dtype, before any is read, and
        the states behind every run of rows.
    """
    multiply = _linear_rounded if is_rounded else _linear
    for layer, pool in zip(layers, pools, strict=True):
        mixing, mlp = layer.mixing, layer.mlp
        if mixing is not None:
            inputs = _inputs(norm_of(hidden, mixing.before), mixing, multiply)
            if isinstance(pool, FusedStatePool):
                mixed = _from_states(inputs, mixing.mixer, pool, step.states[pool.group])
            else:
                assert pool is not None
                mixed = _attend(inputs, layer, pool, ropes, step)
            hidden = hidden + layer.residual * norm_of(multiply(mixed, mixing.output), mixing.after)
        added = None
        if mlp is not None:
            inner = inner_of(norm_of(hidden, mlp.before), mlp, multiply)
            added = norm_of(multiply(inner, mlp.down), mlp.after)
        if layer.experts is not None:
            added = _beside_experts(norm_of(hidden, layer.experts.before), layer.experts, added)
        if added is not None:
            hidden = hidden + layer.residual * added
    return hidden


def _beside_experts(x: Tensor, experts: Experts, added: Tensor | None) -> Tensor:
    """Return what experts make of rows `x`, and what an MLP beside them adds."""
    given = torch.zeros_like(x) if added is None else added
    if experts.shared_gate is not None:
        given = given * _linear(x, experts.shared_gate).sigmoid()
    shares, chosen = _linear(x, experts.router).softmax(-1).topk(experts.num_chosen)
    if experts.is_normalized:
        shares = shares / shares.sum(-1, keepdim=True)
    gate, up = torch.einsum("tk,tcnk->tcn", x, experts.gate_up.float()[chosen]).chunk(2, dim=-1)
    inner = activated(gate, experts.activation) * up
    return given + torch.einsum("tci,tcni,tc->tn", inner, experts.down.float()[chosen], shares)


def logits(hidden: Tensor, last_norm: Norm, head: Linear, step: StepRows) -> Tensor:
    """Return the logits [R, V] of the sampling rows, float32."""
    return _linear(norm_of(hidden[step.sampling], last_norm), head)


def norm_of(x: Tensor, norm: Norm | None) -> Tensor:
    """Return rows [..., N] normed in float32, in their own dtype."""
    if norm is None:
        return x
    numbers, weight = x.float(), norm.weight.float()
    by_root = numbers * torch.rsqrt(numbers.square().mean(-1, keepdim=True) + norm.epsilon)
    return (by_root * (weight + 1.0 if norm.adds_one else weight)).to(x.dtype)


def _linear(x: Tensor, linear: Linear) -> Tensor:
    bias = None if linear.bias is None else linear.bias.float()
    return functional.linear(x, dense(linear.weight), bias)


def _linear_rounded(x: Tensor, linear: Linear) -> Tensor:
    is_quantized = isinstance(linear.weight, QuantizedWeight)
    return _linear(rounded_to_bytes(x) if is_quantized else x.bfloat16().float(), linear)


def rounded_to_bytes(x: Tensor) -> Tensor:
    """Return rows [T, K] rounded to whole numbers of 8 bits, with a scale for every 32 inputs: float32."""
    blocks = functional.pad(x, (0, -x.shape[1] % BYTE_BLOCK)).unflatten(1, (-1, BYTE_BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(2.0**-95)
    return ((blocks * (127 / largest)).round() * (largest / 127)).flatten(1)[:, : x.shape[1]]


def dense(weight: Tensor | InterleavedWeight | QuantizedWeight) -> Tensor:
    """Return a weight's numbers in float32."""
    if isinstance(weight, QuantizedWeight):
        return dequantize(weight)
    if isinstance(weight, InterleavedWeight) or weight.is_mkldnn:
        weight = weight.to_dense()
    return weight.float()


def _inputs(x: Tensor, mixing: TokenMixing, multiply: _Multiply) -> Sequence[Tensor]:
    linears = mixing.inputs
    is_mixed = len({isinstance(linear.weight, QuantizedWeight) for linear in linears}) > 1
    given = [(_linear if is_mixed else multiply)(x, linear) for linear in linears]
    if mixing.places is None:
        return given
    mixer = mixing.mixer
    assert isinstance(mixer, GatedDelta)
    in_order = torch.empty(len(x), len(mixing.places))
    in_order[:, mixing.places] = torch.cat(given, dim=1)
    return in_order.split(mixer.num_inputs, dim=1)


def _from_states(inputs: Sequence[Tensor], mixer: Mixer, pool: FusedStatePool, rows: StateRows) -> Tensor:
    """Return what comes out of a mixer, run by run; writes the state behind each."""
    mixed: list[Tensor] = []
    read = -1
    for first, begin, end, before, behind in rows.runs.tolist():
        read = before if begin == first else read
        mixed.append(_from_state([one[begin:end] for one in inputs], mixer, pool, read, behind))
        read = behind
    return torch.cat(mixed)


def _from_state(
    inputs: Sequence[Tensor], mixer: Mixer, pool: FusedStatePool, read: int, write: int
) -> Tensor:
    if isinstance(mixer, ShortConvolution):
        b, c, x = inputs[0].chunk(3, dim=-1)
        return c * _convolved(b * x, mixer, pool, read, write)
    if isinstance(mixer, SelectiveScan):
        return _scanned(inputs[0], mixer, pool, read, write)
    assert isinstance(mixer, GatedDelta)
    channels, z, b, a = inputs
    channels = functional.silu(_convolved(channels, mixer.conv, pool, read, write))
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_heads * mixer.value_dim
    query, key, value = (
        part.unflatten(1, (heads, -1))[None]
        for part, heads in zip(
            channels.split([keys, keys, values], dim=-1),
            (mixer.num_key_heads, mixer.num_key_heads, mixer.num_heads),
            strict=True,
        )
    )
    decay = -mixer.decay.float().exp() * functional.softplus(a + mixer.step_bias.float())
    assert pool.states is not None
    state = None if read < 0 else pool.states[read][None]
    rates = decay[None], b.sigmoid()[None]
    out, pool.states[write : write + 1] = gated_delta(query, key, value, *rates, state, is_normal=True)
    gates = z.unflatten(1, (mixer.num_heads, mixer.value_dim))
    return (norm_of(out[0], mixer.norm) * functional.silu(gates)).flatten(1)


def _scanned(inputs: Tensor, mixer: SelectiveScan, pool: FusedStatePool, read: int, write: int) -> Tensor:
    values, keys = mixer.num_heads * mixer.value_dim, mixer.num_groups * mixer.key_dim
    z, channels, steps = inputs.split([values, values + 2 * keys, mixer.num_heads], dim=-1)
    channels = functional.silu(_convolved(channels, mixer.conv, pool, read, write))
    x, b, c = channels.split([values, keys, keys], dim=-1)
    x = x.unflatten(1, (mixer.num_heads, -1))
    b, c = (one.unflatten(1, (mixer.num_groups, -1))[None] for one in (b, c))
    steps = functional.softplus(steps + mixer.step_bias.float())
    if read < 0 or len(steps) > 1:
        steps = steps.clamp_min(mixer.least_step)
    assert pool.states is not None
    state = None if read < 0 else pool.states[read][None]
    decay = -mixer.decay.float().exp()
    out, pool.states[write : write + 1] = selective_scan(x[None], steps[None], decay, b, c, mixer.skip, state)
    gated = out[0].flatten(1) * functional.silu(z)
    groups = gated.unflatten(1, (mixer.num_groups, -1))
    by_root = torch.rsqrt(groups.square().mean(-1, keepdim=True) + mixer.norm.epsilon)
    return (groups * by_root).flatten(1) * mixer.norm.weight.float()


def _convolved(x: Tensor, conv: ShortConvolution, pool: FusedStatePool, read: int, write: int) -> Tensor:
    kept = torch.zeros_like(pool.inputs[0]) if read < 0 else pool.inputs[read]
    x = x.to(pool.inputs.dtype)
    pool.inputs[write] = torch.cat([kept, x.mT], dim=1)[:, -kept.shape[1] :]
    return causal_conv(x.float()[None], conv.taps, conv.bias, kept.float()[None], is_activated=False)[0]


def _attend(
    inputs: Sequence[Tensor],
    layer: DecoderLayer,
    pool: FusedLayerPool,
    ropes: Sequence[RopeTable],
    step: StepRows,
) -> Tensor:
    heads, rows = layer.heads, step.groups[pool.group]
    query, key, value = inputs
    query = query.unflatten(1, (heads.num_heads, -1))
    query, gates = query[..., : heads.dim], query[..., heads.dim :]
    key, value = (part.unflatten(1, (heads.num_kv_heads, heads.dim)) for part in (key, value))
    query, key = norm_of(query, heads.query_norm), norm_of(key, heads.key_norm)
    if layer.rope is not None:
        rope = ropes[layer.rope]
        cosines, sines = rope.cosines[step.positions], rope.sines[step.positions]
        query, key = turned(query, cosines, sines), turned(key, cosines, sines)
    store_kv(key.to(pool.keys.dtype), value.to(pool.values.dtype), pool.keys, pool.values, rows.slots)
    args = heads.args(rows.spans)
    if pool.quantized is None:
        attended = paged_attention(query, pool.keys, pool.values, args)
    else:
        pools = KVPair(pool.keys, pool.values)
        attended = quantized_attention(query, pools, pool.quantized, args, step.old[pool.old])
    if heads.is_gated:
        attended = attended * gates.sigmoid()
    return attended.flatten(1)


def inner_of(x: Tensor, mlp: Mlp, multiply: Callable[[Tensor, Linear], Tensor]) -> Tensor:
    """Return what an MLP's `down` is given."""
    gate = multiply(x, mlp.gate)
    if mlp.up is not None:
        return activated(gate, mlp.activation) * multiply(x, mlp.up)
    if gate.shape[1] == mlp.down.num_inputs:
        return activated(gate, mlp.activation)
    gate, up = gate.chunk(2, dim=-1)
    return activated(gate, mlp.activation) * up


def activated(x: Tensor, activation: Activation) -> Tensor:
    match activation:
        case Activation.SILU:
            return functional.silu(x)
        case Activation.GELU_TANH:
            return functional.gelu(x, approximate="tanh")
        case Activation.RELU_SQUARED:
            return functional.relu(x).square()
