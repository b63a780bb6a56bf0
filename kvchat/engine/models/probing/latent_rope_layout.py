"""Order of the numbers in a latent layer's rope key, measured on the layer's own rotary embedding.

Implementations of one model agree on which numbers turn together and not on where they put them; attention is
the same for all of them, the cached bytes are not. So unit vectors run through each layer's own rotary
embedding: at position 0 nothing turns, which shows the order, and at position 1 those that turn together mix.
Dimensions: d_r size of the rope key.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from kvchat.engine.formats.attention_metadata import AttentionCall
from kvchat.engine.models.cache_stand_ins import ProbePast
from kvchat.engine.models.hook import IMPLEMENTATION, PROBE_IMPLEMENTATION, attach, set_implementation
from kvchat.engine.models.latent import LatentLayer, latent_modules
from kvchat.engine.models.probing.attention_probe import model_name, run_probe
from kvchat.errors import UnsupportedModel

INTERLEAVED = "interleaved"
"""Neighbours turn together and stay where they are (DeepSeek's own code, DeepSeek-V2 in transformers)."""
FIRSTS_THEN_SECONDS = "firsts then seconds"
"""Neighbours turn together and are parted into two halves (DeepSeek-V3 in transformers)."""
HALVES = "halves"
"""Each number of the first half turns with its counterpart in the second."""
UNTURNED = "unturned"
"""Nothing turns (Kimi-Linear, whose other layers know positions)."""

_LATENTS_AND_ROPE = "kv_a_proj_with_mqa"
"""The linear layer that computes a token's latent and, behind it, its rope key."""


def rope_layouts(model: nn.Module, latents: Mapping[int, LatentLayer]) -> dict[int, str]:
    """Return the order of each latent layer's rope key.

    Raises:
        UnsupportedModel: a layer turns its rope key in a way that is none of the known ones.

    Effect:
        Leaves a stub attached to the model; `attach` replaces it.
    """
    matrices = _rotations(model, latents)
    found = {}
    for layer, latent in latents.items():
        at_zero, at_one = matrices[layer].double().split(latent.rope_dim)
        layout = _layout(at_zero, at_one)
        if layout is None:
            raise UnsupportedModel(
                f"{model_name(model.config)} turns the rope key of layer {layer} in an order that is unknown"
            )
        found[layer] = layout
    return found


class _Blind:
    """Stands behind every attention module and attends to nothing."""

    def __init__(self, latents: Mapping[int, LatentLayer]) -> None:
        self._latents = latents

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        latent = self._latents.get(layer)
        dim = latent.value_dim if latent else value.shape[2]
        return query.new_zeros(query.shape[0], query.shape[1], dim)


def _rotations(model: nn.Module, latents: Mapping[int, LatentLayer]) -> dict[int, Tensor]:
    """Return what becomes of unit vectors at position 0, and then at position 1, by layer [2 d_r, d_r]."""
    attach(model, _Blind(latents))
    past = ProbePast(0)
    longest = max(latent.rope_dim for latent in latents.values())
    set_implementation(model, PROBE_IMPLEMENTATION)  # some layers want a mask, whatever they see
    with ExitStack() as hooks:
        for module in latent_modules(model):
            projection = getattr(module, _LATENTS_AND_ROPE, None)
            if not isinstance(projection, nn.Module):
                raise UnsupportedModel(f"{model_name(model.config)} computes its latents in a way of its own")
            hook = _unit_vectors(latents[module.layer_idx], longest)
            hooks.enter_context(projection.register_forward_hook(hook))
        hooks.enter_context(past.watching(model))
        run_probe(model, past, [0] * longest + [1] * longest)
    set_implementation(model, IMPLEMENTATION)
    missing = sorted(latents.keys() - past.updates.keys())
    if missing:
        raise UnsupportedModel(f"{model_name(model.config)} keeps nothing in its latent layers {missing}")
    return {
        layer: past.updates[layer][1][0, 0].unflatten(0, (2, longest))[:, : latent.rope_dim].flatten(0, 1)
        for layer, latent in latents.items()
    }


def _unit_vectors(latent: LatentLayer, longest: int) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def replace(projection: nn.Module, inputs: Any, out: Tensor) -> Tensor:
        units = torch.eye(longest, latent.rope_dim, dtype=out.dtype, device=out.device).repeat(2, 1)
        out = out.clone()
        out[0, :, latent.rank :] = units
        return out

    return replace


def _layout(at_zero: Tensor, at_one: Tensor) -> str | None:
    """Return the name of an order, None for an unknown one. Both are [d_r, d_r], by unit vector."""
    dim = len(at_zero)
    if torch.equal(at_zero, at_one) and torch.equal(at_zero, torch.eye(dim).to(at_zero)):
        return UNTURNED
    half = torch.arange(dim // 2)
    neighbours = torch.stack([2 * half, 2 * half + 1], dim=1)
    counterparts = torch.stack([half, half + dim // 2], dim=1)
    known = (
        (INTERLEAVED, neighbours, neighbours),
        (FIRSTS_THEN_SECONDS, neighbours, counterparts),
        (HALVES, counterparts, counterparts),
    )
    fitting = (name for name, *order in known if _is_order(at_zero, at_one, *order))
    return next(fitting, None)


def _is_order(at_zero: Tensor, at_one: Tensor, turning: Tensor, places: Tensor) -> bool:
    """Whether the numbers `turning` [d_r / 2, 2] turn together and come to stand at `places`."""
    order = torch.zeros_like(at_zero)
    order[turning.flatten(), places.flatten()] = 1
    mixed = torch.zeros_like(at_one)
    for first, second in ((0, 0), (0, 1), (1, 0), (1, 1)):
        mixed[turning[:, first], places[:, second]] = 1
    return torch.equal((at_zero != 0).to(order), order) and torch.equal((at_one != 0).to(mixed), mixed)
