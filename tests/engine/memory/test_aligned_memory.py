"""The pages of blocks that are handed out first are there before anybody writes to them."""

import ctypes
import sys

import numpy as np
import pytest
import torch

from kvchat.engine.api.ids import BlockId
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.spec import group_layers
from kvchat.engine.memory.aligned_memory import PAGE, prefault
from kvchat.engine.memory.device_pool import DevicePool

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(sys.platform != "linux", reason="pages come as they are written elsewhere"),
]

NUM_BLOCKS, BLOCK_SIZE = 4000, 64
SPEC = FullSpec(num_kv_heads=1, head_dim_k=64, head_dim_v=64, dtype="BF16")


def resident(run: np.ndarray) -> float:
    """Return the share of a run's pages that are in memory."""
    start, end = run.ctypes.data // PAGE * PAGE, -(-(run.ctypes.data + run.nbytes) // PAGE) * PAGE
    found = (ctypes.c_ubyte * ((end - start) // PAGE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(end - start), found) == 0
    return sum(flag & 1 for flag in found) / len(found)


def test_the_first_blocks_of_every_layer_are_there_and_no_byte_has_changed() -> None:
    groups = group_layers(dict.fromkeys(range(2), SPEC))
    pool = DevicePool(groups, {groups[0].id: NUM_BLOCKS}, BLOCK_SIZE, torch.device("cpu"))
    block = np.random.default_rng(0).bytes(pool.block_bytes(groups[0].id))
    pool.write_block(groups[0].id, BlockId(7), memoryview(block))
    runs = pool.first_runs(NUM_BLOCKS // 2 * len(block))
    assert [len(run) for run in runs] == [NUM_BLOCKS // 2] * 4
    before = [resident(run) for run in runs]
    prefault(runs).join()
    assert max(before) < 0.7  # a huge page is there with its first byte
    assert [resident(run) for run in runs] == [1.0] * 4
    assert bytes(pool.read_block(groups[0].id, BlockId(7), BLOCK_SIZE)) == block
    assert not any(run[8:].any() for run in runs)
