"""Blocks of GGUF files mean what llama.cpp's own library says they mean."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from kvchat.engine.kernels.quantized_linear import dequantize
from kvchat.engine.models.checkpoints.gguf_repack import FORMATS, moves_groups, quantized

pytestmark = pytest.mark.cpu

EXACT = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
FLOATS = {"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q6_K": (208,)}


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_random_blocks_are_the_numbers_that_the_library_reads(kind: GGMLQuantizationType) -> None:
    data = random_rows(kind, num_rows=5, num_inputs=512)
    expected = torch.from_numpy(gguf.dequantize(data, kind))
    found = dequantize(quantized(data, kind))
    assert found.shape == expected.shape == (5, 512)
    if kind.name in EXACT:
        assert torch.equal(found, expected)
    else:
        most = expected.abs().max() * 2 * 2**-11  # a scale and a minimum are rounded
        assert float((found - expected).abs().max()) < most
        assert not torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_kept_blocks_take_little_more_than_the_file(kind: GGMLQuantizationType) -> None:
    """Five bits become eight, and six bits eight; the others stay as small as they are."""
    data = random_rows(kind, num_rows=4, num_inputs=512)
    growth = quantized(data, kind).nbytes / data.nbytes
    assert growth < {"Q5_0": 1.6, "Q5_1": 1.6, "Q5_K": 1.7, "Q6_K": 1.4, "Q4_K": 1.12}.get(kind.name, 1.001)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_heads_of_inputs_move_with_their_scales(kind: GGMLQuantizationType) -> None:
    data = random_rows(kind, num_rows=20, num_inputs=512)
    columns = np.arange(512).reshape(4, 2, 64).swapaxes(0, 1).reshape(-1)
    assert moves_groups(columns, kind)
    found = dequantize(quantized(data, kind, columns))
    assert torch.equal(found, dequantize(quantized(data, kind))[:, torch.from_numpy(columns)])


@pytest.mark.parametrize("head", [8, 24])
def test_an_order_of_inputs_that_cuts_groups_is_noticed(head: int) -> None:
    columns = np.arange(768).reshape(2, -1, head).swapaxes(0, 1).reshape(-1)
    assert not moves_groups(columns, GGMLQuantizationType.Q8_0)


def random_rows(kind: GGMLQuantizationType, num_rows: int, num_inputs: int) -> NDArray[np.uint8]:
    """Return blocks of random codes with sensible scales."""
    random = np.random.default_rng(0)
    block_len, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (num_rows * num_inputs // block_len, block_bytes), dtype=np.uint8)
    for offset in FLOATS.get(kind.name, (0, 2)):
        scales = random.uniform(0.01, 0.1, len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(num_rows, -1)
