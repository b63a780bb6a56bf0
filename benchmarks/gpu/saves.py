"""Blocks on their way to the disk, as far as the device and the engine's thread have to do with it."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from benchmarks.gpu import ceilings
from benchmarks.gpu.stage import Figure, Stage
from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.stream_protocol import InlineStreams
from kvchat.engine.memory.cuda_streams import CudaStreams
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.saver import AsyncCopy, AsyncSaves, SaveTransport

GROUP = GroupId(0)


def saving(stage: Stage) -> Iterator[Figure]:
    """Blocks taken off the device for the disk: all of it, and what the engine's thread does of it."""
    num_layers, heads, dim, count = (2, 2, 8, 3) if stage.is_dry else (32, 8, 128, 32)
    block_size, dtype = (4, "F32") if stage.is_dry else (64, "BF16")
    spec = FullSpec(num_kv_heads=heads, head_dim_k=dim, head_dim_v=dim, dtype=dtype)
    group = Group(id=GROUP, spec=spec, layers=tuple(range(num_layers)))
    pool = DevicePool([group], {GROUP: count}, block_size, stage.device)
    streams = CudaStreams(stage.device) if stage.device.type == "cuda" else InlineStreams()
    block_bytes = pool.block_bytes(GROUP)
    staged, at_once = AsyncSaves(pool, streams, count * block_bytes), SaveTransport(pool)
    taken: list[AsyncCopy] = []

    def take() -> None:
        for number in range(count):
            assert staged.has_room(GROUP)
            taken.append(staged.take(GROUP, BlockId(number), block_size))

    def arrive() -> None:
        while taken:
            one = taken.pop()
            one.wait()
            one.release()

    def read() -> None:
        for number in range(count):
            at_once.take(GROUP, BlockId(number), block_size)

    def both() -> None:
        take()
        arrive()

    rounds = 1 if stage.is_dry else 5
    whole = _timed(stage, both, rounds)
    name, num_bytes = f"{count} blocks to host memory, for the disk", count * block_bytes
    yield stage.rate(name, whole, num_bytes, "GB/s", ceiling=ceilings.TO_HOST)
    handed = _timed(stage, take, rounds, arrive)
    yield _per_block("of the engine's thread, handing a block over", handed, count)
    yield _per_block("of the engine's thread, reading a block itself", _timed(stage, read, rounds), count)


def _timed(
    stage: Stage, action: Callable[[], None], rounds: int, after: Callable[[], None] = lambda: None
) -> list[float]:
    """Return how long the calling thread is at it, each time behind a device that has nothing to do.

    Args:
        after: done each time, and not counted.
    """
    found = []
    for _ in range(rounds + 1):
        stage.synchronize()
        start_s = perf_counter()
        action()
        found.append(perf_counter() - start_s)
        after()
    return found[1:]


def _per_block(name: str, seconds: Sequence[float], count: int) -> Figure:
    each = sorted(1e6 * one / count for one in seconds)
    return Figure(name=name, unit="us", value=each[len(each) // 2], low=each[0], high=each[-1])
