"""Decoder layers of a known structure, found by what a model consists of and by how its parts behave.

A layer matches if it is made of norms, linear layers, one MLP, experts or both, and one attention, short
convolution, gated delta rule or selective scan, or one half of these, under the names that most models give
them, and of nothing else. Norms and activations are tried out. Whether the whole computes what the structure
says is not decided here; see `engine/forward/fused_check.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvchat.engine.formats.attention_metadata import AttentionCall
from kvchat.engine.formats.spec import CacheSpec
from kvchat.engine.kernels.decoder_layers.args import (
    Activation,
    DecoderLayer,
    Experts,
    GatedDelta,
    Heads,
    Linear,
    Mixer,
    Mlp,
    Norm,
    SelectiveScan,
    ShortConvolution,
    TokenMixing,
    tensors_of,
)
from kvchat.engine.kernels.decoder_layers.reference import activated, norm_of
from kvchat.engine.models.linear.packed import InterleavedLinear, PackedLinear, WidenedLinear
from kvchat.engine.models.linear.quantized import QuantizedLinear

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
    {"operator_norm": "before_attention", "ffn_norm": "before_mlp"},
    {"input_layernorm": "before_attention", "pre_ff_layernorm": "before_mlp"},
)
"""How models call a layer's norms, each with what it stands before or after."""
_ONE_HALF = {"norm", "mixer"}
"""The parts of a layer that is either a mixer or an MLP."""
_MIXERS = {"self_attn", "linear_attn", "conv", "mamba", "mixer"}
_MLPS = {"mlp", "feed_forward", "shared_mlp"}
_MLP_PARTS = (
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w3", "w2"),
    ("input_linear", "output_linear"),
    ("up_proj", "down_proj"),
)
"""Products of gates, ups and what is made of both; of two, the first gives both, or there are no gates."""
_BESIDE_MLP = "block_sparse_moe"
"""Experts that stand beside an MLP; others are in its place, and may have one among them."""
_ROUTERS = {"gate", "router"}
_SHARED = {"shared_expert", "shared_expert_gate"}
_ATTENTION = {"q_proj", "k_proj", "v_proj"}
_DELTA = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "conv1d", "norm"}
_DELTA_BY_KEY_HEAD = {"in_proj_qkvz", "in_proj_ba", "conv1d", "norm"}
_CONVOLUTION = {"in_proj", "conv"}
_SCAN = {"in_proj", "conv1d", "norm"}
_HEAD_NORMS = {"q_norm": "k_norm", "q_layernorm": "k_layernorm"}
_TOLERANCE = 1e-5


