"""Decoder layers between two attention calls, in torch operations; any device.

Functions of tensors alone, so that they can be compiled: once for all layers that compute the same. Numbers
are of the weights' dtype; norms compute in float32. Dimensions: T rows, H query heads, H_kv key-value heads,
D head size.
"""

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from kvchat.engine.kernels.decoder_layers.args import DecoderLayer, Linear, Mlp, Norm, TokenMixing
from kvchat.engine.kernels.decoder_layers.reference import inner_of, norm_of

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
    for linear in layer.linears:
        if not isinstance(linear.weight, Tensor) or linear.weight.is_mkldnn:
            raise ValueError("weights that are packed or quantized")
        products.append((linear.weight, linear.bias))
    norms = tuple(norm.weight if norm is not None else None for norm in _norms(layer))
    return LayerWeights(tuple(products), norms)


def with_weights(layer: DecoderLayer, weights: LayerWeights) -> DecoderLayer:
    """Return a layer that computes the same with other weights."""
    mixing, mlp = _halves(layer)
    linears = [Linear(weight=weight, bias=bias) for weight, bias in weights.products]
    norms = [
        None if norm is None or weight is None else replace(norm, weight=weight)
        for norm, weight in zip(_norms(layer), weights.norms, strict=True)
    ]
    before, after, query_norm, key_norm, before_mlp, after_mlp = norms
    assert before is not None
    assert before_mlp is not None
    *inputs, output = linears[: len(mixing.inputs) + 1]
    gate, *ups, down = linears[len(inputs) + 1 :]
    mixer = replace(layer.heads, query_norm=query_norm, key_norm=key_norm)
    mixing = replace(mixing, before=before, inputs=tuple(inputs), mixer=mixer, output=output, after=after)
    up = ups[0] if ups else None
    mlp = replace(mlp, before=before_mlp, gate=gate, up=up, down=down, after=after_mlp)
    return replace(layer, mixing=mixing, mlp=mlp)


def before_attention(hidden: Tensor, layer: DecoderLayer) -> Projected:
    """Return what a layer projects `hidden` [T, hidden] to."""
    heads, (mixing, _) = layer.heads, _halves(layer)
    x = norm_of(hidden, mixing.before)
    query, key, value = (linear_of(x, one).unflatten(1, (-1, heads.dim)) for one in mixing.inputs)
    return norm_of(query, heads.query_norm), norm_of(key, heads.key_norm), value


def after_attention(hidden: Tensor, attended: Tensor, layer: DecoderLayer) -> Tensor:
    """Return what a layer makes of `hidden` [T, hidden] and of what it attended to [T, H, D]."""
    mixing, mlp = _halves(layer)
    added = linear_of(attended.flatten(1), mixing.output)
    hidden = hidden + layer.residual * norm_of(added, mixing.after)
    added = linear_of(inner_of(norm_of(hidden, mlp.before), mlp, linear_of), mlp.down)
    return hidden + layer.residual * norm_of(added, mlp.after)


def _norms(layer: DecoderLayer) -> tuple[Norm | None, ...]:
    mixing, mlp = _halves(layer)
    heads = layer.heads
    return mixing.before, mixing.after, heads.query_norm, heads.key_norm, mlp.before, mlp.after


def _halves(layer: DecoderLayer) -> tuple[TokenMixing, Mlp]:
    assert layer.mixing is not None
    assert layer.mlp is not None
    return layer.mixing, layer.mlp


def linear_of(x: Tensor, linear: Linear) -> Tensor:
    assert isinstance(linear.weight, Tensor)
    return functional.linear(x, linear.weight, linear.bias)
