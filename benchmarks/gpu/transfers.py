"""Blocks on their way to host memory and back, by the engine's own transport."""

from collections.abc import Callable, Iterator

import torch

from benchmarks.gpu import ceilings
from benchmarks.gpu.stage import Stage
from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.cache.block_operations import Demote, Promote
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.stream_protocol import InlineStreams
from kvchat.engine.memory.cuda_streams import CudaStreams
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.host_copies import AsyncTransport
from kvchat.engine.memory.host_pool import HostPool, MappedArena
from kvchat.engine.memory.pinned import PinnedSlabs
from kvchat.engine.memory.rates import Rates

GROUP = GroupId(0)


def move_there_and_back(stage: Stage) -> Iterator[tuple[str, str, int, Callable[[], None]]]:
    """Yield name, ceiling, bytes and action of moving 32 blocks to host memory, and back."""
    num_layers, heads, dim, count = (2, 2, 8, 3) if stage.is_dry else (32, 8, 128, 32)
    spec = FullSpec(
        num_kv_heads=heads, head_dim_k=dim, head_dim_v=dim, dtype="F32" if stage.is_dry else "BF16"
    )
    group = Group(id=GROUP, spec=spec, layers=tuple(range(num_layers)))
    block_size = 4 if stage.is_dry else 64
    pool = DevicePool([group], {GROUP: count}, block_size, stage.device)
    on_gpu = stage.device.type == "cuda"
    sizes = {GROUP: pool.block_bytes(GROUP)}
    host = HostPool({GROUP: count}, sizes, PinnedSlabs if on_gpu else MappedArena)
    streams = CudaStreams(stage.device) if on_gpu else InlineStreams()
    transport = AsyncTransport(pool, host, Rates(), streams)
    demotes = [Demote(GROUP, BlockId(number), BlockId(number)) for number in range(count)]

    def demote() -> None:
        transport.execute(demotes)
        transport.settle()

    def promote() -> None:
        for number in range(count):
            transport.promote(Promote(GROUP, BlockId(number), BlockId(number)))

    before = torch.stack([layer.keys.view(torch.uint8).sum() for layer in pool.layers.values()])
    num_bytes = count * sizes[GROUP]
    yield f"{count} blocks to host memory", ceilings.TO_HOST, num_bytes, demote
    yield f"{count} blocks back, one by one", ceilings.FROM_HOST, num_bytes, promote
    after = torch.stack([layer.keys.view(torch.uint8).sum() for layer in pool.layers.values()])
    assert torch.equal(before, after), "blocks came back changed"