Rotary = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions [1, n] → cosines and sines [1, n, D_rope]."""


class Unmatched(Exception):
    """The model is of another structure; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A model around its layers.

    Args:
        embed: token ids → what the first layer gets, but for a factor.
        rotary: computes cosines and sines; None: nothing is turned.
        softcap: bound of the logits, or None.
        logits_factor: of the logits.
    """

    embed: nn.Module
    layers: nn.ModuleList
    last_norm: Norm
    head: Linear
    rotary: Callable[..., tuple[Tensor, Tensor]] | None
    softcap: float | None
    logits_factor: float


def match_decoder(module: Any) -> Decoder:
    """Return the parts of a causal language model.

    Raises: Unmatched: it has others.
    """
    norms, embeddings = (
        ("norm", "embedding_norm", "final_layernorm", "norm_f"),
        ("embed_tokens", "embeddings"),
    )
    kinds = [{"layers", norm, embed} for norm in norms for embed in embeddings]
    inner: list[Any] = [part for part in module.modules() if _child_names(part) - {"rotary_emb"} in kinds]
    if len(inner) != 1 or not isinstance(inner[0].layers, nn.ModuleList):
        raise Unmatched("its parts have other names")
    text: Any = module.config.get_text_config()
    return Decoder(
        embed=_part_of(inner[0], *embeddings),
        layers=inner[0].layers,
        last_norm=match_norm(_part_of(inner[0], *norms)),
        head=match_linear(module.get_output_embeddings()),
        rotary=getattr(inner[0], "rotary_emb", None),
        softcap=getattr(text, "final_logit_softcapping", None),
        logits_factor=1.0 / (getattr(text, "logits_scaling", None) or 1.0),
    )


def rotary_options(embedding: Any) -> list[dict[str, str]]:
    """Return the options with which a rotary embedding may be called: for each type of layer, if it asks."""
    if "layer_type" not in signature(embedding.forward).parameters:
        return [{}]
    kinds = getattr(embedding, "layer_types", None) or getattr(embedding.config, "layer_types", None)
    return [{"layer_type": kind} for kind in sorted(set(kinds or ()))]


def match_layer(
    layer: Any, call: AttentionCall | None, spec: CacheSpec | None, rope: int | None
) -> DecoderLayer:
    """Return what a layer consists of.

    Args:
        call: what it passed to its attention; None: it keeps a state, or nothing.
        spec: what it keeps; None: nothing.
        rope: number of its rotary embedding; None: it has none.

    Raises: Unmatched: it is of another structure.
    """
    norms = {place: match_norm(getattr(layer, name)) for name, place in _norm_names(layer).items()}
    mixer, _ = _halves(layer)
    if (spec is None) != (mixer is None):
        raise Unmatched("its layers have other parts")
    mixing = None
    if mixer is not None and spec is not None:
        inputs, output, found = _mixer(mixer, call, spec)
        before, after = norms["before_attention"], norms.get("after_attention")
        mixing = TokenMixing(
            before=before,
            inputs=inputs,
            mixer=found,
            output=output,
            after=after,
            places=_places(mixer, found),
        )
    mlp, experts = _mlp_and_experts(layer)
    if experts is not None and "after_mlp" in norms:
        raise Unmatched("what its experts give is normed")
    matched = DecoderLayer(
        mixing=mixing,
        mlp=None if mlp is None else _mlp(mlp, norms["before_mlp"], norms.get("after_mlp")),
        experts=None if experts is None else _experts(experts, norms["before_mlp"]),
        rope=rope if call is not None else None,
        residual=getattr(layer, "residual_multiplier", 1.0),
    )
    _require_sizes(matched)
    _require_all(layer, matched)
    return matched


def mixer_of(layer: Any) -> Any:
    """Return what lets the tokens of a layer see those before them, None where nothing does.

    Raises: Unmatched: the layer is of another structure.
    """
    return _halves(layer)[0]


def _halves(layer: Any) -> tuple[nn.Module | None, nn.Module | None]:
    """Return a layer's mixer and its MLP."""
    own = _child_names(layer)
    if own == _ONE_HALF:
        if hasattr(layer.mixer, "experts"):
            raise Unmatched("its experts have other parts")
        return (None, layer.mixer) if _mlp_products(layer.mixer) else (layer.mixer, None)
    mixers, mlps = ([getattr(layer, name) for name in names & own] for names in (_MIXERS, _MLPS))
    if len(mixers) != 1 or len(mlps) != 1:
        raise Unmatched("its layers have other parts")
    return mixers[0], mlps[0]


def _mlp_and_experts(layer: Any) -> tuple[nn.Module | None, nn.Module | None]:
    """Return a layer's MLP, which may be one that all experts share, and what has its experts."""
    _, mlp = _halves(layer)
    if mlp is None or not hasattr(mlp, "experts"):
        return mlp, getattr(layer, _BESIDE_MLP, None)
    return getattr(mlp, "shared_expert", None), mlp


def router_and_experts(layer: Any) -> tuple[Any, Any] | None:
    """Return what chooses a layer's experts, and these; None: it has none.

    Raises: Unmatched: they are of another structure.
    """
    _, found = _mlp_and_experts(layer)
    return None if found is None else _parts_of_experts(found)


def _parts_of_experts(found: Any) -> tuple[Any, Any]:
    children = _child_names(found)
    routers = _ROUTERS & children
    if len(routers) != 1 or children - routers - _SHARED != {"experts"} or len(children & _SHARED) == 1:
        raise Unmatched("its experts have other parts")
    router, experts = getattr(found, routers.pop()), found.experts
    if not isinstance(getattr(router, "top_k", None), int) or not hasattr(experts, "gate_up_proj"):
        raise Unmatched("its experts are chosen or computed in another way")
    return router, experts


