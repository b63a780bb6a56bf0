"""Route selection: how a model runs on kvchat's cache, tried in order and proven at load.

By its latents: as by its attention, where layers hand over latents that are kept and attended to as they are.
By its attention: one packed pass over many sequences, through the attention that transformers lets us
replace. By its cache: one pass per sequence, in which the model attends by itself to keys and values that its
cache gathers. A model that neither runs exactly is refused, with what was found.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from kvchat.engine.formats.format_table import PagedAttention
from kvchat.engine.formats.recurrent.parts import layer_states
from kvchat.engine.formats.recurrent.spec import StateSpec, piece_of
from kvchat.engine.formats.spec import Group, group_layers
from kvchat.engine.forward.model_pass import PackedPass, SequencePass
from kvchat.engine.forward.runner import ForwardPass
from kvchat.engine.forward.self_check import require_own_logits
from kvchat.engine.forward.self_check_cache import SelfCheckCache, name_of
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.cache_stand_ins import PackedPast
from kvchat.engine.models.hook import IMPLEMENTATION, set_implementation
from kvchat.engine.models.latent import expand_latents, keep_latents, latent_layers
from kvchat.engine.models.load import LoadedModel
from kvchat.engine.models.native_scans import scans_natively
from kvchat.engine.models.probing.attention_probe import (
    Contradiction,
    ModelLayers,
    model_name,
    probe_gathered_layers,
    probe_layers,
)
from kvchat.engine.models.probing.latent_rope_layout import rope_layouts
from kvchat.engine.models.state_adapters import has_adapters
from kvchat.engine.models.state_layers import SequenceStates, StatePast, attach_states
from kvchat.errors import UnsupportedModel

OWN_ATTENTION = "eager"
"""The attention of transformers that every model has and that masks and biases nothing differently."""

log = logging.getLogger(__name__)


class Route(StrEnum):
    """By what a model runs on the cache."""

    LATENT = "latent"
    ATTENTION = "attention"
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model as it is run: its layers in groups, and how its forward pass is made on a pool."""

    route: Route
    groups: tuple[Group, ...]
    make_pass: Callable[[DevicePool], ForwardPass]


def choose_route(loaded: LoadedModel, checks: SelfCheckCache | None = None) -> ModelPlan:
    """Return the first route that computes what the model itself computes.

    Args:
        checks: what is known of the model; None: nothing.

    Raises:
        UnsupportedModel: none does; the message says why.

    Effect:
        Runs a few short passes; leaves the model's attention set for the route.
    """
    _refuse_sparse(loaded)
    checks = checks or SelfCheckCache()
    reasons: list[str] = []
    by_attention = (_by_latents, _by_attention) if latent_layers(loaded.module) else (_by_attention,)
    for try_route in (*by_attention, _step_by_step, _by_cache):
        try:
            served = try_route(loaded)
            name = name_of("own logits", served.route, served.groups)
            if not checks.find(name):
                require_own_logits(loaded, served.groups, served.make_pass)
                checks.keep(name, True)
        except Contradiction:
            raise
        except UnsupportedModel as error:
            reasons += [str(error)] if str(error) not in reasons else []
            log.info("%s: %s", try_route.__name__, error)
        else:
            return served
    raise UnsupportedModel("; and ".join(reasons) + ". Choose another model, or `-m starter`.")


def _refuse_sparse(loaded: LoadedModel) -> None:
    """Refuse what a short text does not show: attention that skips blocks of long ones."""
    config: Any = loaded.module.config
    if getattr(config.get_text_config(), "attention_type", None) == "block_sparse":
        raise UnsupportedModel(f"{model_name(config)} skips blocks of tokens in long texts")


def _by_latents(loaded: LoadedModel) -> ModelPlan:
    module = loaded.module
    latents = latent_layers(module)
    if not set_implementation(module, IMPLEMENTATION):
        raise UnsupportedModel(f"{model_name(module.config)} does not let its attention be replaced")
    keep_latents(module)
    layouts = rope_layouts(module, latents)
    latents = {layer: replace(latent, rope_layout=layouts[layer]) for layer, latent in latents.items()}
    layers = probe_layers(module, loaded.max_context, latents)
    if layers.borrowed or layers.asks_past_len:
        raise UnsupportedModel(f"{model_name(module.config)} keeps latents in a way of its own")
    groups = group_layers(layers.specs, states=_computed(layers))
    return ModelPlan(
        Route.LATENT,
        groups,
        lambda pool: PackedPass(
            module, PagedAttention(pool.layers, projections=latents), _past(layers, groups, pool)
        ),
    )


def _step_by_step(loaded: LoadedModel) -> ModelPlan:
    """For layers that take no state where they are given several tokens."""
    return _by_attention(loaded, is_stepwise=True)


def _by_attention(loaded: LoadedModel, *, is_stepwise: bool = False) -> ModelPlan:
    module = loaded.module
    expand_latents(module)
    if not set_implementation(module, IMPLEMENTATION) and not has_adapters(module):
        raise UnsupportedModel(f"{model_name(module.config)} does not let its attention be replaced")
    layers = probe_layers(module, loaded.max_context)
    states = _computed(layers, is_stepwise=is_stepwise)
    if is_stepwise and not states:
        raise UnsupportedModel(f"{model_name(module.config)} keeps no state")

    def make_pass(pool: DevicePool) -> PackedPass:
        past = _past(layers, groups, pool)
        return PackedPass(module, PagedAttention(pool.layers, layers.borrowed), past)

    groups = group_layers(layers.specs, layers.borrowed, states)
    return ModelPlan(Route.ATTENTION, groups, make_pass)


def _computed(layers: ModelLayers, *, is_stepwise: bool = False) -> dict[int, StateSpec]:
    """Return the states of layers with how they are computed: by kernels, unless it is one by one."""
    if not is_stepwise and _is_sequential(layers):
        return {layer: replace(spec, piece=1) for layer, spec in layers.states.items()}
    return {layer: replace(spec, is_stepwise=is_stepwise) for layer, spec in layers.states.items()}


def _is_sequential(layers: ModelLayers) -> bool:
    """Return whether kernels compute all states."""
    specs = [layers.states.get(getattr(keeper, "layer_idx", -1)) for keeper in layers.keepers]
    return all(
        spec is not None and scans_natively(keeper, spec)
        for keeper, spec in zip(layers.keepers, specs, strict=True)
    )


def _past(layers: ModelLayers, groups: Sequence[Group], pool: DevicePool) -> PackedPast | None:
    """Return what answers layers that ask their cache for something; None: none does."""
    if layers.states:
        past = StatePast(layer_states(pool.states))
        attach_states(layers.keepers, past, is_sequential=piece_of(groups) == 1)
        return past
    return PackedPast() if layers.asks_past_len else None


def _by_cache(loaded: LoadedModel) -> ModelPlan:
    module = loaded.module
    set_implementation(module, OWN_ATTENTION)
    layers = probe_gathered_layers(module)
    states = {layer: replace(spec, piece=1, is_stacked=False) for layer, spec in layers.states.items()}
    return ModelPlan(
        Route.CACHE,
        group_layers(layers.specs, states=states),
        lambda pool: SequencePass(module, SequenceStates(layer_states(pool.states), pool.layers)),
    )
