"""Layer probe: what each attention layer keeps and sees, found in one forward pass rather than guessed from
its class.

Two tokens at the end of the longest context run through the model. A recorder behind its attention notes
shapes, arguments and the model's own masks; a recorder in place of its cache notes what else is asked of it.
What the config says beyond that (layer types) is checked against what was seen.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import get_layer_types_and_kwargs

from kvchat.engine.formats.attention_metadata import AttentionCall
from kvchat.engine.formats.chunked.spec import ChunkedSpec
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.full.transformers_cache import rows_of
from kvchat.engine.formats.latent.spec import latent_spec
from kvchat.engine.formats.recurrent.spec import StateSpec
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import CacheSpec
from kvchat.engine.memory.device_pool import DTYPE_NAMES
from kvchat.engine.models.cache_stand_ins import KeepsState, ProbePast
from kvchat.engine.models.hook import (
    IMPLEMENTATION,
    PROBE_IMPLEMENTATION,
    accepted_arguments,
    attach,
    past_argument,
    set_implementation,
)
from kvchat.engine.models.latent import LatentLayer
from kvchat.engine.models.probing.first_layers import without_products
from kvchat.engine.models.state_adapters import adapted
from kvchat.errors import UnsupportedModel

ATTENTION_TYPES = {"full_attention", "attention", "sliding_attention", "chunked_attention", "global", "local"}
BOUNDED_TYPES = {"sliding_attention", "chunked_attention"}
KEEPS_NOTHING = {"mlp", "moe"}
NUM_TOKENS = 2
LONGEST_MASK = 2**17
"""The probe's tokens stand at most here, so that its masks stay small."""


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """What the layers of a model keep.

    Args:
        specs: by layer index, for the layers that store keys and values.
        borrowed: layers that read what another layer stores, each with that layer.
        asks_past_len: whether a layer asks its cache how long the past is.
        states: by layer index, for the layers that keep a state.
        keepers: the modules that ask for it.
    """

    specs: dict[int, CacheSpec]
    borrowed: dict[int, int]
    asks_past_len: bool = False
    states: dict[int, StateSpec] = field(default_factory=dict)
    keepers: tuple[nn.Module, ...] = ()


class Contradiction(UnsupportedModel):
    """The model computes one thing without a cache and another with its own: no route is exact."""


@dataclass(frozen=True, slots=True)
class VisibleRange:
    """Tokens that a query sees: all before it, the last `window`, or those of its `chunk`.

    `problem` says why the mask is none of these.
    """

    window: int | None = None
    chunk: int | None = None
    problem: str | None = None


@dataclass(slots=True)
class _Recorder:
    """Stands behind every attention module and notes what a layer is asked."""

    start: int
    chunk_len: int | None
    latents: Mapping[int, LatentLayer]
    specs: dict[int, CacheSpec] = field(default_factory=dict)
    borrowed: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _stored: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _masks: list[tuple[Tensor, VisibleRange]] = field(default_factory=list)
    """Masks that were read, as they were then: layers of one sort are given the same."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if layer in self.specs or layer in self.borrowed:
            self.problems.append(f"layer {layer} attends twice in one pass")
        if call.unsupported:
            self.problems.append(f"layer {layer} uses {', '.join(call.unsupported)}")
        if not call.is_causal:
            self.problems.append(f"layer {layer} is not causal")
        if key.dtype not in DTYPE_NAMES:
            self.problems.append(f"layer {layer} keeps {key.dtype}")
        else:
            self._note(layer, key, value, self._reach(layer, call))
        latent = self.latents.get(layer)
        value_dim = latent.value_dim if latent else value.shape[2]
        return query.new_zeros(query.shape[0], query.shape[1], value_dim)

    def _reach(self, layer: int, call: AttentionCall) -> VisibleRange:
        """Return what the layer's queries see: by its mask, and by the window it passes if that is longer."""
        reach = VisibleRange(window=call.window)
        if call.mask is not None:
            reach = self._reach_of(call.mask)
            if reach.window is None and call.window is not None and call.window > self.start:
                reach = VisibleRange(window=call.window)
            elif reach.problem is None and call.window not in (None, reach.window):
                reach = VisibleRange(
                    problem=f"passes a window of {call.window} and masks another ({reach.window})"
                )
        if reach.problem is not None:
            self.problems.append(f"layer {layer} {reach.problem}")
        return reach

    def _reach_of(self, mask: Tensor) -> VisibleRange:
        for known, reach in self._masks:
            if known.dtype == mask.dtype and torch.equal(known, mask):
                return reach
        self._masks.append((mask.clone(), reach_of(mask, self.start, self.chunk_len)))
        return self._masks[-1][1]

    def _note(self, layer: int, key: Tensor, value: Tensor, reach: VisibleRange) -> None:
        latent = self.latents.get(layer)
        if latent is None:
            spec = _spec(key, value, reach)
        else:
            dtype = DTYPE_NAMES[key.dtype]
            spec = latent_spec(key.shape[2], value.shape[2], latent.rope_layout, dtype)
            if reach != VisibleRange():
                self.problems.append(f"layer {layer} keeps latents and does not see all tokens")
        for lender, (known_key, known_value) in self._stored.items():
            if _is_same(key, known_key) and _is_same(value, known_value) and spec == self.specs[lender]:
                self.borrowed[layer] = lender
                return
        self.specs[layer] = spec
        self._stored[layer] = (key, value)  # held, so that no later tensor takes their place


