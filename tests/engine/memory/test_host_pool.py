"""Host memory: fixed places, bit-exact moves."""

import pytest
import torch

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.cache.block_operations import Demote, Promote
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.host_pool import HostPool
from kvchat.engine.memory.tier_mover import TierMover
from kvchat.errors import OutOfMemory

pytestmark = pytest.mark.cpu

GROUP = GroupId(0)


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_a_demoted_block_comes_back_bit_for_bit(dtype: str) -> None:
    spec = FullSpec(num_kv_heads=2, head_dim_k=6, head_dim_v=4, dtype=dtype)
    group = Group(id=GROUP, spec=spec, layers=(0, 3))
    pool = DevicePool([group], {GROUP: 4}, 8, torch.device("cpu"))
    host = HostPool({GROUP: 3}, {GROUP: pool.block_bytes(GROUP)})
    for layer in pool.layers.values():
        for tensor in (layer.keys, layer.values):
            tensor.copy_(torch.randn(tensor.shape))
    before = [pool.read_block(GROUP, BlockId(block), 8) for block in range(4)]
    mover = TierMover(pool, host, None)
    mover.execute([Demote(GROUP, BlockId(1), BlockId(2)), Demote(GROUP, BlockId(3), BlockId(0))])
    assert mover.fetch(Promote(GROUP, BlockId(2), BlockId(3)))
    assert mover.fetch(Promote(GROUP, BlockId(0), BlockId(1)))
    after = [pool.read_block(GROUP, BlockId(block), 8) for block in range(4)]
    assert after == [before[0], before[3], before[2], before[1]]
    assert before[1] != before[3]


def test_places_do_not_overlap() -> None:
    host = HostPool({GROUP: 3}, {GROUP: 5})
    for place in range(3):
        host.view(GROUP, BlockId(place))[:] = bytes([place]) * 5
    held = [bytes(host.view(GROUP, BlockId(place))) for place in range(3)]
    assert held == [bytes([number]) * 5 for number in range(3)]
    assert host.num_bytes == 15


def test_memory_that_is_not_to_be_had_is_said_with_what_to_do() -> None:
    with pytest.raises(OutOfMemory, match="--kv-host-bytes"):
        HostPool({GROUP: 1 << 40}, {GROUP: 1 << 30})