def _experts(found: Any, before: Norm) -> Experts:
    router, experts = _parts_of_experts(found)
    gate_up, down = experts.gate_up_proj, experts.down_proj
    num_experts, hidden, inner = down.shape
    if router.weight.shape != (num_experts, hidden) or gate_up.shape != (num_experts, 2 * inner, hidden):
        raise Unmatched("its experts have other sizes")
    return Experts(
        before=before,
        router=Linear(weight=router.weight, bias=None),
        gate_up=gate_up,
        down=down,
        activation=_activation(experts.act_fn),
        num_chosen=router.top_k,
        is_normalized=getattr(router, "norm_topk_prob", True),
        shared_gate=match_linear(found.shared_expert_gate) if hasattr(found, "shared_expert_gate") else None,
    )


def _mlp_products(mlp: nn.Module) -> tuple[str, ...]:
    """Return the names of an MLP's products, none if it is of another structure."""
    children = _child_names(mlp) - {"act_fn", "activation"}
    return next((names for names in _MLP_PARTS if children == set(names)), ())


def _norm_names(layer: Any) -> dict[str, str]:
    """Return the names of a layer's norms, each with what it stands before or after."""
    own = _child_names(layer)
    if own == _ONE_HALF:
        return {"norm": "before_mlp" if mixer_of(layer) is None else "before_attention"}
    own -= {*_MIXERS, *_MLPS, _BESIDE_MLP}
    names = next((names for names in NORM_NAMES if own == set(names)), None)
    if names is None:
        raise Unmatched("its layers have other parts")
    return names


def _mlp(mlp: Any, before: Norm, after: Norm | None) -> Mlp:
    products = _mlp_products(mlp)
    if not products:
        raise Unmatched("its MLPs have other parts")
    gate, *ups, down = (match_linear(getattr(mlp, product)) for product in products)
    activation = _activation(getattr(mlp, "act_fn", getattr(mlp, "activation", functional.silu)))
    return Mlp(
        before=before, gate=gate, up=ups[0] if ups else None, down=down, activation=activation, after=after
    )


def unturned_key(layer: Any, given: Tensor, key: Tensor) -> Tensor:
    """Return the keys [.., H_kv, D] of a layer that attends, of what it is given, before they are turned."""
    attention = mixer_of(layer)
    before = next(name for name, place in _norm_names(layer).items() if place == "before_attention")
    projected: Tensor = attention.k_proj(getattr(layer, before)(given)).view(key.shape)
    _, norm = _head_norms(attention)
    return projected if norm is None else norm(projected)


def _mixer(
    part: Any, call: AttentionCall | None, spec: CacheSpec
) -> tuple[tuple[Linear, ...], Linear, Mixer]:
    """Return the products of a mixer's inputs, the one of what it gives, and itself."""
    children = _child_names(part)
    outputs = {"o_proj", "out_proj"} & children
    kinds = (_ATTENTION, _DELTA, _DELTA_BY_KEY_HEAD, _SCAN, _CONVOLUTION)
    kind = next((kind for kind in kinds if kind <= children), None)
    if kind is None or len(outputs) != 1 or (call is None) != (kind is not _ATTENTION):
        raise Unmatched("its layers have other parts")
    output = match_linear(getattr(part, outputs.pop()))
    if call is not None:
        if "position_ids" in signature(part.forward).parameters:
            # Queries may be scaled by where they stand, from a position on that no trial reaches.
            raise Unmatched("its attention asks for positions")
        inputs = tuple(match_linear(getattr(part, one)) for one in ("q_proj", "k_proj", "v_proj"))
        return inputs, output, _heads(part, call, spec, output)
    if not spec.may_be_cut:
        raise Unmatched("its states depend on how tokens are divided")
    if kind is _DELTA or kind is _DELTA_BY_KEY_HEAD:
        names = ("qkv", "z", "b", "a") if kind is _DELTA else ("qkvz", "ba")
        inputs = tuple(match_linear(getattr(part, f"in_proj_{one}")) for one in names)
        return inputs, output, _delta(part)
    found = _convolution(part.conv) if kind is _CONVOLUTION else _scan(part)
    return (match_linear(part.in_proj),), output, found


