"""What a step allocates beside weights and cache, measured, and what that leaves for the cache.

Before the pools exist, two short steps are run at the end of a full context and two at its beginning, on one
block per group that every table entry points to. The peak lies in the attention or in the layers beside it,
and grows linearly with the tokens of a step in either; at the end of a context attention hides the others, so
the steeper of both growths bounds the largest step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kvchat.engine.activation import peak_bytes
from kvchat.engine.api.config import Capacity, PoolCapacity
from kvchat.engine.api.ids import BlockId, BranchId, GroupId, RequestId
from kvchat.engine.batch import Batch, Chunk
from kvchat.engine.cache.plan import TableChange
from kvchat.engine.cache.sizing import least_blocks
from kvchat.engine.cache.spec import Group
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.runner import ForwardPass, Runner
from kvchat.errors import UnsupportedModel

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
        Runs the model four times on a pool of its own; whoever serves the model makes a forward pass again.

    Raises:
        UnsupportedModel: it does not compute at the end of the longest conversation.
    """
    pool = DevicePool(groups, {group.id: 1 for group in groups}, lengths.block_size, device)
    runner = Runner(make_pass(pool), groups, lengths.block_size)
    short, long = (min(length, lengths.context_len) for length in PROBE_LENS)

    def peak(start: int, num_tokens: int) -> int:
        batch = _batch(groups, lengths.block_size, start, num_tokens)
        try:
            return peak_bytes(partial(runner.run, batch))
        except IndexError as error:
            raise UnsupportedModel(
                f"the model has no position {start + num_tokens - 1}, though its context is to be "
                f"{lengths.context_len} tokens; correct its config, or choose another model"
            ) from error

    high = peak(lengths.context_len - long, long)
    growths = (high - peak(lengths.context_len - short, short), peak(0, long) - peak(0, short))
    slope = max(0, *growths) / max(1, long - short)
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
    pools = tuple(_pool(group, num_blocks[group.id], lengths) for group in groups)
    return Capacity(
        activation_bytes=activation,
        device_bytes=sum(group.block_bytes(size) * num_blocks[group.id] for group in groups),
        host_bytes=host_bytes,
        num_blocks=sum(num_blocks.values()),
        num_tokens=min(num_blocks[group.id] for group in unbounded) * size,
        max_concurrency=min(pool.max_concurrency for pool in pools),
        pools=pools,
    )


def _pool(group: Group, num_blocks: int, lengths: Lengths) -> PoolCapacity:
    needed = least_blocks(group, lengths.context_len, lengths.chunk_len, lengths.block_size)
    return PoolCapacity(
        group=group.id,
        kind=group.spec.kind,
        num_blocks=num_blocks,
        num_tokens=num_blocks * lengths.block_size if group.spec.max_visible is None else None,
        max_concurrency=num_blocks / needed,
    )


def _batch(groups: Sequence[Group], block_size: int, start: int, num_tokens: int) -> Batch:
    """Return a step of one conversation that computes [start, start + num_tokens), whose table names block 0
    everywhere.
    """
    changes = []
    for group in groups:
        first = group.spec.first_visible(start) // block_size
        end_block = group.num_blocks(start + num_tokens, block_size)
        changes.append(TableChange(_BRANCH, group.id, first, (BlockId(0),) * (end_block - first)))
    chunk = Chunk(RequestId(0), _BRANCH, start, (0,) * num_tokens, samples=True)
    return Batch((chunk,), (), tuple(changes), ())
