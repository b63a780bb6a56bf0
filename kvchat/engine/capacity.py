"""What a step allocates beside weights and cache, measured, and what that leaves for the cache.

Before the pools exist, two short steps are run at the end of a full context, on one block per group that
every table entry points to. What they allocate grows linearly with their tokens, so the largest step follows
from the two.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kvchat.engine.activation import peak_bytes
from kvchat.engine.api.config import Capacity
from kvchat.engine.api.ids import BlockId, BranchId, GroupId, RequestId
from kvchat.engine.batch import Batch, Chunk
from kvchat.engine.cache.plan import TableChange
from kvchat.engine.cache.sizing import least_blocks
from kvchat.engine.cache.spec import Group
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.runner import ForwardPass, Runner

PROBE_LENS = (8, 24)
_BRANCH = BranchId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of the longest conversation, of the largest step, and of a block."""

    context_len: int
    chunk_len: int
    block_size: int


def activation_bytes(
    make_pass: Callable[[DevicePool], ForwardPass],
    groups: Sequence[Group],
    device: torch.device,
    lengths: Lengths,
) -> int:
    """Return the peak of what the largest step allocates at the end of the longest conversation.

    Effect:
        Runs the model twice on a pool of its own; whoever serves the model makes a forward pass again.
    """
    pool = DevicePool(groups, {group.id: 1 for group in groups}, lengths.block_size, device)
    runner = Runner(make_pass(pool), groups, lengths.block_size)
    short, long = (min(length, lengths.context_len) for length in PROBE_LENS)
    batches = [_batch(groups, lengths, length) for length in (short, long)]
    low, high = (peak_bytes(partial(runner.run, batch)) for batch in batches)
    slope = max(0, high - low) / max(1, long - short)
    return int(high + slope * max(0, lengths.chunk_len - long))


def measured(
    groups: Sequence[Group],
    num_blocks: Mapping[GroupId, int],
    lengths: Lengths,
    activation: int,
    host_bytes: int,
) -> Capacity:
    """Return what pools of these sizes hold."""
    size = lengths.block_size
    unbounded = [group for group in groups if group.spec.max_visible is None] or list(groups)
    needs = {group.id: least_blocks(group, lengths.context_len, lengths.chunk_len, size) for group in groups}
    return Capacity(
        activation_bytes=activation,
        device_bytes=sum(group.block_bytes(size) * num_blocks[group.id] for group in groups),
        host_bytes=host_bytes,
        num_blocks=sum(num_blocks.values()),
        num_tokens=min(num_blocks[group.id] for group in unbounded) * size,
        max_concurrency=min(num_blocks[group] / needed for group, needed in needs.items()),
    )


def _batch(groups: Sequence[Group], lengths: Lengths, num_tokens: int) -> Batch:
    """Return the last step of one full conversation, whose table names block 0 everywhere."""
    block_size, start = lengths.block_size, lengths.context_len - num_tokens
    end_block = -(-lengths.context_len // block_size)
    changes = []
    for group in groups:
        first = group.spec.first_visible(start) // block_size
        changes.append(TableChange(_BRANCH, group.id, first, (BlockId(0),) * (end_block - first)))
    chunk = Chunk(RequestId(0), _BRANCH, start, (0,) * num_tokens, samples=True)
    return Batch((chunk,), (), tuple(changes), ())
