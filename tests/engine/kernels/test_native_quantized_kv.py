"""The native quantizer against the definition, to the last bit, on every level that this processor knows."""

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels.native.library import Library, libraries
from kvchat.engine.kernels.quantized_kv.native import quantize_into, takes
from kvchat.engine.kernels.quantized_kv.reference import dequantize, quantize
from kvchat.engine.kernels.quantized_record import Code, QuantizedRecord
from tests.engine.kernels import native_library
from tests.engine.kernels.native_library import emulated_levels

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(not libraries(), reason="needs native kernels")]

SHAPES = ((64, 64), (64, 128), (16, 80), (48, 33), (40, 7), (64, 24))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(params=[*(library.level for library in libraries()), *emulated_levels])
def native(request: pytest.FixtureRequest) -> Library:
    return native_library.native(request.param)


def numbers(block_size: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Blocks of many sizes: zeros, constants, outliers, tiny and huge ones."""
    generator = torch.Generator().manual_seed(3)
    sizes = torch.logspace(-6, 3, 8)[:, None, None, None]
    blocks = torch.randn(8, 3, block_size, dim, generator=generator) * sizes
    blocks[:, :, :, 0] += 12
    blocks[2] = 0
    blocks[3, :, :, 1:] = 5
    if dtype is not torch.float16:
        blocks[4] *= 1e-30
        blocks[5] *= 1e30
    return blocks.to(dtype)


def quantized(blocks: Tensor, record: QuantizedRecord, native: Library) -> Tensor:
    """Return the records, written out of order into a larger pool."""
    pool = torch.full((len(blocks) + 3, blocks.shape[1], 1, record.num_bytes), 0xA5, dtype=torch.uint8)
    sources = torch.arange(len(blocks))
    targets = (sources * 3 + 1) % len(pool)
    quantize_into(pool, blocks, (sources, targets), record, native)
    untouched = [place for place in range(len(pool)) if place not in targets.tolist()]
    assert (pool[untouched] == 0xA5).all()
    return pool[targets, :, 0]


@pytest.mark.parametrize("is_by_channel", [True, False])
@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_records_have_the_bytes_that_the_definition_gives(
    dtype: torch.dtype, code: Code, is_by_channel: bool, native: Library
) -> None:
    for block_size, dim in SHAPES:
        record = QuantizedRecord(code, block_size, dim, is_by_channel)
        blocks = numbers(block_size, dim, dtype)
        assert torch.equal(quantized(blocks, record, native), quantize(blocks, record))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("code", list(Code))
def test_a_number_that_is_not_finite_spoils_its_own_head_and_block(
    code: Code, wrong: float, native: Library
) -> None:
    record = QuantizedRecord(code, 64, 64, is_by_channel=True)
    blocks = numbers(64, 64, torch.float32)
    blocks[1, 2, 63, 63] = wrong
    found = quantized(blocks, record, native)
    assert torch.equal(found, quantize(blocks, record))
    read = dequantize(found, record)
    assert read[1, 2].isnan().all()
    assert read[1, :2].isfinite().all()


def test_every_number_of_e4m3_is_rounded_as_torch_rounds(native: Library) -> None:
    """All codes, what lies half way between two, and a hair on either side."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    edges = torch.cat([codes, middles, middles * (1 + 1e-6), middles * (1 - 1e-6)])
    values = torch.cat([edges, -edges])
    row = torch.zeros(1, 1, 1, 1024)
    row[..., : len(values)] = values
    record = QuantizedRecord(Code.FP8, 1, 1024, is_by_channel=True)
    assert torch.equal(quantized(row, record, native), quantize(row, record))


def test_what_lies_otherwise_is_not_taken() -> None:
    assert not takes(torch.zeros(2, 2, 4, 8).transpose(2, 3))
    assert not takes(torch.zeros(2, 2, 4, 0))
    assert not takes(torch.zeros(2, 2, 4, 8, dtype=torch.float64))
