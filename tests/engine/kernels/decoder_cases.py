"""Random decoder layers and steps for tests of what computes them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvchat.engine.kernels.decoder_layers.args import (
    Activation,
    DecoderLayer,
    FusedLayerPool,
    GroupRows,
    Heads,
    Linear,
    Norm,
    Projections,
    RopeTable,
    StepRows,
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


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model and kinds of its parts.

    Args:
        weights: plain, packed, paired, int8, int4, or a coding.
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

    def pools(self, texts: Sequence[tuple[int, int]] = TEXTS) -> list[FusedLayerPool]:
        """Return pools with old keys and values that are the same in each call."""
        generator = torch.Generator().manual_seed(4)
        s = self.shape
        num_blocks = sum(num_blocks_of(start, count, s.block_size) for start, count in texts)
        size = (num_blocks, s.num_kv_heads, s.block_size, s.dim)
        return [
            FusedLayerPool(
                keys=torch.randn(size, generator=generator).to(s.dtype),
                values=torch.randn(size, generator=generator).to(s.dtype),
                group=number % 2,
            )
            for number in range(s.num_layers)
        ]

    def _layer(self, number: int) -> DecoderLayer:
        s = self.shape
        query, key = s.num_heads * s.dim, s.num_kv_heads * s.dim
        after = [self._norm(s.hidden) if s.has_after_norms else None for _ in range(2)]
        return DecoderLayer(
            heads=Heads(
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
            ),
            projections=Projections(
                query=self._linear(query, s.hidden),
                key=self._linear(key, s.hidden),
                value=self._linear(key, s.hidden),
                output=self._linear(s.hidden, query),
                gate=self._linear(s.inner, s.hidden),
                up=self._linear(s.inner, s.hidden),
                down=self._linear(s.hidden, s.inner),
            ),
            activation=s.activation,
            before_attention=self._norm(s.hidden),
            before_mlp=self._norm(s.hidden),
            after_attention=after[0],
            after_mlp=after[1],
            rope=number if number < 2 else None,
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
    shape: Shape,
    kept: Sequence[int] = range(len(TEXTS)),
    texts: Sequence[tuple[int, int]] = TEXTS,
) -> StepRows:
    """Return a step of some of the texts, each in the blocks that it has among all of them."""
    spans: list[SequenceSpan] = []
    slots: list[Tensor] = []
    positions: list[Tensor] = []
    row = first_block = 0
    for number, (start, count) in enumerate(texts):
        num_blocks = num_blocks_of(start, count, shape.block_size)
        if number in kept:
            blocks = torch.arange(first_block + num_blocks - 1, first_block - 1, -1)
            spans.append(SequenceSpan(row, row + count, start, 0, blocks))
            places = torch.arange(start, start + count)
            slots.append(blocks[places // shape.block_size] * shape.block_size + places % shape.block_size)
            positions.append(places)
            row += count
        first_block += num_blocks
    group = GroupRows(slots=torch.cat(slots), spans=spans, table=span_table(spans).rows)
    return StepRows(
        positions=torch.cat(positions), groups=[group, replace(group)], sampling=torch.arange(row)
    )


def native_of(model: Model, pools: list[FusedLayerPool], library: Library) -> NativeLayers:
    """Return a model's layers as the native kernels compute them."""
    layers = NativeLayers(model.layers, pools, model.last_norm, model.head, library)
    layers.take_ropes(model.ropes)
    return layers


def hidden_of(model: Model, step: StepRows) -> Tensor:
    """Each row's numbers follow from its position alone."""
    table = torch.randn(1000, model.shape.hidden, generator=torch.Generator().manual_seed(5))
    return table[step.positions]
