"""Every byte of a block survives every way it can go, and a copy really copies."""

import pytest
import torch
from torch import Tensor

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.errors import OutOfMemory

pytestmark = pytest.mark.cpu

BLOCK_SIZE = 5
FULL, SLIDING = GroupId(0), GroupId(1)
NUM_BLOCKS = {FULL: 6, SLIDING: 4}
DTYPES = ("F32", "BF16", "F16")
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def groups_of(dtype: str) -> list[Group]:
    """Two groups; keys and values differ in size, and the layers of both are interleaved."""
    full = FullSpec(num_kv_heads=2, head_dim_k=3, head_dim_v=4, dtype=dtype)
    sliding = SlidingSpec(num_kv_heads=1, head_dim_k=2, head_dim_v=2, dtype=dtype, window_len=7)
    return [Group(id=FULL, spec=full, layers=(0, 2, 3)), Group(id=SLIDING, spec=sliding, layers=(1, 4))]


def make_pool(dtype: str) -> DevicePool:
    """Return a pool full of random bits, NaNs and infinities of every kind among them."""
    pool = DevicePool(groups_of(dtype), NUM_BLOCKS, BLOCK_SIZE, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors(pool):
        bits_of(tensor).copy_(torch.randint(0, 256, bits_of(tensor).shape, generator=generator))
    return pool


def tensors(pool: DevicePool) -> list[Tensor]:
    return [tensor for layer in pool.layers.values() for tensor in (layer.keys, layer.values)]


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def bits(pool: DevicePool) -> list[Tensor]:
    return [bits_of(tensor).clone() for tensor in tensors(pool)]


def group_tensors(pool: DevicePool, group: GroupId) -> list[Tensor]:
    layers = [layer for layer in pool.layers.values() if layer.group == group]
    return [bits_of(tensor) for layer in layers for tensor in (layer.keys, layer.values)]


@every_dtype
@pytest.mark.parametrize("group", [FULL, SLIDING])
def test_a_block_read_and_written_elsewhere_is_the_same_to_the_bit(dtype: str, group: GroupId) -> None:
    """Trap 23: the round trip alone must not change a bit, NaNs included."""
    pool, before = make_pool(dtype), bits(make_pool(dtype))
    data = pool.read_block(group, BlockId(1), BLOCK_SIZE)
    assert len(data) == pool.block_bytes(group)
    pool.write_block(group, BlockId(3), bytearray(data))
    for tensor in group_tensors(pool, group):
        assert torch.equal(tensor[3], tensor[1])
    for tensor, old in zip(bits(pool), before, strict=True):
        others = [block for block in range(len(old)) if block != 3]
        assert torch.equal(tensor[others], old[others])
    assert pool.read_block(group, BlockId(3), BLOCK_SIZE) == data


@every_dtype
def test_a_tails_bytes_behind_its_tokens_are_zero(dtype: str) -> None:
    pool, before = make_pool(dtype), bits(make_pool(dtype))
    data = bytearray(pool.read_block(FULL, BlockId(0), 2))
    for tensor, old in zip(bits(pool), before, strict=True):
        assert torch.equal(tensor, old), "reading changed the pool"
    pool.write_block(FULL, BlockId(5), data)
    for tensor in group_tensors(pool, FULL):
        assert torch.equal(tensor[5, :, :2], tensor[0, :, :2])
        assert not tensor[5, :, 2:].any()


@every_dtype
def test_a_block_is_one_run_of_bytes_layer_after_layer_keys_before_values(dtype: str) -> None:
    pool = make_pool(dtype)
    data = pool.read_block(FULL, BlockId(2), BLOCK_SIZE)
    start = 0
    for region, tensor in zip(pool.layouts()[FULL], group_tensors(pool, FULL), strict=True):
        assert region.dtype == dtype
        assert data[start : start + region.nbytes] == tensor[2].contiguous().numpy().tobytes()
        start += region.nbytes
    names = [region.name for region in pool.layouts()[FULL]]
    assert names == [f"layers.{layer}.{part}" for layer in (0, 2, 3) for part in "kv"]
    assert start == len(data) == pool.block_bytes(FULL)
    assert pool.num_bytes == sum(tensor.numel() * tensor.element_size() for tensor in tensors(pool))
    assert pool.num_bytes == sum(pool.block_bytes(group) * count for group, count in NUM_BLOCKS.items())


@every_dtype
@pytest.mark.parametrize("num_tokens", [1, 3, BLOCK_SIZE])
def test_a_copy_copies_the_first_slots_of_every_layer_and_nothing_else(dtype: str, num_tokens: int) -> None:
    pool, before = make_pool(dtype), bits(make_pool(dtype))
    pool.copy(FULL, BlockId(4), BlockId(0), num_tokens)
    group_of = [layer.group for layer in pool.layers.values() for _ in "kv"]
    for group, tensor, old in zip(group_of, bits(pool), before, strict=True):
        if group == FULL:
            assert torch.equal(tensor[0, :, :num_tokens], old[4, :, :num_tokens])
            assert torch.equal(tensor[0, :, num_tokens:], old[0, :, num_tokens:])
            assert torch.equal(tensor[1:], old[1:])
        else:
            assert torch.equal(tensor, old)


def test_a_copy_does_not_follow_its_source() -> None:
    """Trap 11: no alias is left behind."""
    pool = make_pool("F32")
    pool.copy(FULL, BlockId(1), BlockId(2), BLOCK_SIZE)
    copied = pool.read_block(FULL, BlockId(2), BLOCK_SIZE)
    for tensor in group_tensors(pool, FULL):
        tensor[1] = 0
    assert pool.read_block(FULL, BlockId(2), BLOCK_SIZE) == copied


def test_a_pool_beyond_all_memory_says_which_setting_to_lower() -> None:
    with pytest.raises(OutOfMemory, match="--kv-device-bytes"):
        DevicePool(groups_of("F32"), {FULL: 2**50, SLIDING: 1}, BLOCK_SIZE, torch.device("cpu"))