def _is_same(left: Tensor, right: Tensor) -> bool:
    return (
        left.data_ptr() == right.data_ptr() and left.shape == right.shape and left.stride() == right.stride()
    )


def _spec(key: Tensor, value: Tensor, reach: VisibleRange) -> CacheSpec:
    heads = {"num_kv_heads": key.shape[1], "head_dim_k": key.shape[2], "head_dim_v": value.shape[2]}
    dtype = DTYPE_NAMES[key.dtype]
    if reach.chunk is not None:
        return ChunkedSpec(**heads, dtype=dtype, chunk_len=reach.chunk)
    if reach.window is not None:
        return SlidingSpec(**heads, dtype=dtype, window_len=reach.window)
    return FullSpec(**heads, dtype=dtype)


def reach_of(mask: Tensor, start: int, chunk_len: int | None) -> VisibleRange:
    """Return what the mask [1, H or 1, T, start + T] of queries at [start, start + T) lets them see.

    Args:
        chunk_len: length of fixed chunks if the config speaks of any.
    """
    num_queries = mask.shape[2]
    if mask.shape[3] != start + num_queries:
        return VisibleRange(problem=f"masks {mask.shape[3]} tokens where there are {start + num_queries}")
    visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    if mask.dtype != torch.bool and bool((mask[visible] != 0).any()):
        return VisibleRange(problem="adds a bias to its scores")
    if bool((visible != visible[:, :1]).any()):
        return VisibleRange(problem="masks each head in its own way")
    firsts = []
    for row, position in zip(visible[0, 0], range(start, start + num_queries), strict=True):
        seen = row.nonzero()[:, 0].tolist()
        if not seen or seen[-1] != position or len(seen) != position - seen[0] + 1:
            return VisibleRange(problem="sees something other than the tokens directly before")
        firsts.append(seen[0])
    return _reach(firsts, start, chunk_len)


def _reach(firsts: list[int], start: int, chunk_len: int | None) -> VisibleRange:
    """Return the reach of queries at [start, ...) whose first visible tokens are `firsts`."""
    if not any(firsts):
        return VisibleRange()
    positions = range(start, start + len(firsts))
    window = start - firsts[0] + 1
    if firsts == [position - window + 1 for position in positions]:
        return VisibleRange(window=window)
    if chunk_len and firsts == [position - position % chunk_len for position in positions]:
        return VisibleRange(chunk=chunk_len)
    return VisibleRange(problem="sees neither a window nor a chunk")


def probe_layers(
    model: nn.Module, max_context: int, latents: Mapping[int, LatentLayer] | None = None
) -> ModelLayers:
    """Return what each layer keeps of a model whose attention is hooked.

    Args:
        latents: the layers that hand over latents instead of keys and values.

    Raises:
        UnsupportedModel: a layer cannot be served exactly; the message says which and why.
        Contradiction: and no other route serves it either.

    Effect:
        Leaves a recorder attached to the model; `attach` replaces it.
    """
    config: Any = model.config
    text_config = config.get_text_config()
    past = ProbePast(max(0, min(max_context, LONGEST_MASK) - NUM_TOKENS))
    recorder = _Recorder(past.start, getattr(text_config, "attention_chunk_size", None), latents or {})
    attach(model, recorder, past)
    set_implementation(model, PROBE_IMPLEMENTATION)
    with past.watching(model), adapted(model, past):
        run_probe(model, past, use_cache=False)
    set_implementation(model, IMPLEMENTATION)
    kept = past.state_specs()
    unknown = _unknown_layers(text_config, {*recorder.specs, *recorder.borrowed, *kept})
    if unknown is not None and not recorder.problems:
        recorder.problems.append(unknown)
    _check_types(text_config, recorder, kept)
    _check_windows(text_config, recorder)
    if recorder.problems:
        raise UnsupportedModel(
            f"{model_name(config)} cannot be served exactly: {'; '.join(recorder.problems)}"
        )
    return ModelLayers(recorder.specs, recorder.borrowed, past.asked_past_len, kept, tuple(past.keepers))


