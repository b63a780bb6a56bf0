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
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import AttentionMetadata, LayerPool
from kvchat.engine.formats.quantized.attend import old_blocks, quantized_pool
from kvchat.engine.formats.recurrent.parts import LayerStates, StateMetadata
from kvchat.engine.forward.runner import ForwardPass, InputBatch
from kvchat.engine.kernels.decoder_layers.args import (
    FusedLayerPool,
    FusedStatePool,
    GroupRows,
    RopeTable,
    StateRows,
    StepRows,
)
from kvchat.engine.kernels.decoder_layers.native import NativeLayers
from kvchat.engine.kernels.paged_attention.args import SequenceSpan, SpanTable
from kvchat.engine.kernels.paged_attention.native import span_table
from kvchat.engine.kernels.quantized_attention import quantize_blocks
from kvchat.engine.models.probing.decoder_structure import Rotary

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


class RopeTables:
    """Cosines and sines of all rotary embeddings of a model, for positions [0, num_positions).

    Args:
        most: positions that they ever hold: behind the longest context some embeddings change all others.
    """

    def __init__(self, rotaries: Sequence[Rotary], most: int) -> None:
        self._rotaries = rotaries
        self._most = most
        self.num_positions = 0
        self.tables: list[RopeTable] = []

    def grow(self, num_positions: int) -> None:
        """Make the tables hold so many positions, or some more."""
        rounded = max(_LEAST_POSITIONS, 1 << (num_positions - 1).bit_length())
        self.num_positions = max(num_positions, min(rounded, self._most))
        positions = torch.arange(self.num_positions)[None]
        self.tables = [
            RopeTable(cosines=cosines[0].float().contiguous(), sines=sines[0].float().contiguous())
            for cosines, sines in (rotary(positions) for rotary in self._rotaries)
        ]


class FusedLayers:
    """The way from token ids to logits past the model's own modules.

    Args:
        embed: token ids [T] → what the first layer gets [T, hidden], float32.
        softcap: bound of the logits, or None.
        logits_factor: of the logits.
    """

    def __init__(
        self,
        embed: Callable[[Tensor], Tensor],
        layers: NativeLayers,
        ropes: RopeTables,
        pools: FusedPools,
        softcap: float | None,
        logits_factor: float,
    ) -> None:
        self._embed = embed
        self._layers = layers
        self._ropes = ropes
        self._pools = pools
        self._softcap = softcap
        self._logits_factor = logits_factor
        self.suits_prompts = layers.suits_prompts
        """Whether nobody computes many rows faster."""
        self.suits_rounded = layers.suits_rounded
        """Whether nobody computes many rows faster with products of rounded inputs."""

    def logits(self, row: InputBatch, *, is_rounded: bool = False) -> Tensor:
        """Write keys and values of every token and return the logits [R, V] of the sampling rows.

        Args:
            is_rounded: see `NativeLayers.logits`.

        Effect:
            First quantizes what becomes old with the step, which no token of the step may belong to.
        """
        self._pools.quantize_blocks(row.groups)
        hidden = self._embed(row.token_ids)
        return self._capped(self._layers.logits(hidden, self.step(row), is_rounded=is_rounded))

    def logits_behind(self, hidden: Tensor, row: InputBatch) -> Tensor:
        """Return the logits [R, V] that the last layer makes of `hidden` [T, hidden], which it overwrites."""
        return self._capped(self._layers.logits(hidden, self.step(row), first=-1))

    def _capped(self, logits: Tensor) -> Tensor:
        if self._logits_factor != 1.0:
            logits = logits.mul_(self._logits_factor)
        if self._softcap is not None:
            logits = logits.div_(self._softcap).tanh_().mul_(self._softcap)
        return logits

    def hidden(self, hidden: Tensor, row: InputBatch, layer: int, *, is_rounded: bool = False) -> Tensor:
        """Return what one layer makes of `hidden` [T, hidden]."""
        step = self.step(row)
        return self._layers.hidden(hidden, step, slice(layer, layer + 1), is_rounded=is_rounded)

    def step(self, row: InputBatch) -> StepRows:
        last = int(row.positions.max())
        if last >= self._ropes.num_positions:
            self._ropes.grow(last + 1)
            self._layers.take_ropes(self._ropes.tables)
        groups = [_group_rows(row.groups[group]) for group in self._pools.groups]
        old = [old_blocks(row.groups[group]).blocks for group in self._pools.old]
        states = [_state_rows(row.groups[group]) for group in self._pools.states]
        return StepRows(positions=row.positions, groups=groups, sampling=row.sampling, old=old, states=states)


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


def most_short(block_size: int, is_quantized: bool, suits_prompts: bool) -> int | None:
    """Return the most tokens of a sequence in a step that fused layers compute; None: any number. Pure.

    A block becomes old when its successor is full. With at most P tokens in the step it was full before.
    """
    if is_quantized:
        return min(MOST_ROWS, block_size)
    return None if suits_prompts else MOST_ROWS


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
