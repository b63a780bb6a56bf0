"""The seam in an unmodified Hugging Face model: its attention function.

transformers calls one registered function for every attention layer, with queries, keys and values after the
rotary embedding. Ours finds the layer's cache through an attribute that `attach` puts on each attention
module, so two models in one process never meet. No mask function is registered under our name, so
transformers builds no mask; under the name that the probe uses it does.
"""

from inspect import signature
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from kvchat.engine.formats.attention_metadata import AttentionCall
from kvchat.engine.models.cache_stand_ins import StandIn

IMPLEMENTATION = "kvchat"
PROBE_IMPLEMENTATION = "kvchat-probe"
"""The same function for a model that builds its masks and hands them over."""
_ATTRIBUTE = "kvchat_layer"
_PAST = "kvchat_past"
UNSUPPORTED_ARGUMENTS = ("position_bias", "indices", "block_indices", "sinks")
"""Arguments that change the scores in ways no backend here knows."""


class AttentionLayer(Protocol):
    """What stands behind one attention module."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Take new keys and values and return the attention of the queries.

        Args:
            layer: the module's layer index.
            query: [T, H, D_k]; key: [T, H_kv, D_k]; value: [T, H_kv, D_v].

        Returns:
            [T, H, D_v].
        """
        ...


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls: query [1, H, T, D_k], key and value [1, H_kv, T, D]."""
    call = AttentionCall(
        scaling=scaling,
        window=kwargs.get("sliding_window"),
        softcap=kwargs.get("softcap"),
        sinks=kwargs.get("s_aux"),
        unsupported=tuple(name for name in UNSUPPORTED_ARGUMENTS if kwargs.get(name) is not None),
        is_causal=kwargs.get("is_causal") is not False and getattr(module, "is_causal", True) is not False,
        mask=attention_mask,
    )
    behind: AttentionLayer = getattr(module, _ATTRIBUTE)
    layer: Any = module.layer_idx
    if not _has_layer(module):
        layer = getattr(module, _PAST).updated_layer
    out = behind.attend(layer, _packed(query), _packed(key), _packed(value), call)
    return out.unsqueeze(0), None


def _packed(heads_first: Tensor) -> Tensor:
    """Return [1, H, T, D] as [T, H, D]."""
    assert heads_first.shape[0] == 1
    return heads_first[0].transpose(0, 1)


def attach(model: nn.Module, behind: AttentionLayer, past: StandIn | None = None) -> None:
    """Put `behind` on every module of the model that has a layer index; replaces what was attached before.

    Args:
        past: knows which layer a module belongs to that several layers share; None: none is shared.
    """
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            setattr(module, _ATTRIBUTE, behind)
            if not _has_layer(module):
                setattr(module, _PAST, past)


def _has_layer(module: nn.Module) -> bool:
    layer: Any = module.layer_idx
    return layer is not None and layer >= 0


def set_implementation(model: Any, name: str) -> bool:
    """Choose a model's attention by name and return whether the model took it.

    Older classes raise, or look their attention up in a table of their own.
    """
    try:
        model.set_attn_implementation(name)
    except (ValueError, KeyError, NotImplementedError, ImportError):
        return False
    return implementation_of(model.config.get_text_config()) == name


def implementation_of(text_config: Any) -> str | None:
    """Return the name of the attention that a config has chosen; transformers has no public getter."""
    name: str | None = text_config._attn_implementation
    return name


def accepted_arguments(model: nn.Module) -> frozenset[str]:
    """Return the names of the arguments of a model's forward pass."""
    return frozenset(signature(model.forward).parameters)


def past_argument(accepted: frozenset[str]) -> str:
    """Return the name under which a model takes its cache: models of states alone have their own."""
    return "cache_params" if "cache_params" in accepted else "past_key_values"


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionInterface.register(PROBE_IMPLEMENTATION, attend)
AttentionMaskInterface.register(PROBE_IMPLEMENTATION, eager_mask)
