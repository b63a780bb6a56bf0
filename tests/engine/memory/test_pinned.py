"""Slabs of pinned memory hold every place once, and little is lost to torch's rounding."""

import ctypes
import gc
from random import Random

import pytest
import torch

from kvchat.engine.api.ids import BlockId
from kvchat.engine.memory import pinned
from kvchat.engine.memory.disk.open_tier import WRITE_QUEUE_BYTES
from kvchat.engine.memory.pinned import pinned_bytes, pinned_map, slab_places
from kvchat.engine.memory.saver import AsyncSaves
from tests.engine.memory.delayed_streams import DelayedStreams
from tests.engine.memory.test_host_copies import GROUPS, make_pool

pytestmark = pytest.mark.cpu

MIB = 2**20


def taken(num_places: int, place_bytes: int) -> int:
    """Return the bytes that all slabs take from the system."""
    return sum(pinned_bytes(count * place_bytes) for count in slab_places(num_places, place_bytes))


@pytest.mark.parametrize("seed", range(4))
def test_slabs_of_any_places_waste_little(seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        num_places, place_bytes = random.randint(1, 2000), random.randint(1, 32 * MIB)
        slabs = slab_places(num_places, place_bytes)
        assert sum(slabs) == num_places
        assert all(0 < count * place_bytes <= pinned.SLAB_BYTES for count in slabs)
        num_bytes = num_places * place_bytes
        assert taken(num_places, place_bytes) <= num_bytes * 8 / 7 + 2 * pinned_bytes(place_bytes)
        assert len(slabs) <= num_places // (pinned.SLAB_BYTES // place_bytes) + 8


@pytest.mark.parametrize("block_mib", [0.012, 0.1875, 0.75, 1.75, 2, 5, 8])
def test_what_waits_to_be_written_takes_hardly_more_than_it_is(block_mib: float) -> None:
    """One block more than the queue holds took twice the queue."""
    block_bytes = int(block_mib * MIB)
    num_places = WRITE_QUEUE_BYTES // block_bytes + 1
    needed = num_places * block_bytes
    assert pinned_bytes(needed) > 1.7 * needed
    assert taken(num_places, block_bytes) < 1.15 * needed


def test_all_memory_of_what_is_saved_is_pinned_at_the_start() -> None:
    """Pinning takes its time, and a step has none."""
    pool = make_pool()
    made: list[int] = []

    def allocate(num_bytes: int) -> torch.Tensor:
        made.append(num_bytes)
        return torch.zeros(num_bytes, dtype=torch.uint8)

    size = pool.block_bytes(GROUPS[0])
    streams = DelayedStreams(0)
    saves = AsyncSaves(pool, streams, 8 * size, allocate)
    at_start = list(made)
    assert sum(at_start) >= 9 * size
    for number in range(9):
        assert saves.has_room(GROUPS[0])
        saves.take(GROUPS[0], BlockId(number % 3), 1)
    assert made == at_start


class Driver:
    """Notes what is pinned, and whether it is still there when it is let go of. `error`: what it answers."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.held: dict[int, int] = {}
        self.num_let_go = 0

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:
        if not self.error:
            self.held[address] = num_bytes
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        num_bytes = self.held.pop(address)
        assert bytes(memoryview((ctypes.c_char * num_bytes).from_address(address))[:2]) == b"\x07\x00"
        self.num_let_go += 1
        return 0


def test_a_map_is_pinned_as_it_is_and_let_go_of_before_its_memory_goes() -> None:
    """However long a view of it lives; the driver still finds in it what was written."""
    driver = Driver()
    memory = pinned_map(100_003, driver)
    assert driver.held == {memory.data_ptr(): 100_003}
    assert not memory.any()
    memory[0] = 7
    part = memory[100:200]
    del memory
    gc.collect()
    assert len(driver.held) == 1
    del part
    gc.collect()
    assert (driver.held, driver.num_let_go) == ({}, 1)


def test_memory_that_the_driver_does_not_pin_is_used_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    memory = pinned_map(5000, driver := Driver(error=2))
    memory.fill_(3)
    assert int(memory.sum()) == 15_000
    assert "not pinned, so reading it is slower: CUDA error 2" in caplog.text
    del memory
    gc.collect()
    assert driver.num_let_go == 0
