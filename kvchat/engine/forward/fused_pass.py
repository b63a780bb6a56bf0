"""A forward pass that computes sequences of a step by fused decoder layers, or by the model.

Which way a token goes follows from how many of its own sequence the step computes: decoded tokens and drafts
are short, and prompts are long but for their last few tokens (how a prompt is cut may depend on what else a
step has to do). Where the fused layers multiply many rows as fast as anybody, none is too long for them, and
a token has the same bits in a prompt and after one. Where they do so with rounded inputs, to bfloat16 or over
quantized weights to 8 bits, they compute long ones too, but rounded. Over quantized caches a sequence with
more tokens than a block has is long even there: what becomes old with a step of a short one was stored in
earlier steps, and is quantized before the fused layers run.
A sequence that looks at what is before it through a shadow, or whose queries are watched, is long however
short: fused layers know neither.
Dimensions: T rows, R sampling rows, V vocabulary, P block size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import AttentionMetadata, LayerPool
from kvchat.engine.formats.quantized.attend import old_blocks, quantized_pool
from kvchat.engine.formats.recurrent.parts import LayerStates, StateMetadata, layer_states
from kvchat.engine.forward.runner import ForwardPass, InputBatch
from kvchat.engine.kernels.decoder_layers.args import (
    DecoderLayer,
    FusedLayerPool,
    FusedStatePool,
    GroupRows,
    RopeTable,
    StateRows,
    StepRows,
)
from kvchat.engine.kernels.decoder_layers.native import NativeLayers, step_bytes
from kvchat.engine.kernels.paged_attention.args import SequenceSpan, SpanTable
from kvchat.engine.kernels.paged_attention.native import span_table
from kvchat.engine.kernels.quantized_attention import quantize_blocks
from kvchat.engine.kernels.quantized_linear import QuantizedWeight
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.probing.decoder_structure import Decoder, Rotary

MOST_ROWS = 16
"""Sequences with at most so many tokens in a step are short."""
_LEAST_POSITIONS = 1024
"""Of the first tables of cosines and sines."""


class FusedPools:
    """Where consecutive layers keep keys and values, or states, with groups by number.

    Args:
        layers: the pool of each layer; None: it keeps nothing.
    """

    def __init__(self, layers: Sequence[LayerPool | LayerStates | None]) -> None:
        attending = [layer for layer in layers if isinstance(layer, LayerPool)]
        self.groups = sorted({layer.group for layer in attending})
        self.states = sorted({layer.group for layer in layers if isinstance(layer, LayerStates)})
        self.old: dict[GroupId, list[LayerPool]] = {}
        """Groups of quantized blocks, each with its layers."""
        for layer in attending:
            if layer.derived is not None:
                self.old.setdefault(layer.derived.group, []).append(layer)
        self.numbered = [None if layer is None else self._numbered(layer) for layer in layers]

    def _numbered(self, layer: LayerPool | LayerStates) -> FusedLayerPool | FusedStatePool:
        if isinstance(layer, LayerStates):
            inputs, states = layer.tensors["conv", 0], layer.tensors.get(("rec", 0))
            return FusedStatePool(inputs=inputs, states=states, group=self.states.index(layer.group))
        pool = FusedLayerPool(keys=layer.keys, values=layer.values, group=self.groups.index(layer.group))
        if layer.derived is None:
            return pool
        old = list(self.old).index(layer.derived.group)
        return replace(pool, quantized=quantized_pool(layer.derived), old=old)

    def quantize_blocks(self, groups: Mapping[GroupId, AttentionMetadata]) -> None:
        """Quantize the blocks that become old with a step, which no token of the step may belong to."""
        for group, layers in self.old.items():
            step = old_blocks(groups[group])
            for layer in layers if len(step.sources) else ():
                assert layer.derived is not None
                quantize_blocks(layer.keys, layer.values, quantized_pool(layer.derived), step)


@dataclass(frozen=True, slots=True, eq=False)
class Fusion:
    """Layers of a model as they were matched, and what is around them; on any pool.

    Args:
        decoder: the model around its layers.
        layers: as they were matched.
        rotaries: all rotary embeddings, by the numbers that layers name.
        num_positions: that these may be asked for: behind the longest context some change all others.
        factor: of what the embedding gives.
        may_round: whether prompts may be computed with products of rounded inputs.
    """

    decoder: Decoder
    layers: Sequence[DecoderLayer]
    rotaries: Sequence[Rotary]
    num_positions: int
    factor: float
    may_round: bool = True

    def on(self, pool: DevicePool) -> "FusedLayers":
        """Return the layers with their keys and values in `pool`."""
        return FusedLayers(self, dict(enumerate(self.layers)), pool)

    def first_of_each_kind(self) -> list[int]:
        """Return the first layer of each kind: of other parts, other sizes, or another reach."""
        kinds = [layer.kind for layer in self.layers]
        return [number for number, kind in enumerate(kinds) if kinds.index(kind) == number]

    def first(self, number: int, offset: int) -> "Fusion":
        """Return the first layers and what is behind the last, for texts that begin at position `offset`."""
        decoder = replace(self.decoder, layers=self.decoder.layers[:number])
        rotaries = [partial(_moved, rotary, offset) for rotary in self.rotaries]
        fusion = replace(self, decoder=decoder, layers=self.layers[:number], rotaries=rotaries)
        return replace(fusion, num_positions=self.num_positions - offset)

    @property
    def is_quantized(self) -> bool:
        linears = [linear for layer in self.layers for linear in layer.linears]
        return any(isinstance(linear.weight, QuantizedWeight) for linear in linears)

    def stand_before(self, own: ForwardPass, pool: DevicePool) -> "FusedPass":
        """Return a pass that computes sequences by fused layers, and by `own` what they do not."""
        is_quantized = any(layer.derived is not None for layer in pool.layers.values())
        layers = self.on(pool)
        most_rows = None if layers.suits_prompts else MOST_ROWS
        if is_quantized:
            # A block becomes old when its successor is full. With at most P tokens in the step it was full
            # before.
            most_rows = min(MOST_ROWS, pool.block_size)
        rounds_long = self.may_round and layers.suits_rounded and not is_quantized
        return FusedPass(own, layers, most_rows, rounds_long=rounds_long)

    def step_bytes(self, num_rows: int, dtype: torch.dtype) -> int:
        """Return what a step of so many rows allocates: in the layers, and for what they are given.

        Args:
            dtype: of the pool.
        """
        given = self.embed(torch.zeros(1, dtype=torch.int64))
        return step_bytes(self.layers, num_rows, dtype) + 2 * num_rows * given.nbytes

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return what the first layer gets of tokens [T], float32 [T, hidden]."""
        embedded: Tensor = self.decoder.embed(token_ids).float()
        return embedded if self.factor == 1.0 else embedded * self.factor


