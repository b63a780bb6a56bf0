"""The bytes of blocks on the device; in pinned host memory where a GPU reads of them only what it needs.

Layer-major: a group has one tensor of all keys [L, N, H_kv, P, D_k] and one of all values [L, N, H_kv, P,
D_v]; a layer sees its part of both, in which one head's part of a block is contiguous. In host memory and on
disk a block is one run of bytes, layer after layer, K before V; `read_block` and `write_block` convert, with
one copy for all keys and one for all values. Dimensions: L layers of the group, N blocks, H_kv key-value
heads, P block size, D head size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvchat.engine.api.ids import BlockId, GroupId
from kvchat.engine.formats.attention_metadata import TORCH_DTYPES, LayerPool, layer_pools
from kvchat.engine.formats.spec import Group
from kvchat.engine.kernels.move_blocks import BlockMoves
from kvchat.engine.kernels.move_blocks.reference import BlockRegions
from kvchat.engine.kernels.read_block.native import ReadTargets
from kvchat.engine.memory.aligned_memory import PAGE, mapped
from kvchat.engine.memory.disk.block_file import Region
from kvchat.engine.memory.pinned import pinned_map
from kvchat.errors import OutOfMemory

DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items() if dtype.is_floating_point}
"""Of the types in which models compute keys and values."""


@dataclass(frozen=True, slots=True)
class GroupPool:
    """One group's keys and values as they are allocated, and the same memory as bytes.

    Args:
        parts: keys [L, N, H_kv, P, D_k], values [L, N, H_kv, P, D_v].
        memory: for each of the parts bytes [L, N, b], b of one layer and block; empty off the processor.
        moves: moves its blocks where they are no plain memory.
    """

    parts: tuple[Tensor, Tensor]
    memory: tuple[NDArray[np.uint8], ...]
    moves: BlockMoves


class DevicePool:
    """Allocates all pools at once and moves bytes between blocks and outside memory."""

    def __init__(
        self, groups: Sequence[Group], num_blocks: dict[GroupId, int], block_size: int, device: torch.device
    ) -> None:
        self.block_size = block_size
        self._groups = {group.id: group for group in groups}
        self._pools: dict[GroupId, GroupPool] = {}
        try:
            for group in groups:
                self._pools[group.id] = _allocate(group, num_blocks[group.id], block_size, device)
        except (RuntimeError, MemoryError, OSError, ValueError, OverflowError) as error:
            total = sum(group.block_bytes(block_size) * num_blocks[group.id] for group in groups)
            raise OutOfMemory(
                f"the cache of {total} bytes does not fit into memory; give less with --kv-device-bytes"
            ) from error
        self.layers = layer_pools(groups, {group: pool.parts for group, pool in self._pools.items()})
        self.states = {
            layer: LayerPool(group.id, group.spec, keys, values)
            for group in groups
            if group.is_state
            for layer, keys, values in zip(group.layers, *self._pools[group.id].parts, strict=True)
        }
        """Each layer's part of the pool that its state lies in."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all pools, from the tensors themselves."""
        return sum(part.nbytes for pool in self._pools.values() for part in pool.parts)

    def block_bytes(self, group: GroupId) -> int:
        return self._groups[group].block_bytes(self.block_size)

    def layouts(self) -> dict[GroupId, tuple[Region, ...]]:
        """Return, for each group, the tensors of one block in the order of their bytes; none is empty."""
        return {
            group.id: tuple(
                Region(name=f"layers.{layer}.{part}", dtype=group.spec.dtype, shape=shape)
                for layer in group.layers
                for part, shape in zip("kv", group.spec.shapes(self.block_size), strict=True)
                if prod(shape)
            )
            for group in self._groups.values()
        }

    @property
    def device(self) -> torch.device:
        return next(iter(self._pools.values())).parts[0].device

    def first_runs(self, num_bytes: int) -> list[NDArray[np.uint8]]:
        """Return the memory of the blocks that are handed out first, about so many bytes of them over all
        groups; none off the processor.
        """
        each = sum(group.block_bytes(self.block_size) for group in self._groups.values())
        return [
            layer[: num_bytes // each]
            for pool in self._pools.values()
            for memory in pool.memory
            for layer in memory
            if layer[: num_bytes // each].nbytes
        ]

    def moves(self, group: GroupId) -> BlockMoves:
        """Return what moves many blocks of a group at once, in the order of the device's work."""
        return self._pools[group].moves

    def copy(self, group: GroupId, source: BlockId, target: BlockId, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of one block to another in every layer of the group."""
        assert source != target
        for layer in self._groups[group].layers:
            pool = self.layers[layer]
            pool.keys[target, :, :num_tokens].copy_(pool.keys[source, :, :num_tokens])
            pool.values[target, :, :num_tokens].copy_(pool.values[source, :, :num_tokens])

    def read_block(self, group: GroupId, block: BlockId, num_tokens: int) -> bytearray:
        """Return a block as one run of bytes; slots behind the first `num_tokens` are zero."""
        data = bytearray(self.block_bytes(group))
        self.read_into(group, block, memoryview(data))
        self.clear_slots(group, memoryview(data), num_tokens)
        return data

    def clear_slots(self, group: GroupId, data: memoryview, num_tokens: int) -> None:
        """Fill slots behind the first `num_tokens` of a block's run of bytes with zeros."""
        if num_tokens == self.block_size:
            return
        for part, columns in self._columns(group, data):
            num_layers, _, num_heads, num_slots, dim = part.shape
            slots = columns.reshape(num_layers, num_heads, num_slots, dim * part.element_size())
            slots[:, :, num_tokens:] = 0

    def read_into(self, group: GroupId, block: BlockId, out: memoryview) -> None:
        """Copy a whole block into `out`, a writable run of bytes of exactly its size.

        Effect: on a processor in the calling thread alone, and other threads go on meanwhile.
        """
        pool = self._pools[group]
        if not pool.memory:
            torch.frombuffer(out, dtype=torch.uint8).copy_(pool.moves.gather([block])[0])
            return
        for number, (_, columns) in enumerate(self._columns(group, out)):
            np.copyto(columns, pool.memory[number][:, block])

    def write_block(self, group: GroupId, block: BlockId, data: bytearray | memoryview) -> None:
        """Fill a block from one run of bytes of exactly its size; otherwise as `read_into`."""
        pool = self._pools[group]
        if not pool.memory:
            pool.moves.scatter([block], torch.frombuffer(data, dtype=torch.uint8).to(self.device)[None])
            return
        for number, (_, columns) in enumerate(self._columns(group, data)):
            np.copyto(pool.memory[number][:, block], columns)

    def places(self, group: GroupId, block: BlockId) -> ReadTargets | None:
        """Return where a block's bytes are, in the order of its run; None where they are no plain memory."""
        memory = self._pools[group].memory
        if not memory:
            return None
        keys, values = memory
        return ReadTargets(
            starts=(keys[0, block].ctypes.data, values[0, block].ctypes.data),
            strides=(keys.strides[0], values.strides[0]),
            sizes=(keys.shape[2], values.shape[2]),
            num_layers=len(keys),
        )

    def _columns(
        self, group: GroupId, data: bytearray | memoryview
    ) -> Iterator[tuple[Tensor, NDArray[np.uint8]]]:
        """Yield keys and values of all layers with their part of a block's run of bytes as [L, b]."""
        assert len(data) == self.block_bytes(group)
        parts = self._pools[group].parts
        run = np.frombuffer(data, dtype=np.uint8).reshape(len(parts[0]), -1)
        start = 0
        for part in parts:
            end = start + _block_bytes(part)
            yield part, run[:, start:end]
            start = end


def _bytes(num_bytes: int, device: torch.device, *, in_host_memory: bool) -> Tensor:
    if device.type == "cpu":
        return torch.frombuffer(mapped(num_bytes), dtype=torch.uint8)
    if in_host_memory:
        return pinned_map(num_bytes)
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)


def _allocate(group: Group, num_blocks: int, block_size: int, device: torch.device) -> GroupPool:
    """Return a group's keys and values, one behind the other; both begin with a page, see `pages`."""
    spec = group.spec
    dtype = TORCH_DTYPES[spec.dtype]
    shapes = [(len(group.layers), num_blocks, *shape) for shape in spec.shapes(block_size)]
    values_at = -(-prod(shapes[0]) * dtype.itemsize // PAGE) * PAGE
    num_bytes = values_at + prod(shapes[1]) * dtype.itemsize
    whole = _bytes(num_bytes + PAGE, device, in_host_memory=group.in_host_memory)
    buffer = whole[-whole.data_ptr() % PAGE :][:num_bytes]
    keys, values = (
        buffer[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)
        for start, shape in zip((0, values_at), shapes, strict=True)
    )
    parts = (keys, values)
    memory = tuple(map(_memory, parts)) if buffer.device.type == "cpu" else ()
    return GroupPool(parts, memory, BlockMoves(_regions(buffer, parts, values_at)))


def _regions(buffer: Tensor, parts: tuple[Tensor, Tensor], values_at: int) -> BlockRegions:
    """Return where the regions of blocks lie, in the order of their run of bytes; none is empty."""
    num_layers, num_blocks = parts[0].shape[:2]
    regions = [
        (start + layer * num_blocks * _block_bytes(part), _block_bytes(part))
        for layer in range(num_layers)
        for start, part in zip((0, values_at), parts, strict=True)
        if _block_bytes(part)
    ]
    starts, sizes = zip(*regions, strict=True)
    return BlockRegions(buffer, starts, sizes)


def _memory(part: Tensor) -> NDArray[np.uint8]:
    """Return a tensor [L, N, ...] as bytes [L, N, b]."""
    memory: NDArray[np.uint8] = part.view(-1).view(torch.uint8).numpy()
    return memory.reshape(*part.shape[:2], _block_bytes(part))


def _block_bytes(part: Tensor) -> int:
    """Return the bytes of one layer and block."""
    return prod(part.shape[2:]) * part.element_size()
