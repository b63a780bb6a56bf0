"""Native decoder layers over quantized blocks are the reference at every level; company changes no bit."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels.decoder_layers import reference
from kvchat.engine.kernels.decoder_layers.args import FusedLayerPool, StepRows
from kvchat.engine.kernels.native.library import Library
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool
from kvchat.engine.kernels.quantized_kv.reference import quantize
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord, num_quantized
from tests.engine.kernels.decoder_cases import Model, Shape, hidden_of, make_step, native_of
from tests.engine.kernels.native_library import EMULATED, all_levels

pytestmark = [pytest.mark.cpu, all_levels]

TEXTS = ((0, 3), (130, 1), (46, 5), (290, 1), (159, 4))
"""First position and number of the rows of each sequence: in two of them a block becomes old between rows."""
EVERY = range(len(TEXTS))
Codes = tuple[Code, Code] | None
"""Of keys and values; None: the layer is exact."""
BOTH_8 = (Code.INT8, Code.INT8)
MIXED: Sequence[Codes] = (BOTH_8, None, (Code.INT4, Code.INT2))
CASES: dict[str, tuple[Shape, Sequence[Codes]]] = {
    "int8": (Shape(), (BOTH_8,) * 3),
    "fp8": (Shape(), ((Code.FP8, Code.FP8),) * 3),
    "int4": (Shape(), ((Code.INT4, Code.INT4),) * 3),
    "int2": (Shape(), ((Code.INT2, Code.INT2),) * 3),
    "keys apart": (Shape(has_sinks=True, softcap=3.0), ((Code.INT8, Code.INT4), (Code.FP8, Code.INT2), None)),
    "mixed": (Shape(num_kv_heads=6), MIXED),
    "odd": (Shape(hidden=70, inner=91, num_heads=3, num_kv_heads=1, dim=22, vocab=97), MIXED),
    "bfloat16": (Shape(dtype=torch.bfloat16), MIXED),
    "float16": (Shape(dtype=torch.float16), MIXED),
}
all_cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
Case = tuple[Shape, Sequence[Codes]]


def places_of(shape: Shape) -> list[Tensor]:
    """Return in which of the quantized blocks each exact one goes, for each of two groups."""
    num_blocks = sum(-(-(start + count) // shape.block_size) for start, count in TEXTS)
    generator = torch.Generator().manual_seed(6)
    return [torch.randperm(num_blocks, generator=generator) for _ in range(2)]


def quantized_step(shape: Shape, kept: Sequence[int] = EVERY) -> StepRows:
    """Return a step of some texts, with the quantized blocks that their last rows see."""
    step = make_step(shape, kept, TEXTS)
    spans = step.groups[0].spans
    counts = [
        num_quantized(span.position + span.q_end - span.q_start - 1, shape.block_size) for span in spans
    ]
    old = [
        [places[span.blocks[:count]].contiguous() for span, count in zip(spans, counts, strict=True)]
        for places in places_of(shape)
    ]
    return replace(step, old=old)


def quantized_pools(model: Model, codes: Sequence[Codes]) -> list[FusedLayerPool]:
    """Return pools of which whatever nobody may see is NaN: exact blocks that are old for every row, and
    quantized ones that are old for none.
    """
    shape = model.shape
    spans = make_step(shape, EVERY, TEXTS).groups[0].spans
    before = torch.cat([span.blocks[: num_quantized(span.position, shape.block_size)] for span in spans])
    ends = [num_quantized(span.position + span.q_end - span.q_start - 1, shape.block_size) for span in spans]
    behind = torch.cat([span.blocks[:end] for span, end in zip(spans, ends, strict=True)])
    pools = []
    for number, (pool, pair) in enumerate(zip(model.pools(TEXTS), codes, strict=True)):
        if pair is None:
            pools.append(pool)
            continue
        places = places_of(shape)[number % 2]
        records = [
            QuantizedRecord(code, shape.block_size, shape.dim, is_by_channel)
            for code, is_by_channel in zip(pair, (True, False), strict=True)
        ]
        packed = [
            torch.full((len(part), shape.num_kv_heads, 1, record.num_bytes), 0xFF, dtype=torch.uint8)
            for part, record in zip((pool.keys, pool.values), records, strict=True)
        ]
        for to, part, record in zip(packed, (pool.keys, pool.values), records, strict=True):
            to[places[behind], :, 0] = quantize(part[behind], record)
            part[before] = float("nan")
        pools.append(replace(pool, quantized=QuantizedPool(*packed, *records), old=number % 2))
    return pools


@all_cases
def test_they_are_the_reference(case: Case, library: Library) -> None:
    shape, codes = case
    model, step = Model(shape), quantized_step(shape)
    hidden = hidden_of(model, step)
    pools = quantized_pools(model, codes)
    wanted = reference.decoder_layers(hidden, model.layers, pools, model.ropes, step)
    assert bool(wanted.isfinite().all())
    native = native_of(model, quantized_pools(model, codes), library)
    found = native.hidden(hidden, step, slice(0, len(model.layers)))
    tolerance = 1e-5 if shape.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_quantized_blocks_change_what_rows_see(library: Library) -> None:
    """The negative control: rows behind two bits differ, and those that see none are the same."""
    model, step = Model(Shape()), quantized_step(Shape())
    exact, coarse = (
        native_of(model, quantized_pools(model, codes), library).logits(hidden_of(model, step), step)
        for codes in ((None,) * 3, ((Code.INT2, Code.INT2),) * 3)
    )
    assert torch.equal(exact[:3], coarse[:3])
    assert not torch.allclose(exact[3:], coarse[3:], atol=1e-2)


@all_cases
def test_a_row_has_the_same_bits_whatever_shares_its_step(case: Case, library: Library) -> None:
    together = logits_of(case, EVERY, library)
    alone = torch.cat([logits_of(case, [number], library) for number in EVERY])
    assert torch.equal(together, alone)


def test_a_row_has_the_same_bits_with_any_number_of_threads(
    library: Library, level: str, threads: None
) -> None:
    torch.set_num_threads(1)
    alone = logits_of(CASES["mixed"], EVERY, library)
    for num_threads in (2, 3) * (1 if level.startswith(EMULATED) else 5):
        torch.set_num_threads(num_threads)
        assert torch.equal(logits_of(CASES["mixed"], EVERY, library), alone)


def logits_of(case: Case, texts: Sequence[int], library: Library) -> Tensor:
    shape, codes = case
    model, step = Model(shape), quantized_step(shape, texts)
    return native_of(model, quantized_pools(model, codes), library).logits(hidden_of(model, step), step)