def _moved(rotary: Rotary, offset: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    return rotary(positions + offset)


class FusedLayers:
    """The way from token ids to logits past the model's own modules.

    Args:
        fusion: the model around the layers.
        layers: those that are computed, by the numbers of their pools.

    Raises: ValueError: there is no kernel for them.
    """

    def __init__(self, fusion: Fusion, layers: Mapping[int, DecoderLayer], pool: DevicePool) -> None:
        kept: dict[int, LayerPool | LayerStates] = {**pool.layers, **layer_states(pool.states)}
        decoder = fusion.decoder
        self._fusion = fusion
        self._pools = FusedPools([kept.get(number) for number in layers])
        self._layers = NativeLayers(
            list(layers.values()), self._pools.numbered, decoder.last_norm, decoder.head
        )
        self._num_positions = 0
        self.suits_prompts = self._layers.suits_prompts
        """Whether nobody computes many rows faster."""
        self.suits_rounded = self._layers.suits_rounded
        """Whether nobody computes many rows faster with products of rounded inputs."""

    def logits(self, row: InputBatch, *, is_rounded: bool = False) -> Tensor:
        """Write keys and values of every token and return the logits [R, V] of the sampling rows.

        Args:
            is_rounded: see `NativeLayers.logits`.

        Effect:
            First quantizes what becomes old with the step, which no token of the step may belong to.
        """
        self._pools.quantize_blocks(row.groups)
        hidden = self._fusion.embed(row.token_ids)
        return self._capped(self._layers.logits(hidden, self.step(row), is_rounded=is_rounded))

    def logits_behind(self, hidden: Tensor, row: InputBatch) -> Tensor:
        """Return the logits [R, V] that the last layer makes of `hidden` [T, hidden], which it overwrites."""
        return self._capped(self._layers.logits(hidden, self.step(row), first=-1))

    def _capped(self, logits: Tensor) -> Tensor:
        decoder = self._fusion.decoder
        if decoder.logits_factor != 1.0:
            logits = logits.mul_(decoder.logits_factor)
        if decoder.softcap is not None:
            logits = logits.div_(decoder.softcap).tanh_().mul_(decoder.softcap)
        return logits

    def hidden(self, hidden: Tensor, row: InputBatch, layer: int, *, is_rounded: bool = False) -> Tensor:
        """Return what one layer makes of `hidden` [T, hidden]."""
        step = self.step(row)
        return self._layers.hidden(hidden, step, slice(layer, layer + 1), is_rounded=is_rounded)

    def step(self, row: InputBatch) -> StepRows:
        last = int(row.positions.max())
        if last >= self._num_positions:
            self._grow_ropes(last + 1)
        groups = [_group_rows(row.groups[group]) for group in self._pools.groups]
        old = [old_blocks(row.groups[group]).blocks for group in self._pools.old]
        states = [_state_rows(row.groups[group]) for group in self._pools.states]
        return StepRows(positions=row.positions, groups=groups, sampling=row.sampling, old=old, states=states)

    def _grow_ropes(self, num_positions: int) -> None:
        """Give layers cosines and sines of so many positions, or some more."""
        rounded = max(_LEAST_POSITIONS, 1 << (num_positions - 1).bit_length())
        self._num_positions = max(num_positions, min(rounded, self._fusion.num_positions))
        positions = torch.arange(self._num_positions)[None]
        turns = (rotary(positions) for rotary in self._fusion.rotaries)
        self._layers.take_ropes(
            [
                RopeTable(cosines=cosines[0].float().contiguous(), sines=sines[0].float().contiguous())
                for cosines, sines in turns
            ]
        )


def _group_rows(step: AttentionMetadata) -> GroupRows:
    table = step.prepared if isinstance(step.prepared, SpanTable) else span_table(step.spans)
    return GroupRows(slots=step.slots, spans=step.spans, table=table.rows)


def _state_rows(step: AttentionMetadata) -> StateRows:
    """Return how sequences go on from states: part after part, where one begins with what another left."""
    assert isinstance(step, StateMetadata)
    runs = []
    for part in step.parts:
        num_tokens = part.shape[1]
        reads = [-1] * part.shape[0] if part.reads is None else part.reads.tolist()
        for row, read, write in zip(
            part.rows[::num_tokens].tolist(), reads, part.writes.tolist(), strict=True
        ):
            runs.append([row, row, row + num_tokens, read, write])
    runs.sort()
    offsets: list[int] = []
    for number, run in enumerate(runs):
        last = runs[number - 1]
        if offsets and last[2] == run[1] and last[4] == run[3]:
            run[0], run[3] = last[0], last[3]
        else:
            offsets.append(number)
    return StateRows(runs=torch.tensor(runs), offsets=torch.tensor([*offsets, len(runs)]))


class FusedPass:
    """Stands before a model's own pass.

    Args:
        most_rows: sequences with at most so many tokens in a step are short; None: all are.
        rounds_long: whether fused layers compute long ones too, with products of rounded inputs.
    """

    def __init__(
        self, own: ForwardPass, fused: FusedLayers, most_rows: int | None, *, rounds_long: bool
    ) -> None:
        self.device = own.device
        self._own = own
        self._fused = fused
        self._most_rows = most_rows
        self._long = partial(fused.logits, is_rounded=True) if rounds_long else own.logits

    def logits(self, row: InputBatch) -> Tensor:
        ways = self._ways(row)
        if len(ways) < 2:
            return next(iter(ways), self._fused.logits)(row)
        out: Tensor | None = None
        for logits, numbers in ways.items():
            part, places = part_of(row, numbers)
            found = logits(part)
            if out is None:
                out = found.new_empty(len(row.sampling), found.shape[-1], dtype=torch.float32)
            out[places] = found.float()
        assert out is not None
        return out

    def _ways(self, row: InputBatch) -> Mapping[Callable[[InputBatch], Tensor], list[int]]:
        """Return who computes logits, and which sequences of a step."""
        special = _special(row)
        ways: dict[Callable[[InputBatch], Tensor], list[int]] = {}
        for number, span in enumerate(_spans(row)):
            if number in special:
                way = self._own.logits
            elif self._most_rows is None or span.q_end - span.q_start <= self._most_rows:
                way = self._fused.logits
            else:
                way = self._long
            ways.setdefault(way, []).append(number)
        return ways


def _spans(row: InputBatch) -> Sequence[SequenceSpan]:
    """Return the sequences of a step."""
    return next((step.spans for step in row.groups.values() if step.spans), ())


def _special(row: InputBatch) -> set[int]:
    """Return the sequences that answer from shadows in some layers, or whose queries are watched."""
    return {
        number
        for step in row.groups.values()
        for number, span in enumerate(step.spans)
        if span.shadow is not None or span.watched is not None
    }


def part_of(row: InputBatch, numbers: Sequence[int]) -> tuple[InputBatch, Tensor]:
    """Return some of a row's sequences as a row of their own, and the places of their logits among all."""
    spans = _spans(row)
    kept = [spans[number] for number in numbers]
    index = torch.cat([torch.arange(span.q_start, span.q_end) for span in kept])
    places = torch.isin(row.sampling, index).nonzero()[:, 0]
    groups = {group: step.part(numbers, index) for group, step in row.groups.items()}
    part = InputBatch(
        token_ids=row.token_ids[index],
        positions=row.positions[index],
        groups=groups,
        sampling=torch.searchsorted(index, row.sampling[places]),
    )
    return part, places
