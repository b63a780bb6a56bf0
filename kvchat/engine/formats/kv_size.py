"""KV size of a model, from its config alone: no weights, no torch.

Notation: L layers, H query heads, H_kv key-value heads, D head size, S tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvchat.engine.formats.recurrent.state_size import state_bytes
from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.errors import ModelUnreadable

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ASSUMED_DTYPE = "bfloat16"
"""Of a model whose config names none."""
SEES_ALL = {"full_attention", "attention", "hybrid"}
STATES = {"linear_attention", "mamba", "conv", "hybrid"}
"""Layers with a state whose size is the same for every context; a hybrid one attends too."""
NOT_COUNTED = {"linear_attention", "mamba", "conv", "mlp", "moe"}
"""Layers that keep no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """What layers of latent attention keep for a token: a latent vector and one rope key for all heads."""

    rank: int
    rope_dim: int

    @property
    def fp8_bytes(self) -> int:
        """FP8 numbers, a float32 scale per tile, the rope key in 16 bits."""
        return Fp8Record(self.rank, self.rope_dim).num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The part of a model that decides about its cache.

    Args:
        visible: for each layer with a cache of its own, the most tokens a query sees; None: all.
        dim_k: numbers of a key.
        dim_v: numbers of a value.
        latent: what latent attention keeps instead of keys and values.
        state_bytes: of all recurrent layers, for a conversation and for each snapshot of it; None: they keep
            something whose size is not known.
    """

    model_type: str
    num_layers: int
    visible: tuple[int | None, ...]
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    dim_k: int
    dim_v: int
    dtype: str
    latent: Latent | None = None
    state_bytes: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """One way to keep a model's past.

    Args:
        name: what it is.
        assumption: where the figure comes from.
        token_bytes: of one token in all layers.
        context_bytes: of the whole context; layers with a window keep the window only.
        is_own: whether the model is made for it.
    """

    name: str
    assumption: str
    token_bytes: int
    context_bytes: int
    is_own: bool = False


def cache_sizes(shape: AttentionShape, context_len: int) -> tuple[CacheSize, ...]:
    """Return the model's own way first, then the ways it is compared with.

    Args:
        context_len: tokens, S.
    """
    ways = _grouped_ways(shape) if shape.latent is None else _latent_ways(shape, shape.latent)
    num_layers = len(shape.visible)
    kept = sum(context_len if most is None else min(context_len, most) for most in shape.visible)
    return tuple(
        CacheSize(
            name=way.name,
            assumption=f"{num_layers} layers x {way.of_a_layer}" + (f"; {way.remark}" if way.remark else ""),
            token_bytes=way.token_bytes * num_layers,
            context_bytes=way.token_bytes * kept,
            is_own=number == 0,
        )
        for number, way in enumerate(ways)
    )


def read_shape(config: Mapping[str, Any]) -> AttentionShape:
    """Return the shape that a `config.json` tells.

    Raises:
        ModelUnreadable: a number is missing, or the numbers contradict each other.
    """
    fields = _fields(config)
    num_layers = fields.count("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = fields.count("hidden_size", "n_embd", "d_model", "dim")
    heads = fields.count("num_attention_heads", "n_head", "num_heads", "n_heads")
    latent = _latent(fields)
    dim = fields.count("head_dim", "d_kv", default=max(1, hidden // heads))
    shape = AttentionShape(
        model_type=str(fields.get("model_type", default="unknown")),
        num_layers=num_layers,
        visible=_visible(fields, num_layers),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_num_kv_heads(fields, heads),
        dim_k=dim if latent is None else fields.count("qk_nope_head_dim") + latent.rope_dim,
        dim_v=dim if latent is None else fields.count("v_head_dim"),
        dtype=str(fields.get("dtype", "torch_dtype", default=ASSUMED_DTYPE)).removeprefix("torch."),
        latent=latent,
    )
    shape = replace(shape, state_bytes=_state_bytes(fields, shape))
    if shape.dtype not in DTYPE_BYTES:
        raise ModelUnreadable(f"the config's dtype {shape.dtype!r} is none of {', '.join(DTYPE_BYTES)}")
    if shape.num_kv_heads > heads or heads % shape.num_kv_heads:
        raise ModelUnreadable(
            f"the config has {shape.num_kv_heads} key-value heads for {heads} query heads, which do not share"
        )
    return shape


def names_dtype(config: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` says in which type the model keeps its numbers."""
    return _fields(config).get("dtype", "torch_dtype", default=None) is not None


@dataclass(frozen=True, slots=True)
class _Way:
    """What one layer keeps for a token, and how that is counted."""

    name: str
    of_a_layer: str
    token_bytes: int
    remark: str = ""


def _grouped_ways(shape: AttentionShape) -> list[_Way]:
    own = shape.num_kv_heads
    return [_heads_way(shape, heads, shape.dim_k) for heads in dict.fromkeys((own, shape.num_heads, 1))]


def _latent_ways(shape: AttentionShape, latent: Latent) -> list[_Way]:
    item = DTYPE_BYTES[shape.dtype]
    nope_dim, width = shape.dim_k - latent.rope_dim, shape.hidden_size
    return [
        _Way(
            "latent (MLA)",
            f"({latent.rank} latent + {latent.rope_dim} rope key) x {item} B",
            (latent.rank + latent.rope_dim) * item,
        ),
        _Way(
            "latent in FP8 (approximate)",
            f"{latent.fp8_bytes} B",
            latent.fp8_bytes,
            "8-bit latent, a scale per 128 numbers, the rope key in 16 bits",
        ),
        *(_heads_way(shape, heads, nope_dim) for heads in _shared_heads(shape.num_heads)),
        _heads_way(shape, shape.num_heads, nope_dim),
        _heads_way(shape, shape.num_heads, shape.dim_k, "with the rope part of the keys"),
        _heads_way(shape, 1, nope_dim),
        _Way("latent alone", f"{latent.rank} x {item} B", latent.rank * item, "leaves out the rope key"),
        _Way(
            "two vectors of the model's width",
            f"2 x {width} x {item} B",
            2 * width * item,
            "often quoted as multi-head, though no head of this model is so wide",
        ),
    ]


