"""The bytes of blocks on the device.

Layer-major: each layer of a group has one tensor of keys [N, H_kv, P, D_k] and one of values [N, H_kv, P,
D_v], so one head's part of a block is contiguous. In host memory and on disk a block is one run of bytes,
layer after layer, K before V; `read_block` and `write_block` convert. Dimensions: N blocks, H_kv key-value
heads, P block size, D head size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.cache.spec import FullSpec, Group
from kvchat.engine.memory.block_file import Region
from kvchat.errors import OutOfMemory

TORCH_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "U8": torch.uint8}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items() if dtype.is_floating_point}
"""Of the types in which models compute keys and values."""


@dataclass(frozen=True, slots=True)
class LayerPool:
    """One layer's part of its group's pool."""

    group: GroupId
    spec: FullSpec
    keys: Tensor
    values: Tensor


class DevicePool:
    """Allocates all pools at once and moves bytes between blocks and outside memory."""

    def __init__(
        self, groups: Sequence[Group], num_blocks: dict[GroupId, int], block_size: int, device: torch.device
    ) -> None:
        self.block_size = block_size
        self.layers: dict[int, LayerPool] = {}
        self._device = device
        self._groups = {group.id: group for group in groups}
        self._memory: dict[GroupId, list[tuple[memoryview, int]]] = {}
        try:
            for group in groups:
                for layer in group.layers:
                    self.layers[layer] = _allocate(group, num_blocks[group.id], block_size, device)
        except (RuntimeError, MemoryError) as error:
            total = sum(group.block_bytes(block_size) * num_blocks[group.id] for group in groups)
            raise OutOfMemory(
                f"the cache of {total} bytes does not fit into memory; give less with --kv-device-bytes"
            ) from error

    @property
    def num_bytes(self) -> int:
        """Bytes of all pools, from the tensors themselves."""
        return sum(pool.keys.nbytes + pool.values.nbytes for pool in self.layers.values())

    def block_bytes(self, group: GroupId) -> int:
        return self._groups[group].block_bytes(self.block_size)

    def layouts(self) -> dict[GroupId, tuple[Region, ...]]:
        """Return, for each group, the tensors of one block in the order of their bytes; none is empty."""
        return {
            group.id: tuple(
                region
                for layer in group.layers
                for part in "kv"
                if (region := _region(layer, part, group.spec, self.block_size)).nbytes
            )
            for group in self._groups.values()
        }

    def copy(self, group: GroupId, source: BlockId, target: BlockId, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of one block to another in every layer of the group."""
        assert source != target
        for layer in self._groups[group].layers:
            pool = self.layers[layer]
            pool.keys[target, :, :num_tokens].copy_(pool.keys[source, :, :num_tokens])
            pool.values[target, :, :num_tokens].copy_(pool.values[source, :, :num_tokens])

    def read_block(self, group: GroupId, block: BlockId, num_tokens: int) -> bytes:
        """Return a block as one run of bytes; slots behind the first `num_tokens` are zero."""
        views = self.views(group, block)
        if views is not None and num_tokens == self.block_size:
            return b"".join(views)
        return b"".join(_bytes(region, num_tokens) for region in self._regions(group, block))

    def read_into(self, group: GroupId, block: BlockId, out: memoryview) -> None:
        """Copy a whole block into `out`, a writable run of bytes of exactly its size."""
        views = self.views(group, block)
        if views is not None:
            for view, place in _aligned(views, memoryview(out)):
                place[:] = view
            return
        for region, part in self._parts(group, block, out):
            part.copy_(region)

    def write_block(self, group: GroupId, block: BlockId, data: bytearray | memoryview) -> None:
        """Fill a block from one writable run of bytes of exactly its size."""
        views = self.views(group, block)
        if views is not None:
            for view, place in _aligned(views, memoryview(data)):
                view[:] = place
            return
        for region, part in self._parts(group, block, data):
            region.copy_(part)

    def views(self, group: GroupId, block: BlockId) -> list[memoryview] | None:
        """Return a block's regions as writable memory, in the order of its bytes; None off the processor.

        What is read into them needs no other copy.
        """
        if self._device.type != "cpu":
            return None
        if group not in self._memory:
            self._memory[group] = [_memory(tensor) for tensor in self._tensors(group)]
        return [memory[block * size : (block + 1) * size] for memory, size in self._memory[group]]

    def _parts(
        self, group: GroupId, block: BlockId, data: bytearray | memoryview
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each region of a block with its part of `data` as a tensor of its shape."""
        assert len(data) == self.block_bytes(group)
        flat = torch.frombuffer(data, dtype=torch.uint8)
        start = 0
        for region in self._regions(group, block):
            end = start + region.nbytes
            yield region, flat[start:end].view(region.dtype).view(region.shape)
            start = end

    def _regions(self, group: GroupId, block: BlockId) -> list[Tensor]:
        return [tensor[block] for tensor in self._tensors(group)]

    def _tensors(self, group: GroupId) -> list[Tensor]:
        layers = [self.layers[layer] for layer in self._groups[group].layers]
        return [tensor for layer in layers for tensor in (layer.keys, layer.values)]


def _memory(tensor: Tensor) -> tuple[memoryview, int]:
    """Return a pool's tensor [N, ...] as bytes, and how many of them one block has."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy().data), tensor[0].nbytes


def _aligned(views: Sequence[memoryview], run: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield each view with its part of one run of bytes of their size."""
    assert len(run) == sum(map(len, views))
    start = 0
    for view in views:
        yield view, run[start : start + len(view)]
        start += len(view)


def _allocate(group: Group, num_blocks: int, block_size: int, device: torch.device) -> LayerPool:
    spec = group.spec
    dtype = TORCH_DTYPES[spec.dtype]
    shape = (num_blocks, spec.num_kv_heads, block_size)
    return LayerPool(
        group=group.id,
        spec=spec,
        keys=torch.empty(*shape, spec.head_dim_k, dtype=dtype, device=device),
        values=torch.empty(*shape, spec.head_dim_v, dtype=dtype, device=device),
    )


def _region(layer: int, part: str, spec: FullSpec, block_size: int) -> Region:
    dim = spec.head_dim_k if part == "k" else spec.head_dim_v
    return Region(name=f"layers.{layer}.{part}", dtype=spec.dtype, shape=(spec.num_kv_heads, block_size, dim))


def _bytes(region: Tensor, num_tokens: int) -> bytes:
    """Return [H_kv, P, D] as bytes with the slots behind `num_tokens` cleared."""
    if num_tokens < region.shape[1]:
        region = region.clone()
        region[:, num_tokens:] = 0
    return region.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes()
