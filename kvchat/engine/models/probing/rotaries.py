"""Rotary embedding of each layer's keys, found by trying the model's own ones on keys that it computed.

A few tokens run through the model twice, with all positions 0 and with others. No layer attends to anything
meanwhile, so both times the same keys are rotated. Dimensions: n tokens, H_kv heads, D head size.
"""

from collections.abc import Collection, Iterator
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from kvchat.engine.formats.attention_metadata import AttentionCall
from kvchat.engine.formats.shadow.rotary import CosinesAndSines, Rotary
from kvchat.engine.models.hook import attach
from kvchat.engine.models.probing.attention_probe import model_name
from kvchat.engine.models.probing.decoder_structure import rotary_options
from kvchat.errors import UnsupportedModel

POSITIONS = (1, 3, 11, 40, 63, 200)
_NAME = "RotaryEmbedding"


class _Recorder:
    """Notes keys, and which layers score in a way that a shadow does not."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.problems: dict[int, str] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.keys[layer] = key
        if call.softcap is not None or call.sinks is not None:
            self.problems[layer] = "bounds its scores" if call.sinks is None else "has attention sinks"
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


@torch.inference_mode()
def layer_rotaries(module: nn.Module, layers: Collection[int]) -> dict[int, Rotary]:
    """Return the embedding of the keys of each of `layers`.

    Raises:
        UnsupportedModel: a layer's keys are turned in an unknown way, or it scores in a way of its own.

    Effect:
        Leaves a recorder attached to the model; a forward pass that is made later replaces it.
    """
    before, after = (_keys(module, positions) for positions in ([0] * len(POSITIONS), POSITIONS))
    for layer in sorted(layers):
        if problem := after.problems.get(layer):
            raise UnsupportedModel(
                f"layer {layer} of {model_name(module.config)} {problem}: it has no shadow; use "
                "--cache-format exact"
            )
    sources = [*_sources(module), _unturned]
    found = {layer: _rotary(layer, before.keys[layer], after.keys[layer], sources) for layer in layers}
    alike: dict[tuple[int, str], Rotary] = {}  # of layers that turn alike there is one, with what it keeps
    return {
        layer: alike.setdefault((id(rotary.source), rotary.layout), rotary) for layer, rotary in found.items()
    }


def _keys(module: Any, positions: Collection[int]) -> _Recorder:
    recorder = _Recorder()
    attach(module, recorder)
    device = next(module.parameters()).device
    places = torch.tensor(list(positions), device=device)[None]
    ids = torch.arange(places.numel(), device=device)[None]
    module(input_ids=ids, position_ids=places, use_cache=False)
    return recorder


def _rotary(layer: int, at_zero: Tensor, turned: Tensor, sources: Collection[CosinesAndSines]) -> Rotary:
    places = torch.tensor(POSITIONS, device=at_zero.device)
    zeros = torch.zeros_like(places)
    reasons: list[str] = []
    for source in sources:
        try:
            # At position 0 an embedding turns nothing, but may scale.
            before = Rotary(source).unturned(at_zero, zeros)
            return Rotary.found(source, before, turned, places)
        except UnsupportedModel as error:
            reasons += [str(error)] if str(error) not in reasons else []
    raise UnsupportedModel(f"layer {layer}: {'; '.join(reasons)}; use --cache-format exact")


def _sources(module: nn.Module) -> Iterator[CosinesAndSines]:
    """Yield every way in which the model's own embeddings may be called."""
    for embedding in module.modules():
        is_rotary = _NAME in type(embedding).__name__
        if is_rotary and "position_ids" in signature(embedding.forward).parameters:
            for options in rotary_options(embedding):
                yield partial(_turn, embedding, options)


def _turn(embedding: Any, options: dict[str, str], positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return what an embedding returns, where the positions lie; it computes where its own numbers do."""
    own = next(embedding.buffers(), positions)
    cosines, sines = embedding(torch.empty(1, device=own.device), positions.to(own.device), **options)
    return cosines.to(positions.device), sines.to(positions.device)


def _unturned(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of layers that turn nothing."""
    ones = torch.ones(*positions.shape, 2, device=positions.device)
    return ones, torch.zeros_like(ones)
