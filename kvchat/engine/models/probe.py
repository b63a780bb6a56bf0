"""What each attention layer of a model keeps, seen in one forward pass rather than guessed from its class.

Two tokens are run through the model with a layer that records the shapes and arguments it is called with.
What the config says beyond that (layer types) is checked against what arrived.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from kvchat.engine.attention.call import AttentionCall
from kvchat.engine.cache.spec import FullSpec, SlidingSpec
from kvchat.engine.memory.device_pool import DTYPE_NAMES
from kvchat.engine.models.hook import attach
from kvchat.errors import UnsupportedModel

FULL_TYPES = {"full_attention", "attention"}
SLIDING_TYPES = {"sliding_attention"}


@dataclass(slots=True)
class _Recorder:
    """Stands behind every attention module and notes what a layer is asked."""

    specs: dict[int, FullSpec] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if layer in self.specs:
            self.problems.append(f"layer {layer} attends twice in one pass")
        if call.unsupported:
            self.problems.append(f"layer {layer} uses {', '.join(call.unsupported)}")
        if not call.is_causal:
            self.problems.append(f"layer {layer} is not causal")
        if key.dtype not in DTYPE_NAMES:
            self.problems.append(f"layer {layer} keeps {key.dtype}")
        else:
            self.specs[layer] = _spec(key, value, call.window)
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


def _spec(key: Tensor, value: Tensor, window: int | None) -> FullSpec:
    heads, dim_k, dim_v, dtype = key.shape[1], key.shape[2], value.shape[2], DTYPE_NAMES[key.dtype]
    if window is None:
        return FullSpec(num_kv_heads=heads, head_dim_k=dim_k, head_dim_v=dim_v, dtype=dtype)
    return SlidingSpec(num_kv_heads=heads, head_dim_k=dim_k, head_dim_v=dim_v, dtype=dtype, window_len=window)


def probe_specs(model: nn.Module) -> dict[int, FullSpec]:
    """Return what each attention layer keeps, by layer index.

    Raises:
        UnsupportedModel: a layer cannot be served exactly; the message says which and why.

    Effect:
        Leaves a recorder attached to the model; `attach` replaces it.
    """
    config: Any = model.config
    text_config = config.get_text_config()
    recorder = _Recorder()
    attach(model, recorder)
    device = next(model.parameters()).device
    try:
        with torch.inference_mode():
            model(
                input_ids=torch.zeros(1, 2, dtype=torch.long, device=device),
                position_ids=torch.arange(2, device=device)[None],
                use_cache=False,
                logits_to_keep=torch.tensor([1], device=device),
            )
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise UnsupportedModel(
            f"{_name(config)} does not run through its attention alone: {error}"
        ) from error
    _require_layers(text_config, recorder, _name(config))
    _check_types(text_config, recorder)
    if recorder.problems:
        raise UnsupportedModel(f"{_name(config)} cannot be served exactly: {'; '.join(recorder.problems)}")
    return recorder.specs


def _require_layers(text_config: Any, recorder: _Recorder, name: str) -> None:
    expected = set(range(text_config.num_hidden_layers))
    missing = sorted(expected - recorder.specs.keys())
    if missing and not recorder.problems:
        raise UnsupportedModel(
            f"{name}: layers {missing} keep something other than keys and values "
            "(recurrent state, for example), which kvchat does not hold"
        )


def _check_types(text_config: Any, recorder: _Recorder) -> None:
    """Compare the declared layer types with the windows that arrived."""
    types = getattr(text_config, "layer_types", None)
    if types is None:
        if getattr(text_config, "attention_chunk_size", None) is not None:
            recorder.problems.append("attention in fixed chunks")
        return
    for layer, kind in enumerate(types):
        spec = recorder.specs.get(layer)
        if spec is None:
            continue
        if kind not in FULL_TYPES | SLIDING_TYPES:
            recorder.problems.append(f"layer {layer} is of type {kind}")
        elif kind in SLIDING_TYPES and spec.max_visible is None:
            recorder.problems.append(f"layer {layer} slides, but passes no window to its attention")
        elif kind in FULL_TYPES and spec.max_visible is not None:
            recorder.problems.append(f"layer {layer} is declared full, but passes a window")


def _name(config: Any) -> str:
    names = getattr(config, "architectures", None) or [config.model_type]
    return str(names[0])
