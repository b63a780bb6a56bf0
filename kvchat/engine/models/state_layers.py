"""Layers with a recurrent state in an unmodified model, called sequence by sequence.

All other modules compute a step's tokens in one row. A module that keeps a state is called once for each
part of the row (`StatePart`), with the states of its sequences: it asks the cache for them, and gives new
ones back, as it does when the model runs by itself. Dimensions: B sequences, n tokens of each, N blocks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import AttentionMetadata
from kvchat.engine.formats.full.transformers_cache import TransformersCache
from kvchat.engine.formats.recurrent.parts import LayerStates, StateMetadata, StatePart
from kvchat.engine.kernels.state_slots import StateSlots
from kvchat.engine.models.cache_stand_ins import Name, PackedPast
from kvchat.engine.models.native_scans import native_forward
from kvchat.engine.models.state_adapters import adapted_forward

_OWN = "kvchat_own_forward"


class _States(Cache):
    """A cache that has the states of one part of a step.

    Args:
        layers: the states of each layer that keeps one.
        arguments: of the cache that has keys and values.
    """

    def __init__(self, layers: Mapping[int, LayerStates], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._layers = layers
        self._groups: Mapping[GroupId, AttentionMetadata] = {}
        self._number: int | None = None
        self._given: dict[Name, Tensor] = {}

    @property
    def parts(self) -> Sequence[StatePart]:
        """Parts of the step that is computed, by those of any group; none outside of a step."""
        own = self._groups.get(next(iter(self._layers.values())).group)
        return own.parts if isinstance(own, StateMetadata) else ()

    @contextmanager
    def part(self, number: int) -> Iterator[None]:
        """Answer one layer for one part, and keep the states that it gives when it is through."""
        self._number, self._given = number, {}
        try:
            yield
            for (layer, kind, index), tensor in self._given.items():
                self._layers[layer].tensors[kind, index][self._part(layer).writes] = tensor
        finally:
            self._number, self._given = None, {}

    def _part(self, layer: int) -> StatePart:
        own = self._groups[self._layers[layer].group]
        assert isinstance(own, StateMetadata)
        assert self._number is not None, "a layer asks for its state outside of a part"
        return own.parts[self._number]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._state((layer_idx, "conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._state((layer_idx, "rec", state_idx))

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Keep the last inputs [B, C, K] of a convolution; return them with those before [B, C, K + n]."""
        name = layer_idx, "conv", state_idx
        before = self._state(name)
        size = self._layers[layer_idx].tensors["conv", state_idx].shape[-1]
        if before is None:
            whole = nn.functional.pad(conv_states, (max(0, size - conv_states.shape[-1]), 0))
        else:  # channel beside channel, as projections have them
            whole = torch.cat((before.mT, conv_states.mT), dim=1).mT
        self._given[name] = whole[..., -size:]
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        self._given[layer_idx, "rec", state_idx] = recurrent_states
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return self._number is not None and self.parts[self._number].reads is not None

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def _state(self, name: Name) -> Tensor | None:
        """Return a copy of a tensor as it is before this part, or as the layer has left it; None: there are
        no tokens before it. A copy, since some layers change it in place.
        """
        layer, kind, number = name
        reads = self._part(layer).reads
        if name not in self._given and reads is not None:
            self._given[name] = self._layers[layer].tensors[kind, number][reads]
        return self._given.get(name)


class StatePast(_States, PackedPast):
    """The cache of a packed pass through a model whose layers keep states."""

    def __init__(self, layers: Mapping[int, LayerStates]) -> None:
        super().__init__(layers)
        self._has_slots: set[int] = set()

    def begin(self, positions: Tensor, groups: Mapping[GroupId, AttentionMetadata]) -> None:
        super().begin(positions, groups)
        self._groups = groups

    def end(self) -> None:
        self._groups = {}

    def give_slots(self, layer: int) -> None:
        """Let a layer find and leave what it accumulates by itself, in `slots`."""
        self._has_slots.add(layer)

    def slots(self, layer: int) -> StateSlots:
        part = self._part(layer)
        return StateSlots(self._layers[layer].tensors["rec", 0], part.reads, part.writes)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        if layer_idx in self._has_slots:
            reads = self._part(layer_idx).reads
            return None if reads is None else self._layers[layer_idx].tensors["rec", state_idx][:1]
        return super().get_recurrent_state(layer_idx, state_idx)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        if layer_idx in self._has_slots:
            return recurrent_states
        return super().update_recurrent_state(recurrent_states, layer_idx, state_idx)


class SequenceStates(_States, TransformersCache):
    """The cache of one sequence, which is one part, in a model that attends by itself."""

    def begin(self, step: Mapping[GroupId, AttentionMetadata], number: int) -> None:
        super().begin(step, number)
        self._groups = step

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length()


def attach_states(keepers: Sequence[nn.Module], past: StatePast, *, is_sequential: bool) -> None:
    """Let modules compute part by part with the states of `past`; replaces what was attached before.

    Args:
        is_sequential: by kernels, which find and leave what they accumulate.
    """
    for keeper in keepers:
        own = getattr(keeper, _OWN, None) or keeper.forward
        forward = adapted_forward(keeper, past) or own
        if is_sequential:
            layer: Any = keeper.layer_idx
            past.give_slots(layer)
            forward = native_forward(keeper, partial(past.slots, layer))
        setattr(keeper, _OWN, own)
        keeper.forward = _by_parts(past, forward, own)


def _by_parts(past: StatePast, forward: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer's `forward` for parts of a step; `own` is the model's, which runs by itself.

    It is a function and no object, so that a copy of the layer has it and no copy of all states.
    """

    def by_parts(*args: Any, **kwargs: Any) -> Any:
        parts = past.parts
        if not parts:  # the model runs by itself
            return own(*args, **kwargs)
        total = sum(part.rows.numel() for part in parts)
        outs = []
        for number, part in enumerate(parts):
            with past.part(number):
                rows = _rows_of(args, part, total), _rows_of(kwargs, part, total)
                outs.append(forward(*rows[0], **rows[1]))
        return _joined(outs, parts, total)

    return by_parts


def _rows_of(value: Any, part: StatePart, total: int) -> Any:
    """Return a part's rows [B, n, ...] of every tensor [1, total, ...]."""
    if isinstance(value, Tensor):
        is_row = value.ndim >= 2 and value.shape[:2] == (1, total)
        return value[0].index_select(0, part.rows).unflatten(0, part.shape) if is_row else value
    if isinstance(value, tuple | list):
        return type(value)(_rows_of(one, part, total) for one in value)
    if isinstance(value, dict):
        return {name: _rows_of(one, part, total) for name, one in value.items()}
    return value


def _joined(outs: Sequence[Any], parts: Sequence[StatePart], total: int) -> Any:
    """Return outputs [B, n, ...] of all parts as one row [1, total, ...]."""
    first = outs[0]
    if isinstance(first, tuple | list):
        return type(first)(
            _joined([out[number] for out in outs], parts, total) for number in range(len(first))
        )
    is_row = isinstance(first, Tensor) and all(
        tuple(out.shape[:2]) == part.shape for out, part in zip(outs, parts, strict=True)
    )
    if not is_row:
        return first  # a state, which nobody reads
    row = first.new_empty(total, *first.shape[2:])
    for out, part in zip(outs, parts, strict=True):
        row[part.rows] = out.flatten(0, 1)
    return row[None]