def _shared_heads(num_heads: int) -> list[int]:
    """Return how many key-value heads this model could share: 8, or the next fewer that divide evenly."""
    return [heads for heads in range(min(8, num_heads - 1), 1, -1) if num_heads % heads == 0][:1]


def _heads_way(shape: AttentionShape, num_heads: int, dim_k: int, remark: str = "") -> _Way:
    item = DTYPE_BYTES[shape.dtype]
    name = f"{num_heads} key-value heads (GQA)"
    if num_heads == shape.num_heads:
        name = "a key-value head for every query head (MHA)"
    elif num_heads == 1:
        name = "one key-value head (MQA)"
    counted = f"{num_heads} x ({dim_k} + {shape.dim_v}) x {item} B"
    return _Way(name, counted, num_heads * (dim_k + shape.dim_v) * item, remark)


def _latent(fields: "_Fields") -> Latent | None:
    if fields.get("kv_lora_rank", "qk_nope_head_dim", default=None) is None:
        return None
    latent = Latent(rank=fields.count("kv_lora_rank"), rope_dim=fields.count("qk_rope_head_dim"))
    key_dim = fields.count("qk_nope_head_dim") + latent.rope_dim
    if latent.rope_dim % 2:
        raise ModelUnreadable(f"the config's qk_rope_head_dim is odd ({latent.rope_dim})")
    if fields.get("qk_head_dim", default=key_dim) != key_dim:
        raise ModelUnreadable(f"the config's qk_head_dim is not that of its parts together ({key_dim})")
    return latent


def _num_kv_heads(fields: "_Fields", heads: int) -> int:
    if fields.get("multi_query", default=False) and not fields.get("new_decoder_architecture", default=False):
        return 1
    return fields.count("num_key_value_heads", "num_kv_heads", "n_head_kv", default=heads)


def _visible(fields: "_Fields", num_layers: int) -> tuple[int | None, ...]:
    """Return what each layer that keeps something lets a query see."""
    num_shared = int(fields.get("num_kv_shared_layers", default=0) or 0)
    kinds = _layer_kinds(fields, num_layers)[: num_layers - num_shared]
    bounds = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
    unknown = sorted(set(kinds) - bounds.keys() - SEES_ALL - NOT_COUNTED)
    if unknown:
        raise ModelUnreadable(
            f"what layers of type {', '.join(unknown)} keep is not known, so it is not planned"
        )
    visible = tuple(
        fields.count(bounds[kind]) if kind in bounds else None for kind in kinds if kind not in NOT_COUNTED
    )
    if not visible:
        raise ModelUnreadable("by the config no layer keeps keys and values, so there is no cache to plan")
    return visible


def _state_bytes(fields: "_Fields", shape: AttentionShape) -> int | None:
    num_states = sum(kind in STATES for kind in _layer_kinds(fields, shape.num_layers))
    each = state_bytes(fields.get, DTYPE_BYTES.get(shape.dtype, 0)) if num_states else 0
    return None if each is None else num_states * each


def _layer_kinds(fields: "_Fields", num_layers: int) -> Sequence[str]:
    kinds = fields.get("layer_types", "layers_block_type", default=None)
    attending = fields.get("attn_layer_indices", default=None)
    if (period := fields.get("attn_layer_period", default=None)) is not None:
        attending = range(fields.get("attn_layer_offset", default=0), num_layers, period)
    if attending is not None:
        kinds = ["attention" if layer in attending else "mamba" for layer in range(num_layers)]
    elif fields.get("mamba_d_ssm", default=None) is not None:  # Falcon-H1: both in every layer
        kinds = ["hybrid"] * num_layers
    elif fields.get("mlstm_round_up_to_multiple_of", default=None) is not None:  # xLSTM
        kinds = ["linear_attention"] * num_layers
    if isinstance(kinds, list):
        if len(kinds) != num_layers:
            raise ModelUnreadable(f"the config names {len(kinds)} layer types for {num_layers} layers")
        return [str(kind) for kind in kinds]
    has_window = fields.get("sliding_window", default=None) and fields.get("use_sliding_window", default=True)
    pattern = fields.get("sliding_window_pattern", default=None)
    if not has_window:
        return ["full_attention"] * num_layers
    if isinstance(pattern, int):
        return [
            "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention"
            for layer in range(num_layers)
        ]
    return ["sliding_attention"] * num_layers


def _fields(config: Mapping[str, Any]) -> "_Fields":
    text = config.get("text_config")
    return _Fields({**config, **text} if isinstance(text, Mapping) else config)


class _Fields:
    """A config's fields under the names that different models give them."""

    _REQUIRED = object()

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, *names: str, default: Any = _REQUIRED) -> Any:
        for name in names:
            if self._values.get(name) is not None:
                return self._values[name]
        if default is self._REQUIRED:
            raise ModelUnreadable(f"the config has no {names[0]}, so its cache cannot be planned")
        return default

    def count(self, *names: str, default: Any = _REQUIRED) -> int:
        value = self.get(*names, default=default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelUnreadable(f"the config's {names[0]} must be a number above 0, not {value!r}")
        return value
