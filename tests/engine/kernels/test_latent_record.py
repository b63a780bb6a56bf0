"""A latent's 8-bit record: its published layout, its bounds of error, and what may never pass unnoticed."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kvchat.engine.kernels.fp8_record import TILE, Fp8Record
from kvchat.engine.kernels.latent_record import reference, torch_fallback

pytestmark = pytest.mark.cpu

DEEPSEEK = Fp8Record(512, 64)
ELEMENT_BOUND = 1 / 17
"""Of a number's own size, where it is no subnormal: half a step of 32 beside 272."""
TILE_BOUND = 1 / 17
"""Of the largest number of its tile: the same, where the scale is the least fitting power of two."""
NORM_BOUND = 0.035


def latents_of(kind: str, num_tokens: int = 256, rank: int = 512) -> Tensor:
    """Return random latents; `outlier` has four channels with means far from zero."""
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(num_tokens, rank, generator=generator)
    if kind == "outlier":
        for channel, mean in ((3, 12.0), (130, -9.0), (131, 15.0), (500, 8.0)):
            latents[:, channel] += mean
    return latents


def read_back(latents: Tensor, record: Fp8Record = DEEPSEEK) -> Tensor:
    rope_keys = torch.zeros(len(latents), record.rope_dim)
    return reference.unpack(reference.pack(latents, rope_keys, record), record)[:, : record.rank]


def test_deepseeks_record_has_the_published_656_bytes() -> None:
    record = DEEPSEEK
    assert (record.scales_at, record.rope_at, record.num_bytes) == (512, 528, 656)
    latents, rope_keys = latents_of("gauss", 3), torch.randn(3, 64).bfloat16()
    packed = reference.pack(latents, rope_keys, record)
    scales = torch.frombuffer(bytearray(packed[1, 512:528].numpy().tobytes()), dtype=torch.float32)
    values = torch.frombuffer(bytearray(packed[1, :512].numpy().tobytes()), dtype=torch.float8_e4m3fn)
    rope = torch.frombuffer(bytearray(packed[1, 528:].numpy().tobytes()), dtype=torch.bfloat16)
    assert torch.equal(rope, rope_keys[1])
    for tile in range(4):
        numbers = slice(tile * TILE, (tile + 1) * TILE)
        scale = float(scales[tile])
        assert scale == 2 ** math.ceil(math.log2(float(latents[1, numbers].abs().max()) / 448))
        wanted = (latents[1, numbers] / scale).to(torch.float8_e4m3fn)
        assert torch.equal(values[numbers].float(), wanted.float())


@pytest.mark.parametrize("kind", ["gauss", "outlier"])
def test_errors_stay_within_their_bounds(kind: str) -> None:
    latents = latents_of(kind)
    error = (read_back(latents) - latents).abs()
    tiles = error.view(-1, TILE), latents.abs().view(-1, TILE)
    assert bool((tiles[0].amax(dim=1) <= TILE_BOUND * tiles[1].amax(dim=1)).all())
    is_normal = latents.abs() > tiles[1].amax(dim=1).repeat_interleave(TILE).view_as(latents) * 2**-13
    assert float((error / latents.abs())[is_normal].max()) <= ELEMENT_BOUND * (1 + 1e-6)
    assert float(error.norm() / latents.norm()) < NORM_BOUND


@given(
    cuts=st.lists(st.integers(0, 40), max_size=6),
    sizes=st.tuples(st.integers(1, 300), st.integers(1, 20)),
    seed=st.integers(0, 9),
)
def test_one_by_one_in_chunks_or_at_once_gives_the_same_bytes(
    cuts: list[int], sizes: tuple[int, int], seed: int
) -> None:
    """Trap 32: a scale follows from its own token, not from those that came first or stand beside it."""
    record, block_size = Fp8Record(*sizes), 8
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(40, sizes[0], generator=generator)
    rope_keys = torch.randn(40, sizes[1], generator=generator)
    slots = torch.randperm(48, generator=generator)[:40]
    at_once, in_chunks = (
        torch.zeros(6, 1, block_size, record.num_bytes, dtype=torch.uint8) for _ in range(2)
    )
    reference.store_records(latents, rope_keys, at_once, slots, record)
    ends = sorted({*cuts, 40})
    for start, end in zip([0, *ends], ends, strict=False):
        chunk = slice(start, end)
        reference.store_records(latents[chunk], rope_keys[chunk], in_chunks, slots[chunk], record)
    assert torch.equal(at_once, in_chunks)


def test_what_is_read_back_is_exact_in_bfloat16() -> None:
    back = read_back(latents_of("outlier"))
    assert torch.equal(back.bfloat16().float(), back)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_cannot_pass_for_a_number(wrong: float) -> None:
    latents = latents_of("gauss", 2)
    latents[0, 130] = wrong
    for unpack in (reference.unpack, torch_fallback.unpack):
        back = unpack(reference.pack(latents, torch.zeros(2, 64), DEEPSEEK), DEEPSEEK)
        assert bool(back[0, TILE : 2 * TILE].isnan().all())
        assert bool(back[0, :TILE].isfinite().all())
        assert bool(back[1].isfinite().all())


@pytest.mark.parametrize("record", [DEEPSEEK, Fp8Record(200, 6), Fp8Record(7, 3), Fp8Record(16, 8)])
def test_reading_by_bits_equals_the_reference(record: Fp8Record) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F]  # the two codes of NaN
    records = reference.pack(torch.randn(254, record.rank), torch.randn(254, record.rope_dim), record)
    records[:, 0] = codes
    assert torch.equal(torch_fallback.unpack(records, record), reference.unpack(records, record))