def _convolution(conv: nn.Conv1d) -> ShortConvolution:
    return ShortConvolution(taps=conv.weight[:, 0], bias=conv.bias)


def _delta(part: Any) -> GatedDelta:
    conv = _convolution(part.conv1d)
    num_heads, key_dim, value_dim = len(part.A_log), part.head_k_dim, len(part.norm.weight)
    return GatedDelta(
        num_heads=num_heads,
        num_key_heads=(len(conv.taps) - num_heads * value_dim) // (2 * key_dim),
        key_dim=key_dim,
        value_dim=value_dim,
        conv=conv,
        decay=part.A_log,
        step_bias=part.dt_bias,
        norm=_gated_norm(part.norm),
    )


def _places(part: Any, mixer: Mixer) -> Tensor | None:
    """Return where numbers go that a mixer gets with those of each key head together, None if it does not."""
    if not isinstance(mixer, GatedDelta) or not hasattr(part, "in_proj_qkvz"):
        return None
    num_keys, each = mixer.num_key_heads, mixer.num_heads // mixer.num_key_heads
    keys, values = mixer.key_dim, each * mixer.value_dim
    # Of all heads' numbers in the order in which the mixer wants them, those of each key head.
    sizes = (keys, keys, values, values, each, each)
    starts = torch.tensor((0, *sizes)).cumsum(0)[:-1] * num_keys
    places = [
        (start + torch.arange(num_keys * size)).view(num_keys, size)
        for start, size in zip(starts, sizes, strict=True)
    ]
    return torch.cat([torch.cat(places[:4], dim=1).flatten(), torch.cat(places[4:], dim=1).flatten()])


def _scan(part: Any) -> SelectiveScan:
    conv = _convolution(part.conv1d)
    num_heads, num_values, num_groups = len(part.A_log), len(part.norm.weight), part.n_groups
    least_step, most_step = getattr(part, "time_step_limit", (0.0, inf))
    if most_step != inf:
        raise Unmatched("its steps are bounded")
    return SelectiveScan(
        num_heads=num_heads,
        num_groups=num_groups,
        key_dim=(len(conv.taps) - num_values) // (2 * num_groups),
        value_dim=num_values // num_heads,
        conv=conv,
        decay=part.A_log,
        step_bias=part.dt_bias,
        skip=part.D,
        norm=_norm_of_gated(part.norm, num_groups),
        least_step=least_step,
    )


def _gated_norm(norm: Any) -> Norm:
    """Return a norm whose result is multiplied by the SiLU of a gate."""
    x, gate = _numbers(2, 3, len(norm.weight)).to(norm.weight.device)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    return _found_norm(norm, x, gate, normed * functional.silu(gate))


def _norm_of_gated(norm: Any, num_groups: int) -> Norm:
    """Return a norm, of each group on its own, of what the SiLU of a gate was multiplied by."""
    x, gate = _numbers(2, 3, len(norm.weight)).to(norm.weight.device)
    groups = (x * functional.silu(gate)).unflatten(-1, (num_groups, -1))
    normed = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    return _found_norm(norm, x, gate, normed.flatten(-2))


def _found_norm(norm: Any, x: Tensor, gate: Tensor, wanted: Tensor) -> Norm:
    if not _is_near(norm(x, gate), wanted * norm.weight.float()):
        raise Unmatched("its norms compute something else")
    return Norm(weight=norm.weight, epsilon=norm.variance_epsilon, adds_one=False)


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
    given = norm(x)
    for adds_one in (False, True):
        found = Norm(weight=weight, epsilon=epsilon, adds_one=adds_one)
        if _is_near(given, norm_of(x, found)):
            return found
    raise Unmatched("its norms compute something else")


def _activation(function: Callable[[Tensor], Tensor]) -> Activation:
    x = torch.linspace(-8, 8, 65)
    for activation in Activation:
        if _is_near(function(x), activated(x, activation)):
            return activation
    raise Unmatched("its MLPs have another activation")


