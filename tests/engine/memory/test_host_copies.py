"""Blocks that move beside the computation hold what they would if everything happened at once, in order."""

from random import Random

import pytest
import torch

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.cache.block_operations import Copy, Demote, Move, Promote
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.stream_protocol import Stream
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.host_copies import AsyncTransport, Transport, runs_of
from kvchat.engine.memory.host_pool import HostPool
from kvchat.engine.memory.pinned import PinnedSlabs
from kvchat.engine.memory.rates import Rates
from tests.engine.memory.delayed_streams import DelayedStreams

pytestmark = pytest.mark.cpu

BLOCK_SIZE, NUM_BLOCKS, NUM_PLACES = 2, 6, 5
GROUPS = (GroupId(0), GroupId(1))


def make_pool() -> DevicePool:
    """Return a pool of zeros; regions of the second group are no whole words."""
    specs = (
        FullSpec(num_kv_heads=1, head_dim_k=4, head_dim_v=2, dtype="F32"),
        FullSpec(num_kv_heads=1, head_dim_k=3, head_dim_v=1, dtype="BF16"),
    )
    groups = [
        Group(id=GROUPS[0], spec=specs[0], layers=(0, 2)),
        Group(id=GROUPS[1], spec=specs[1], layers=(1,)),
    ]
    pool = DevicePool(groups, dict.fromkeys(GROUPS, NUM_BLOCKS), BLOCK_SIZE, torch.device("cpu"))
    for layer in pool.layers.values():
        layer.keys.zero_()
        layer.values.zero_()
    return pool


def make_host(pool: DevicePool) -> HostPool:
    """Return a host pool in slabs, as a device has one that copies by itself."""
    sizes = {group: pool.block_bytes(group) for group in GROUPS}
    return HostPool(
        dict.fromkeys(GROUPS, NUM_PLACES),
        sizes,
        lambda count, size: PinnedSlabs(count, size, lambda num: torch.zeros(num, dtype=torch.uint8)),
    )


def fill(pool: DevicePool, group: GroupId, block: int, number: int) -> None:
    """Write over a block, as computing does."""
    for layer in pool.layers.values():
        if layer.group == group:
            layer.keys[block] = number
            layer.values[block] = -number


def contents(pool: DevicePool, host: HostPool) -> list[bytes]:
    """Return what all blocks and places hold."""
    blocks = [
        bytes(pool.read_block(group, BlockId(b), BLOCK_SIZE)) for group in GROUPS for b in range(NUM_BLOCKS)
    ]
    return blocks + [bytes(host.view(group, BlockId(p))) for group in GROUPS for p in range(NUM_PLACES)]


def random_moves(random: Random, group: GroupId) -> list[Move]:
    moves: list[Move] = []
    for _ in range(random.randint(1, 5)):
        source, target = random.sample(range(NUM_BLOCKS), 2)
        if random.random() < 0.5:
            moves.append(Copy(group, BlockId(source), BlockId(target), BLOCK_SIZE))
        else:
            moves.append(Demote(group, BlockId(source), BlockId(random.randrange(NUM_PLACES))))
    return moves


def differs(seed: int, *, forgets: Stream | None = None, num_steps: int = 30) -> bool:
    """Run one random trace on streams and at once, and return whether any byte differs in the end."""
    random, pool, direct_pool = Random(seed), make_pool(), make_pool()
    host, direct_host = make_host(pool), make_host(direct_pool)
    direct = Transport(direct_pool, direct_host, Rates())
    streams = DelayedStreams(seed, forgets=forgets)
    staged = AsyncTransport(pool, host, Rates(), streams, most_bytes=6 * pool.block_bytes(GROUPS[0]))
    for number in range(1, num_steps):
        group, block = random.choice(GROUPS), random.randrange(NUM_BLOCKS)
        action = random.randrange(3)
        if action == 0:
            streams.compute(lambda of=(group, block, number): fill(pool, *of))
            fill(direct_pool, group, block, number)
        elif action == 1:
            moves = random_moves(random, group)
            staged.execute(moves)
            direct.execute(moves)
        else:
            move = Promote(group, BlockId(random.randrange(NUM_PLACES)), BlockId(block))
            staged.promote(move)
            direct.promote(move)
    staged.settle()
    streams.mark().wait()
    return contents(pool, host) != contents(direct_pool, direct_host)


@pytest.mark.parametrize("seed", range(12))
def test_delayed_moves_leave_what_moves_at_once_leave(seed: int) -> None:
    """Trap 21: whatever is overwritten, copied on or brought back right behind a move."""
    assert not differs(seed)


def test_moves_that_forget_what_they_come_after_are_seen() -> None:
    assert any(differs(seed, forgets=Stream.IN) for seed in range(12))
    with pytest.raises(IndexError):
        differs(0, forgets=Stream.OUT)


def test_a_plan_is_cut_where_its_order_matters() -> None:
    group, other = GROUPS

    def copy(source: int, target: int, of: GroupId = group) -> Copy:
        return Copy(of, BlockId(source), BlockId(target), BLOCK_SIZE)

    def demote(source: int, place: int) -> Demote:
        return Demote(group, BlockId(source), BlockId(place))

    plan = [
        copy(0, 1),
        copy(0, 2),
        copy(2, 3),
        copy(4, 3),
        copy(5, 4),
        demote(4, 0),
        demote(5, 1),
        copy(0, 1, other),
    ]
    cut = [list(run) for run in runs_of(plan)]
    assert cut == [plan[:2], plan[2:3], plan[3:4], plan[4:5], plan[5:7], plan[7:]]
    assert list(runs_of([])) == []


def test_no_more_than_allowed_is_under_way() -> None:
    pool = make_pool()
    host, size = make_host(pool), pool.block_bytes(GROUPS[0])
    staged = AsyncTransport(pool, host, Rates(), DelayedStreams(0), most_bytes=2 * size)
    for number in range(5):
        fill(pool, GROUPS[0], number, number + 1)
    staged.execute([Demote(GROUPS[0], BlockId(number), BlockId(number)) for number in range(5)])
    assert sum(leaving.num_bytes for leaving in staged._leaving) <= 2 * size
    staged.settle()
    for block in map(BlockId, range(5)):
        assert host.view(GROUPS[0], block) == pool.read_block(GROUPS[0], block, BLOCK_SIZE)


def test_slabs_are_made_when_they_are_used_and_hold_whole_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvchat.engine.memory.pinned.SLAB_BYTES", 20)
    made: list[int] = []

    def allocate(num_bytes: int) -> torch.Tensor:
        made.append(num_bytes)
        return torch.zeros(num_bytes, dtype=torch.uint8)

    slabs = PinnedSlabs(7, 6, allocate)
    assert made == []
    for place in range(7):
        slabs.view(place)[:] = bytes([place]) * 6
    assert made == [18, 18, 6]
    assert [bytes(slabs.view(place)) for place in range(7)] == [bytes([place]) * 6 for place in range(7)]
