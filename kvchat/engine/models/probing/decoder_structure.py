"""Decoder layers of a known structure, found by what a model consists of and by how its parts behave.

A layer matches if it is made of norms, linear layers, one attention and one gated MLP, under the names that
most models give them, and of nothing else. Norms and activations are tried out. Whether the whole computes
what the structure says is not decided here; see `engine/forward/fused_check.py`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvchat.engine.formats.attention_metadata import AttentionCall
from kvchat.engine.formats.spec import CacheSpec
from kvchat.engine.kernels.decoder_layers.args import (
    Activation,
    DecoderLayer,
    Heads,
    Linear,
    Norm,
    Projections,
)
from kvchat.engine.kernels.quantized_linear import QuantizedWeight
from kvchat.engine.models.linear.packed import PackedLinear
from kvchat.engine.models.linear.quantized import QuantizedLinear
from kvchat.engine.models.linear.widened import WidenedLinear
from kvchat.engine.models.linear.widened_interleaved import InterleavedLinear

_PLAIN = {"input_layernorm": "before_attention", "post_attention_layernorm": "before_mlp"}
NORM_NAMES = (
    _PLAIN,
    {
        "input_layernorm": "before_attention",
        "post_attention_layernorm": "after_attention",
        "pre_feedforward_layernorm": "before_mlp",
        "post_feedforward_layernorm": "after_mlp",
    },
    _PLAIN | {"post_self_attn_layernorm": "after_attention", "post_mlp_layernorm": "after_mlp"},
)
"""How models call a layer's norms, each with what it stands before or after."""
_PARTS = {"self_attn", "mlp"}
_TOLERANCE = 1e-5


class Unmatched(Exception):
    """The model is of another structure; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A model around its layers.

    Args:
        embed: token ids → what the first layer gets, but for a factor.
        rotary: computes cosines and sines.
        layer_types: of which it computes some for each, where it asks for a type.
        softcap: bound of the logits, or None.
    """

    embed: nn.Module
    layers: nn.ModuleList
    last_norm: Norm
    head: Linear
    rotary: Callable[..., tuple[Tensor, Tensor]]
    layer_types: Collection[str]
    softcap: float | None


def match_decoder(module: Any) -> Decoder:
    """Return the parts of a causal language model.

    Raises: Unmatched: it has others.
    """
    wanted = {"embed_tokens", "layers", "norm", "rotary_emb"}
    inner: list[Any] = [part for part in module.modules() if _child_names(part) == wanted]
    if len(inner) != 1 or not isinstance(inner[0].layers, nn.ModuleList):
        raise Unmatched("its parts have other names")
    text: Any = module.config.get_text_config()
    return Decoder(
        embed=inner[0].embed_tokens,
        layers=inner[0].layers,
        last_norm=match_norm(inner[0].norm),
        head=match_linear(module.get_output_embeddings()),
        rotary=inner[0].rotary_emb,
        layer_types=set(getattr(text, "layer_types", None) or ()),
        softcap=getattr(text, "final_logit_softcapping", None),
    )


def match_layer(layer: Any, call: AttentionCall, spec: CacheSpec, rope: int | None) -> DecoderLayer:
    """Return what a layer consists of.

    Args:
        call: what it passed to its attention.
        spec: what it keeps.
        rope: number of its rotary embedding; None: it has none.

    Raises: Unmatched: it is of another structure.
    """
    names = next((names for names in NORM_NAMES if _child_names(layer) == _PARTS | set(names)), None)
    if names is None or not {"q_proj", "k_proj", "v_proj", "o_proj"} <= _child_names(layer.self_attn):
        raise Unmatched("its layers have other parts")
    if _child_names(layer.mlp) - {"act_fn"} != {"gate_proj", "up_proj", "down_proj"}:
        raise Unmatched("its layers have no gated MLP")
    attention, mlp = layer.self_attn, layer.mlp
    if "position_ids" in signature(attention.forward).parameters:
        # Queries may be scaled by where they stand, from a position on that no trial reaches.
        raise Unmatched("its attention asks for positions")
    matched = DecoderLayer(
        heads=_heads(attention, call, spec),
        projections=Projections(
            query=match_linear(attention.q_proj),
            key=match_linear(attention.k_proj),
            value=match_linear(attention.v_proj),
            output=match_linear(attention.o_proj),
            gate=match_linear(mlp.gate_proj),
            up=match_linear(mlp.up_proj),
            down=match_linear(mlp.down_proj),
        ),
        activation=_activation(mlp.act_fn),
        rope=rope,
        **{place: match_norm(getattr(layer, name)) for name, place in names.items()},
    )
    _require_sizes(matched)
    _require_all(layer, matched, call)
    return matched


