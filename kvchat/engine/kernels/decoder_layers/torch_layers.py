"""Decoder layers between two attention calls, in torch operations; any device.

Functions of tensors alone, so that they can be compiled: once for all layers that compute the same. Numbers
are of the weights' dtype; norms compute in float32. Dimensions: T rows, H query heads, H_kv key-value heads,
D head size.
"""

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.decoder_layers.args import Activation, DecoderLayer, Linear, Norm, Projections

Projected = tuple[Tensor, Tensor, Tensor]
"""Queries [T, H, D], keys and values [T, H_kv, D], not turned yet."""


class LayerWeights(NamedTuple):
    """The tensors of a layer's products, weight and bias each, and of its norms."""

    products: tuple[tuple[Tensor, Tensor | None], ...]
    norms: tuple[Tensor | None, ...]


def weights_of(layer: DecoderLayer) -> LayerWeights:
    """Return a layer's tensors.

    Raises:
        ValueError: its weights are no plain tensors.
    """
    products = []
    for linear in layer.projections.all:
        if not isinstance(linear.weight, Tensor) or linear.weight.is_mkldnn:
            raise ValueError("weights that are packed or quantized")
        products.append((linear.weight, linear.bias))
    norms = tuple(norm.weight if norm is not None else None for norm in layer.norms)
    return LayerWeights(tuple(products), norms)


def with_weights(layer: DecoderLayer, weights: LayerWeights) -> DecoderLayer:
    """Return a layer that computes the same with other weights."""
    *others, down = (Linear(weight=weight, bias=bias) for weight, bias in weights.products)
    up = None if layer.projections.up is None else others.pop()
    *inputs, output, gate = others
    norms = [
        None if norm is None or weight is None else replace(norm, weight=weight)
        for norm, weight in zip(layer.norms, weights.norms, strict=True)
    ]
    before_attention, before_mlp = norms[0], norms[1]
    assert before_attention is not None
    assert before_mlp is not None
    return replace(
        layer,
        mixer=replace(layer.heads, query_norm=norms[4], key_norm=norms[5]),
        projections=Projections(inputs=tuple(inputs), output=output, gate=gate, up=up, down=down),
        before_attention=before_attention,
        before_mlp=before_mlp,
        after_attention=norms[2],
        after_mlp=norms[3],
    )


def before_attention(hidden: Tensor, layer: DecoderLayer) -> Projected:
    """Return what a layer projects `hidden` [T, hidden] to."""
    heads, products = layer.heads, layer.projections
    x = norm_of(hidden, layer.before_attention)
    query, key, value = (linear_of(x, one).unflatten(1, (-1, heads.dim)) for one in products.inputs)
    return norm_of(query, heads.query_norm), norm_of(key, heads.key_norm), value


def after_attention(hidden: Tensor, attended: Tensor, layer: DecoderLayer) -> Tensor:
    """Return what a layer makes of `hidden` [T, hidden] and of what it attended to [T, H, D]."""
    products = layer.projections
    added = linear_of(attended.flatten(1), products.output)
    hidden = hidden + layer.residual * norm_of(added, layer.after_attention)
    x = norm_of(hidden, layer.before_mlp)
    gate = linear_of(x, products.gate)
    gate, up = gate.chunk(2, dim=-1) if products.up is None else (gate, linear_of(x, products.up))
    is_silu = layer.activation is Activation.SILU
    gate = functional.silu(gate) if is_silu else functional.gelu(gate, approximate="tanh")
    added = linear_of(gate * up, products.down)
    return hidden + layer.residual * norm_of(added, layer.after_mlp)


def norm_of(x: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return x
    numbers, weight = x.float(), norm.weight.float()
    by_root = numbers * (numbers.square().mean(-1, keepdim=True) + norm.epsilon).rsqrt()
    return (by_root * (weight + 1.0 if norm.adds_one else weight)).to(x.dtype)


def linear_of(x: Tensor, linear: Linear) -> Tensor:
    assert isinstance(linear.weight, Tensor)
    return functional.linear(x, linear.weight, linear.bias)