def run_probe(
    model: Any, past: ProbePast, positions: Sequence[int] | None = None, *, use_cache: bool = True
) -> None:
    """Run a few tokens through the model; without `positions` two of them, behind `past`.

    Linear layers return zeros: shapes, arguments and masks do not depend on them.

    Args:
        use_cache: what the model is told; some would then take only a cache of their own.

    Raises:
        UnsupportedModel: the pass does not go through.
    """
    name = model_name(model.config)
    device = next(model.parameters()).device
    places = torch.tensor(positions or range(past.start, past.start + NUM_TOKENS), device=device)[None]
    accepted = accepted_arguments(model)
    extra: dict[str, Any] = {"position_ids": places} if "position_ids" in accepted else {}
    extra[past_argument(accepted)] = past
    try:
        with torch.inference_mode(), without_products(model):
            model(input_ids=torch.ones_like(places), use_cache=use_cache, **extra)
    except KeepsState as error:
        raise UnsupportedModel(f"{name} keeps {error}, which kvchat does not hold") from error
    except Exception as error:  # whatever a model says to a cache that is not its own
        raise UnsupportedModel(f"{name} does not run on a foreign cache: {error!r}"[:300]) from error


def probe_gathered_layers(model: nn.Module) -> ModelLayers:
    """Return what each layer gives its cache, of a model that attends by itself to what its cache returns.

    Such a model applies windows itself, so every layer keeps all tokens.

    Raises:
        UnsupportedModel: a layer keeps something other than keys, values and the inputs of convolutions.
    """
    config: Any = model.config
    past = ProbePast(0)
    with past.watching(model):
        run_probe(model, past)
    if any(kind == "rec" for _, kind, _ in past.states):
        raise UnsupportedModel(f"{model_name(config)} keeps a recurrent state, and attends by itself")
    specs = {
        layer: _spec(rows_of(key), rows_of(value), VisibleRange())
        for layer, (key, value) in past.updates.items()
    }
    if (problem := _unknown_layers(config.get_text_config(), specs)) is not None:
        raise UnsupportedModel(f"{model_name(config)}: {problem}")
    return ModelLayers(specs, {}, states=past.state_specs())


def _unknown_layers(text_config: Any, known: Collection[int]) -> str | None:
    """Say which layers keep something of which is not known what it is; None: there are none."""
    kinds = getattr(text_config, "layer_types", None) or [""] * text_config.num_hidden_layers
    missing = [layer for layer, kind in enumerate(kinds) if kind not in KEEPS_NOTHING and layer not in known]
    if not missing:
        return None
    return f"layers {missing} keep something other than keys and values, which kvchat does not hold"


def _check_types(text_config: Any, recorder: _Recorder, states: Collection[int]) -> None:
    """Refuse layers that attend in a way that two tokens do not show."""
    for layer, kind in enumerate(getattr(text_config, "layer_types", None) or ()):
        if layer in recorder.specs and layer not in states and kind not in ATTENTION_TYPES | KEEPS_NOTHING:
            recorder.problems.append(f"layer {layer} is of type {kind}")


def _check_windows(text_config: Any, recorder: _Recorder) -> None:
    """Refuse layers whose own cache would forget what their masks let them see."""
    kinds, arguments = get_layer_types_and_kwargs(text_config)
    per_layer = arguments if isinstance(arguments, list) else [arguments] * len(kinds)  # older: one for all
    for layer, (kind, argument) in enumerate(zip(kinds, per_layer, strict=True)):
        window, spec = argument.get("sliding_window"), recorder.specs.get(layer)
        if kind not in BOUNDED_TYPES or window is None or spec is None:
            continue
        if window < 2:
            raise Contradiction(
                f"{model_name(text_config)} declares a window of {window} tokens in layer {layer}, which its "
                "own cache takes for all tokens"
            )
        if window <= recorder.start and spec.max_visible is None:
            raise Contradiction(
                f"{model_name(text_config)} sees all tokens in layer {layer}, but declares it of type {kind} "
                f"with {window} tokens: by itself it answers differently with its cache and without"
            )


def model_name(config: Any) -> str:
    names = getattr(config, "architectures", None) or [config.model_type]
    return str(names[0])
