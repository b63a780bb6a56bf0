"""A forward pass that computes short sequences of a step by fused decoder layers, and long ones by the model.

Which way a token goes follows from its own sequence alone, never from what shares the step: decoded tokens
and drafts are short, and prompts are long but for their last few tokens. Dimensions: T rows, R sampling rows,
V vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvchat.engine.api.ids import GroupId
from kvchat.engine.attention.paged import GroupStep
from kvchat.engine.kernels.decoder_layers.args import GroupRows, StepRows
from kvchat.engine.kernels.decoder_layers.native import NativeLayers
from kvchat.engine.kernels.paged_attention.args import SequenceSpan, SpanTable
from kvchat.engine.kernels.paged_attention.native import span_table
from kvchat.engine.models.rope_tables import RopeTables
from kvchat.engine.runner import ForwardPass, Row

MOST_ROWS = 16
"""Sequences with at most so many tokens in a step are short."""


class FusedLayers:
    """The way from token ids to logits past the model's own modules.

    Args:
        embed: token ids [T] → what the first layer gets [T, hidden], float32.
        groups: the numbers by which layers name their groups are places in this.
        softcap: bound of the logits, or None.
    """

    def __init__(
        self,
        embed: Callable[[Tensor], Tensor],
        layers: NativeLayers,
        ropes: RopeTables,
        groups: Sequence[GroupId],
        softcap: float | None,
    ) -> None:
        self._embed = embed
        self._layers = layers
        self._ropes = ropes
        self._groups = groups
        self._softcap = softcap

    def logits(self, row: Row) -> Tensor:
        """Write keys and values of every token and return the logits [R, V] of the sampling rows."""
        logits = self._layers.logits(self._embed(row.token_ids), self.step(row))
        if self._softcap is not None:
            logits = logits.div_(self._softcap).tanh_().mul_(self._softcap)
        return logits

    def hidden(self, hidden: Tensor, row: Row, layer: int) -> Tensor:
        """Return what one layer makes of `hidden` [T, hidden]."""
        return self._layers.hidden(hidden, self.step(row), slice(layer, layer + 1))

    def step(self, row: Row) -> StepRows:
        last = int(row.positions.max())
        if last >= self._ropes.num_positions:
            self._ropes.grow(last + 1)
            self._layers.take_ropes(self._ropes.tables)
        groups = [_group_rows(row.groups[group]) for group in self._groups]
        return StepRows(positions=row.positions, groups=groups, sampling=row.sampling)


def _group_rows(step: GroupStep) -> GroupRows:
    table = step.prepared if isinstance(step.prepared, SpanTable) else span_table(step.spans)
    return GroupRows(slots=step.slots, spans=step.spans, table=table.rows)


class FusedPass:
    """Stands before a model's own pass."""

    def __init__(self, own: ForwardPass, fused: FusedLayers) -> None:
        self.device = own.device
        self._own = own
        self._fused = fused

    def logits(self, row: Row) -> Tensor:
        spans = next(iter(row.groups.values())).spans
        short = [number for number, span in enumerate(spans) if is_short(span)]
        if len(short) == len(spans):
            return self._fused.logits(row)
        if not short:
            return self._own.logits(row)
        long = [number for number in range(len(spans)) if number not in set(short)]
        out: Tensor | None = None
        for numbers, logits in ((long, self._own.logits), (short, self._fused.logits)):
            part, places = part_of(row, numbers)
            found = logits(part)
            if out is None:
                out = found.new_empty(len(row.sampling), found.shape[-1], dtype=torch.float32)
            out[places] = found.float()
        assert out is not None
        return out


def is_short(span: SequenceSpan) -> bool:
    """Whether a sequence's tokens of a step are computed by fused layers. Pure."""
    return span.q_end - span.q_start <= MOST_ROWS


def part_of(row: Row, numbers: Sequence[int]) -> tuple[Row, Tensor]:
    """Return some of a row's sequences as a row of their own, and the places of their logits among all."""
    spans = next(iter(row.groups.values())).spans
    kept = [spans[number] for number in numbers]
    index = torch.cat([torch.arange(span.q_start, span.q_end) for span in kept])
    places = torch.isin(row.sampling, index).nonzero()[:, 0]
    groups = {
        group: _group_part(step, [step.spans[number] for number in numbers], index)
        for group, step in row.groups.items()
    }
    part = Row(
        token_ids=row.token_ids[index],
        positions=row.positions[index],
        groups=groups,
        sampling=torch.searchsorted(index, row.sampling[places]),
    )
    return part, places


def _group_part(step: GroupStep, spans: Sequence[SequenceSpan], index: Tensor) -> GroupStep:
    moved: list[SequenceSpan] = []
    start = 0
    for span in spans:
        moved.append(span.moved(start))
        start = moved[-1].q_end
    return GroupStep(slots=step.slots[index], spans=moved, prepared=span_table(moved))