def _heads(attention: Any, call: AttentionCall, spec: CacheSpec, output: Linear) -> Heads:
    dim = spec.head_dim_k
    if spec.head_dim_v != dim:
        raise Unmatched("its keys and values have different sizes")
    query, key = match_linear(attention.q_proj), match_linear(attention.k_proj)
    norms = _head_norms(attention)
    return Heads(
        num_heads=output.num_inputs // dim,
        num_kv_heads=key.num_outputs // dim,
        dim=dim,
        scale=dim**-0.5 if call.scaling is None else call.scaling,
        window=spec.window,
        chunk=spec.chunk,
        softcap=call.softcap,
        sinks=call.sinks,
        query_norm=None if norms[0] is None else match_norm(norms[0]),
        key_norm=None if norms[1] is None else match_norm(norms[1]),
        is_gated=query.num_outputs == 2 * output.num_inputs,
    )


def _head_norms(attention: Any) -> tuple[Any, Any]:
    """Return the norms of queries and of keys, None each where there is none."""
    query = next((name for name in _HEAD_NORMS if hasattr(attention, name)), "q_norm")
    return getattr(attention, query, None), getattr(attention, _HEAD_NORMS[query], None)


def _require_sizes(layer: DecoderLayer) -> None:
    mixing, mlp = layer.mixing, layer.mlp
    hidden = layer.linears[0].num_inputs
    sizes: list[tuple[int, int]] = []
    if mixing is not None:
        num_inputs, num_mixed = _sizes_of(mixing.mixer, hidden)
        if mixing.places is not None:
            num_inputs = [sum(num_inputs[:2]), sum(num_inputs[2:])]
        sizes += [*((size, hidden) for size in num_inputs), (hidden, num_mixed)]
    if mlp is not None:
        inner, is_double = mlp.down.num_inputs, mlp.gate.num_outputs == 2 * mlp.down.num_inputs
        gates = [(inner, hidden)] * 2 if mlp.up is not None else [(inner * (1 + is_double), hidden)]
        sizes += [*gates, (hidden, inner)]
    if (experts := layer.experts) is not None:
        if mlp is not None and mlp.activation != experts.activation:
            raise Unmatched("its experts have another activation than the MLP beside them")
        if mlp is None and experts.shared_gate is not None:
            raise Unmatched("its experts have other parts")
        sizes += [(len(experts.down), hidden), *([(1, hidden)] if experts.shared_gate is not None else [])]
    for linear, size in zip(layer.linears, sizes, strict=True):
        if tuple(linear.weight.shape) != size:
            raise Unmatched(f"a projection of its layers has other sizes than {size[1]} and {size[0]}")
    mixer = layer.mixer
    if not isinstance(mixer, Heads):
        return
    for norm in (mixer.query_norm, mixer.key_norm):
        if norm is not None and len(norm.weight) != mixer.dim:
            raise Unmatched("its heads have another norm")
    if mixer.num_heads % mixer.num_kv_heads:
        raise Unmatched("its heads do not share keys evenly")


def _sizes_of(mixer: Mixer, hidden: int) -> tuple[list[int], int]:
    """Return how many numbers a mixer gets by each product, and how many it gives."""
    if isinstance(mixer, Heads):
        queries, keys = mixer.num_heads * mixer.dim, mixer.num_kv_heads * mixer.dim
        return [queries * (1 + mixer.is_gated), keys, keys], queries
    if isinstance(mixer, ShortConvolution):
        return [3 * hidden], hidden
    values = mixer.num_heads * mixer.value_dim
    if isinstance(mixer, SelectiveScan):
        return [2 * values + 2 * mixer.num_groups * mixer.key_dim + mixer.num_heads], values
    return list(mixer.num_inputs), values


def _require_all(layer: nn.Module, matched: DecoderLayer) -> None:
    """Refuse a layer that has tensors of which the structure says nothing."""
    places = None if matched.mixing is None else matched.mixing.places
    num_used = len({id(one) for one in tensors_of(matched) if one is not places})
    if num_used != len([*layer.parameters(), *layer.buffers()]):
        raise Unmatched("its layers have more weights")


def _part_of(module: Any, *names: str) -> Any:
    """Return the part of a module that goes by one of these names."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


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
