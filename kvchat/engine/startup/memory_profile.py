"""Memory plan: measured allocations of a step, and what they leave for the cache.

Before the pools exist, two short steps are run at the end of a full context and two at its beginning, on one
block per group that every table entry points to. The peak lies in the attention or in the layers beside it,
and grows linearly with the tokens of a step in either; at the end of a context attention hides the others, so
the steeper of both growths bounds the largest step.

The end of a long context costs seconds for each dozen of layers, and layers of one sort allocate the same one
after the other. So only the first of every sort run there, if the whole model at the beginning, without the
products of its linear layers, shows that later layers neither hold more nor find more that earlier ones left.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import nn

from kvchat.engine.api.config import Capacity, PoolCapacity
from kvchat.engine.api.ids import BlockId, GroupId, RequestId, SequenceId
from kvchat.engine.cache.block_operations import TableChange
from kvchat.engine.formats.format_table import metadata_builders
from kvchat.engine.formats.pool_sizing import Lengths, least_blocks
from kvchat.engine.formats.spec import Group
from kvchat.engine.forward.activation_memory import Allocation, layer_parts, peak_bytes
from kvchat.engine.forward.runner import ForwardPass, Runner
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.probing.first_layers import (
    first_layers,
    layers_of,
    num_telling_layers,
    without_products,
)
from kvchat.engine.sequences.batch_plan import Batch, Chunk
from kvchat.errors import UnsupportedModel

PROBE_LENS = (8, 24)
_BRANCH = SequenceId(0)

log = logging.getLogger(__name__)


def activation_bytes(
    module: nn.Module,
    make_pass: Callable[[DevicePool], ForwardPass],
    groups: Sequence[Group],
    lengths: Lengths,
) -> int:
    """Return the peak of what the largest step allocates at the end of the longest conversation.

    Args:
        make_pass: makes a pass of `module`.

    Effect:
        Runs the model a few times on a pool of its own; whoever serves it makes a forward pass again.

    Raises:
        UnsupportedModel: it does not compute at the end of the longest conversation.
    """
    device = next(module.parameters()).device
    pool = DevicePool(groups, {group.id: 1 for group in groups}, lengths.block_size, device)
    forward = make_pass(pool)
    short, long = (min(length, lengths.context_len) for length in PROBE_LENS)

    def step(start: int, num_tokens: int) -> None:
        # A new one, since it keeps what it once made.
        runner = Runner(forward, metadata_builders(groups, lengths.block_size))
        try:
            runner.run(_batch(groups, lengths.block_size, start, num_tokens))
        except IndexError as error:
            raise UnsupportedModel(
                f"the model has no position {start + num_tokens - 1}, though its context is to be "
                f"{lengths.context_len} tokens; correct its config, or choose another model"
            ) from error

    def peak(start: int, num_tokens: int) -> int:
        return peak_bytes(partial(step, start, num_tokens))

    with first_layers(module, _num_telling(module, groups, partial(step, 0, long))):
        high = peak(lengths.context_len - long, long)
        growths = (high - peak(lengths.context_len - short, short), peak(0, long) - peak(0, short))
    slope = max(0, *growths) / max(1, long - short)
    return int(high + slope * max(0, lengths.chunk_len - long))


def _num_telling(module: nn.Module, groups: Sequence[Group], run: Callable[[], None]) -> int | None:
    """Return how many first layers hold as much at one time as all of them; None: only all do."""
    layers, number = layers_of(module), num_telling_layers(module, groups)
    if number is None or number == len(layers):
        return None
    # Layers of one sort have products of the same sizes, so whatever these take is no difference.
    with without_products(module):
        whole = layer_parts(layers, run)
        with first_layers(module, number):
            first = layer_parts(layers, run)
    if len(whole) == len(layers) + 1 and len(first) == number + 1 and _holds_as_much(first, whole):
        return number
    log.info("what a step allocates is measured on all layers: some hold more than the first %d", number)
    return None


def _holds_as_much(first: Sequence[Allocation], whole: Sequence[Allocation]) -> bool:
    """Compare a model's first layers with all; the last part of each holds what is behind the layers too."""
    early, late = whole[1 : len(first)], whole[len(first) :]
    starts_alike = _most_at_start(late) <= _most_at_start(early)
    return starts_alike and _most(late[:-1]) <= _most(early) and _most(late[-1:]) <= _most(first)


def _most_at_start(parts: Sequence[Allocation]) -> int:
    return max(part.start_bytes for part in parts)


def _most(parts: Sequence[Allocation]) -> int:
    return max((part.peak_bytes for part in parts), default=0)


def measured(
    groups: Sequence[Group],
    num_blocks: Mapping[GroupId, int],
    lengths: Lengths,
    activation: int,
    beside: tuple[int, int] = (0, 0),
) -> Capacity:
    """Return what pools of these sizes hold; those of remote blocks lie in host memory.

    Args:
        beside: bytes of the host tier, and of the device that shadows may take.
    """
    size = lengths.block_size
    num_bytes = {group: group.block_bytes(size) * num_blocks[group.id] for group in groups}
    remote_bytes = sum(of_group for group, of_group in num_bytes.items() if group.in_host_memory)
    of_tokens = [group for group in groups if not group.is_state]
    unbounded = [group for group in of_tokens if group.spec.max_visible is None] or of_tokens
    pools = tuple(_pool(group, num_blocks[group.id], lengths) for group in groups)
    return Capacity(
        activation_bytes=activation,
        device_bytes=sum(num_bytes.values()) - remote_bytes + beside[1],
        host_bytes=beside[0] + remote_bytes,
        num_blocks=sum(num_blocks.values()),
        num_tokens=min((num_blocks[group.id] for group in unbounded), default=lengths.context_len) * size,
        max_concurrency=min(pool.max_concurrency for pool in pools),
        pools=pools,
    )


def _pool(group: Group, num_blocks: int, lengths: Lengths) -> PoolCapacity:
    needed = least_blocks(group, lengths.context_len, lengths.chunk_len, lengths.block_size)
    holds_all = group.spec.max_visible is None and not group.is_state
    return PoolCapacity(
        group=group.id,
        kind=group.spec.kind,
        num_blocks=num_blocks,
        num_tokens=num_blocks * lengths.block_size if holds_all else None,
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