def match_linear(layer: Any) -> Linear:
    """Return the tensors of a linear layer."""
    if isinstance(layer, QuantizedLinear):
        return Linear(weight=layer.quantized, bias=layer.bias)
    if isinstance(layer, InterleavedLinear):
        return Linear(weight=layer.paired, bias=layer.bias)
    if type(layer) in (nn.Linear, PackedLinear, WidenedLinear):
        return Linear(weight=layer.weight, bias=layer.bias)
    raise Unmatched(f"it has a linear layer of type {type(layer).__name__}")


def match_norm(norm: Any) -> Norm:
    """Return a norm as it was found to behave."""
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weight = getattr(norm, "weight", None)
    tensors = [*norm.parameters(), *norm.buffers()]
    if not isinstance(epsilon, float) or weight is None or weight.dim() != 1 or len(tensors) != 1:
        raise Unmatched("it has other norms")
    x = _numbers(3, len(weight)).to(weight.device)
    found = norm(x)
    by_root = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    for adds_one in (False, True):
        wanted = by_root * (weight.float() + (1.0 if adds_one else 0.0))
        if _is_near(found, wanted):
            return Norm(weight=weight, epsilon=epsilon, adds_one=adds_one)
    raise Unmatched("its norms compute something else")


def _activation(function: Callable[[Tensor], Tensor]) -> Activation:
    x = torch.linspace(-8, 8, 65)
    if _is_near(function(x), functional.silu(x)):
        return Activation.SILU
    if _is_near(function(x), functional.gelu(x, approximate="tanh")):
        return Activation.GELU_TANH
    raise Unmatched("its MLPs have another activation")


def _heads(attention: Any, call: AttentionCall, spec: CacheSpec) -> Heads:
    dim = spec.head_dim_k
    if spec.head_dim_v != dim:
        raise Unmatched("its keys and values have different sizes")
    query, key = match_linear(attention.q_proj), match_linear(attention.k_proj)
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    return Heads(
        num_heads=query.num_outputs // dim,
        num_kv_heads=key.num_outputs // dim,
        dim=dim,
        scale=dim**-0.5 if call.scaling is None else call.scaling,
        window=spec.window,
        chunk=spec.chunk,
        softcap=call.softcap,
        sinks=call.sinks,
        query_norm=None if norms[0] is None else match_norm(norms[0]),
        key_norm=None if norms[1] is None else match_norm(norms[1]),
    )


def _require_sizes(layer: DecoderLayer) -> None:
    heads, products = layer.heads, layer.projections
    hidden, inner = products.query.num_inputs, products.gate.num_outputs
    sizes = {
        "query": (heads.num_heads * heads.dim, hidden),
        "key": (heads.num_kv_heads * heads.dim, hidden),
        "value": (heads.num_kv_heads * heads.dim, hidden),
        "output": (hidden, heads.num_heads * heads.dim),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    for name, size in sizes.items():
        if tuple(getattr(products, name).weight.shape) != size:
            raise Unmatched(f"its {name} projection has another size")
    for norm in (heads.query_norm, heads.key_norm):
        if norm is not None and len(norm.weight) != heads.dim:
            raise Unmatched("its heads have another norm")
    if heads.num_heads % heads.num_kv_heads:
        raise Unmatched("its heads do not share keys evenly")


def _require_all(layer: nn.Module, matched: DecoderLayer, call: AttentionCall) -> None:
    """Refuse a layer that has tensors of which the structure says nothing."""
    products = matched.projections
    num_used = sum(
        norm is not None
        for norm in (
            *(matched.before_attention, matched.after_attention, matched.before_mlp, matched.after_mlp),
            *(matched.heads.query_norm, matched.heads.key_norm),
        )
    )
    for linear in products.all:
        weight = linear.weight
        num_used += 2 + (weight.minima is not None) if isinstance(weight, QuantizedWeight) else 1
        num_used += linear.bias is not None
    num_used += call.sinks is not None
    if num_used != len([*layer.parameters(), *layer.buffers()]):
        raise Unmatched("its layers have more weights")


def _child_names(module: nn.Module) -> set[str]:
    """Return the names of the parts of a module, without those that do nothing in inference."""
    idle = (nn.Identity, nn.Dropout)
    return {name for name, child in module.named_children() if not isinstance(child, idle)}


def _numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def _is_near(found: Tensor, wanted: Tensor) -> bool:
    if found.shape != wanted.shape:
        return False
    return bool((found.float() - wanted).norm() <= _TOLERANCE * wanted.norm().clamp_min(1e-6))
