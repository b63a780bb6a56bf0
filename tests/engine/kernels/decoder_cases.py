"""Random decoder layers and steps for tests of what computes them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from kvchat.engine.kernels.decoder_layers.args import (
    Activation,
    DecoderLayer,
    Experts,
    FusedLayerPool,
    FusedStatePool,
    GatedDelta,
    GroupRows,
    Heads,
    Linear,
    Mixer,
    Mlp,
    Norm,
    RopeTable,
    SelectiveScan,
    ShortConvolution,
    StateRows,
    StepRows,
    TokenMixing,
)
from kvchat.engine.kernels.decoder_layers.native import NativeLayers
from kvchat.engine.kernels.linear import pack
from kvchat.engine.kernels.linear.widened_layout import pair
from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.kernels.paged_attention.native import span_table
from kvchat.engine.kernels.quantized_linear import Coding, QuantizedWeight, quantize
from kvchat.engine.kernels.quantized_linear.weight import pack as pack_codes
from kvchat.engine.kernels.quantized_linear.weight import to_tiles

NUM_POSITIONS = 400
TEXTS = ((0, 3), (130, 1), (17, 4), (290, 1), (6, 1))
"""First position and number of the rows of each sequence of a step."""
SLOTS = 3
"""States of each sequence: before the step, behind its second row, and behind the step."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model and kinds of its parts.

    Args:
        weights: plain, packed, paired, int8, int4, or a coding.
        mixers: of all layers in turn: attention, gated attention, convolution, delta, scan.
        num_value_heads: of a delta rule or a scan.
        has_one_gate: whether one product gives gates and ups.
        has_gates: of MLPs.
        are_halves: whether every second layer is an MLP alone, and the others have none.
        experts: their number; 0: there are none.
        num_chosen: of these.
        is_normalized: whether what they give is shared out among those that are chosen.
        has_mlp: whether there is one beside experts, with a gate if they are normalized.
        is_by_key_head: whether a delta rule gets the numbers of each key head together.
    """

    hidden: int = 96
    inner: int = 160
    num_heads: int = 6
    num_kv_heads: int = 2
    dim: int = 32
    rope_dim: int | None = None
    dtype: torch.dtype = torch.float32
    weights: str | Coding = "plain"
    has_bias: bool = False
    has_head_norms: bool = False
    has_after_norms: bool = False
    adds_one: bool = False
    has_sinks: bool = False
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    activation: Activation = Activation.SILU
    mixers: tuple[str, ...] = ("attention",)
    num_value_heads: int = 4
    value_dim: int = 40
    num_taps: int = 4
    has_one_gate: bool = False
    has_gates: bool = True
    are_halves: bool = False
    experts: int = 0
    expert_inner: int = 40
    num_chosen: int = 3
    is_normalized: bool = True
    has_mlp: bool = True
    is_by_key_head: bool = False
    residual: float = 1.0
    num_layers: int = 3
    vocab: int = 131
    block_size: int = 16


@dataclass
class Model:
    """Random layers of a shape, and what is around them."""

    shape: Shape
    layers: list[DecoderLayer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(3)
        self.layers = [self._layer(number) for number in range(self.shape.num_layers)]
        self.last_norm = self._norm(self.shape.hidden)
        self.head = self._linear(self.shape.vocab, self.shape.hidden)
        angles = (
            torch.rand(NUM_POSITIONS, self.shape.rope_dim or self.shape.dim, generator=self._generator) * 6
        )
        turned = RopeTable(cosines=angles.cos(), sines=angles.sin())
        other = RopeTable(cosines=(3 * angles).cos(), sines=(3 * angles).sin())
        self.ropes = [turned, other]

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def pools(self, texts: Sequence[tuple[int, int]] = TEXTS) -> list[FusedLayerPool | FusedStatePool | None]:
        """Return pools with old keys, values and states that are the same in each call."""
        generator = torch.Generator().manual_seed(4)
        s = self.shape
        num_blocks = sum(num_blocks_of(start, count, s.block_size) for start, count in texts)
        size = (num_blocks, s.num_kv_heads, s.block_size, s.dim)
        pools: list[FusedLayerPool | FusedStatePool | None] = []
        for number, layer in enumerate(self.layers):
            if (mixer := layer.mixer) is None:
                pools.append(None)
                continue
            if isinstance(mixer, Heads):
                keys, values = (torch.randn(size, generator=generator).to(s.dtype) for _ in range(2))
                pools.append(FusedLayerPool(keys=keys, values=values, group=number % 2))
                continue
            conv = mixer if isinstance(mixer, ShortConvolution) else mixer.conv
            num_slots, sizes = SLOTS * len(texts), (s.dim, s.value_dim)
            states = None
            if isinstance(mixer, GatedDelta | SelectiveScan):
                sizes = sizes if isinstance(mixer, GatedDelta) else sizes[::-1]
                states = torch.randn(num_slots, s.num_value_heads, *sizes, generator=generator)
            inputs = torch.randn(num_slots, len(conv.taps), s.num_taps, generator=generator).to(s.dtype)
            pools.append(FusedStatePool(inputs=inputs, states=states, group=number % 2))
        return pools

    def _mixer(self, kind: str) -> tuple[Mixer, list[int], int]:
        """Return a mixer, the sizes of its inputs, and that of what it gives."""
        s = self.shape
        if kind in ("attention", "gated attention"):
            query, key = s.num_heads * s.dim, s.num_kv_heads * s.dim
            is_gated = kind != "attention"
            heads = Heads(
                num_heads=s.num_heads,
                num_kv_heads=s.num_kv_heads,
                dim=s.dim,
                scale=s.dim**-0.5,
                window=s.window,
                chunk=s.chunk,
                softcap=s.softcap,
                sinks=self.numbers(s.num_heads) if s.has_sinks else None,
                query_norm=self._norm(s.dim) if s.has_head_norms else None,
                key_norm=self._norm(s.dim) if s.has_head_norms else None,
                is_gated=is_gated,
            )
            return heads, [query * (1 + is_gated), key, key], query
        if kind == "convolution":
            return self._convolution(s.hidden), [3 * s.hidden], s.hidden
        values = s.num_value_heads * s.value_dim
        channels = 2 * s.num_kv_heads * s.dim + values
        if kind == "scan":
            scan = SelectiveScan(
                num_heads=s.num_value_heads,
                num_groups=s.num_kv_heads,
                key_dim=s.dim,
                value_dim=s.value_dim,
                conv=self._convolution(channels),
                decay=self.numbers(s.num_value_heads).to(s.dtype),
                step_bias=self.numbers(s.num_value_heads),
                skip=self.numbers(s.num_value_heads).to(s.dtype),
                norm=self._norm(values),
                least_step=0.4,
            )
            return scan, [values + channels + s.num_value_heads], values
        delta = GatedDelta(
            num_heads=s.num_value_heads,
            num_key_heads=s.num_kv_heads,
            key_dim=s.dim,
            value_dim=s.value_dim,
            conv=self._convolution(channels),
            decay=self.numbers(s.num_value_heads).to(s.dtype),
            step_bias=self.numbers(s.num_value_heads),
            norm=self._norm(s.value_dim),
        )
        return delta, [channels, values, s.num_value_heads, s.num_value_heads], values

    def _convolution(self, num_channels: int) -> ShortConvolution:
        taps = (self.numbers(num_channels, self.shape.num_taps) / 2).to(self.shape.dtype)
        bias = self.numbers(num_channels).to(self.shape.dtype) if self.shape.has_bias else None
        return ShortConvolution(taps=taps, bias=bias)

    def _layer(self, number: int) -> DecoderLayer:
        s, has_mixer = self.shape, not (self.shape.are_halves and number % 2)
        has_mlp = not (s.are_halves and has_mixer)
        mlp = self._mlp() if has_mlp and s.has_mlp else None
        return DecoderLayer(
            mixing=self._mixing(s.mixers[number % len(s.mixers)]) if has_mixer else None,
            mlp=mlp,
            experts=self._experts(mlp) if has_mlp and s.experts else None,
            rope=number if number < 2 else None,
            residual=s.residual,
        )

    def _mixing(self, kind: str) -> TokenMixing:
        hidden = self.shape.hidden
        mixer, num_inputs, num_mixed = self._mixer(kind)
        places = None
        if self.shape.is_by_key_head and isinstance(mixer, GatedDelta):
            num_inputs = [sum(num_inputs[:2]), sum(num_inputs[2:])]
            places = torch.randperm(sum(num_inputs), generator=self._generator)
        return TokenMixing(
            before=self._norm(hidden),
            inputs=tuple(self._linear(size, hidden) for size in num_inputs),
            mixer=mixer,
            output=self._linear(hidden, num_mixed),
            after=self._norm(hidden) if self.shape.has_after_norms else None,
            places=places,
        )

    def _experts(self, mlp: Mlp | None) -> Experts:
        s, inner = self.shape, self.shape.expert_inner
        router = self.numbers(s.experts, s.hidden).to(s.dtype)
        return Experts(
            before=self._norm(s.hidden) if mlp is None else mlp.before,
            router=Linear(weight=router, bias=None),
            gate_up=(self.numbers(s.experts, 2 * inner, s.hidden) * s.hidden**-0.5).to(s.dtype),
            down=(self.numbers(s.experts, s.hidden, inner) * inner**-0.5).to(s.dtype),
            activation=s.activation,
            num_chosen=s.num_chosen,
            is_normalized=s.is_normalized,
            shared_gate=self._linear(1, s.hidden) if mlp is not None and s.is_normalized else None,
        )

    def _mlp(self) -> Mlp:
        s = self.shape
        has_ups = s.has_gates and not s.has_one_gate
        return Mlp(
            before=self._norm(s.hidden),
            gate=self._linear(s.inner * (1 + s.has_one_gate), s.hidden),
            up=self._linear(s.inner, s.hidden) if has_ups else None,
            down=self._linear(s.hidden, s.inner),
            activation=s.activation,
            after=self._norm(s.hidden) if s.has_after_norms else None,
        )

    def _norm(self, size: int) -> Norm:
        weight = (1 + self.numbers(size) / 4).to(self.shape.dtype)
        return Norm(weight=weight, epsilon=1e-5, adds_one=self.shape.adds_one)

    def _linear(self, num_outputs: int, num_inputs: int) -> Linear:
        weight = (self.numbers(num_outputs, num_inputs) * num_inputs**-0.5).to(self.shape.dtype)
        bias = self.numbers(num_outputs).to(self.shape.dtype) if self.shape.has_bias else None
        if isinstance(self.shape.weights, Coding):
            return Linear(weight=self._coded(self.shape.weights, num_outputs, num_inputs), bias=bias)
        if self.shape.weights == "packed":
            return Linear(weight=pack(weight), bias=bias)
        if self.shape.weights == "paired":
            return Linear(weight=pair(weight), bias=bias)
        if self.shape.weights in ("int8", "int4"):
            return Linear(weight=quantize(weight, int(self.shape.weights[3:])), bias=bias)
        return Linear(weight=weight, bias=bias)

    def _coded(self, coding: Coding, num_outputs: int, num_inputs: int) -> QuantizedWeight:
        least, largest = (-127, 127) if coding.bits == 8 else (0, 15)
        codes = torch.randint(least, largest + 1, (num_outputs, num_inputs), generator=self._generator)
        groups = self.numbers(2, num_outputs, num_inputs // coding.group).abs() * num_inputs**-0.5
        scales, minima = to_tiles((groups[0] * 2 / largest).half()), to_tiles((-groups[1]).half())
        return QuantizedWeight(
            coding=coding,
            codes=pack_codes(codes, coding),
            scales=scales,
            minima=minima if coding.has_minima else None,
        )


def num_blocks_of(start: int, count: int, block_size: int) -> int:
    return -(-(start + count) // block_size)


def make_step(
    shape: Shape, kept: Sequence[int] = range(len(TEXTS)), texts: Sequence[tuple[int, int]] = TEXTS
) -> StepRows:
    """Return a step of some of the texts, each in the blocks and slots that it has among all of them. What is
    behind the second row of a text is kept, where it has more.
    """
    spans: list[SequenceSpan] = []
    slots: list[Tensor] = []
    positions: list[Tensor] = []
    runs: list[list[int]] = []
    offsets = [0]
    row = first_block = 0
    for number, (start, count) in enumerate(texts):
        num_blocks = num_blocks_of(start, count, shape.block_size)
        if number in kept:
            blocks = torch.arange(first_block + num_blocks - 1, first_block - 1, -1)
            spans.append(SequenceSpan(row, row + count, start, 0, blocks))
            places = torch.arange(start, start + count)
            slots.append(blocks[places // shape.block_size] * shape.block_size + places % shape.block_size)
            positions.append(places)
            read = SLOTS * number if start else -1
            ends = [2, count] if count > 2 else [count]
            for slot, (begin, end) in enumerate(pairwise([0, *ends]), start=SLOTS * number + 1):
                runs.append([row, row + begin, row + end, read, slot])
            offsets.append(len(runs))
            row += count
        first_block += num_blocks
    group = GroupRows(slots=torch.cat(slots), spans=spans, table=span_table(spans).rows)
    states = StateRows(runs=torch.tensor(runs), offsets=torch.tensor(offsets))
    return StepRows(
        positions=torch.cat(positions),
        groups=[group, replace(group)],
        sampling=torch.arange(row),
        states=[states, states],
    )


def native_of(
    model: Model, pools: list[FusedLayerPool | FusedStatePool | None], library: Library
) -> NativeLayers:
    """Return a model's layers as the native kernels compute them."""
    layers = NativeLayers(model.layers, pools, model.last_norm, model.head, library)
    layers.take_ropes(model.ropes)
    return layers


def hidden_of(model: Model, step: StepRows) -> Tensor:
    """Each row's numbers follow from its position alone."""
    table = torch.randn(1000, model.shape.hidden, generator=torch.Generator().manual_seed(5))
    return table[step.positions]
