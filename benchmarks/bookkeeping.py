"""What scheduling and block management cost, without a model: pure Python, one core."""

from random import Random
from typing import Any

from benchmarks.clock import cost_of
from benchmarks.table import Row
from kvchat.engine.api.ids import GroupId, RequestId
from kvchat.engine.api.request import Request
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import Group
from kvchat.engine.scheduling.scheduler import Scheduler
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.sequences.sequence import Sequence

BLOCK_SIZE = 64
NUM_SEQUENCES = 64
ROUNDS = 5
STEPS = 64


def measure() -> list[Row]:
    rows = [row for context_len in (512, 4096, 16384) for row in _step_rows(context_len)]
    waiting = [row for context_len in (512, 16384) for row in _step_rows(context_len, waiting_len=32768)]
    return [*rows, *waiting, *_match_rows(32768), *_children_rows(5000)]


def _manager(num_blocks: int) -> CacheManager:
    shape: dict[str, Any] = {"num_kv_heads": 8, "head_dim_k": 128, "head_dim_v": 128, "dtype": "BF16"}
    groups = (
        Group(id=GroupId(0), spec=FullSpec(**shape), layers=tuple(range(0, 32, 2))),
        Group(id=GroupId(1), spec=SlidingSpec(**shape, window_len=1024), layers=tuple(range(1, 32, 2))),
    )
    counts = {group.id: num_blocks for group in groups}
    device = DeviceTier(groups, counts, block_size=BLOCK_SIZE)
    return CacheManager(device, fingerprint=bytes(32))


def _step_rows(context_len: int, waiting_len: int = 0) -> list[Row]:
    """One decode step of all sequences: schedule, make slots writable, commit.

    Args:
        waiting_len: tokens of a prompt that waits for room meanwhile, half of it cached; 0: none waits.
    """
    manager = _manager(NUM_SEQUENCES * (context_len // BLOCK_SIZE + 8) + waiting_len // BLOCK_SIZE // 2)
    scheduler = Scheduler(manager, max_batch_tokens=8192)
    random = Random(0)
    if waiting_len:
        waiting = [random.randrange(32000) for _ in range(waiting_len)]
        cached = manager.open("", waiting[: waiting_len // 2])
        manager.extend(cached, cached.num_uncomputed)
        manager.commit(cached, cached.num_uncomputed)
        manager.release(cached)
    for number in range(NUM_SEQUENCES):
        token_ids = tuple(random.randrange(32000) for _ in range(context_len))
        sequence = manager.open("", token_ids)
        request = Request(token_ids=token_ids)
        scheduler.add(_entry(number, request, sequence))
        scheduler.admit(scheduler.waiting[0])
    while any(entry.sequence.num_uncomputed > 1 for entry in scheduler.running):
        _step(scheduler, random)
    if waiting_len:
        request = Request(token_ids=tuple(waiting))
        scheduler.add(_entry(NUM_SEQUENCES, request, manager.open("", waiting)))
    costs = [cost_of(lambda: [_step(scheduler, random) for _ in range(STEPS)]) for _ in range(ROUNDS)]
    assert bool(scheduler.waiting) == bool(waiting_len)
    name = f"decode step, {NUM_SEQUENCES} sequences of {context_len:,} tokens"
    name += f", {waiting_len:,} waiting" if waiting_len else ""
    return [
        Row.of(name, "ms", [cost.cpu_s / STEPS * 1e3 for cost in costs], "under 1, processor time"),
        Row.of(name, "ms", [cost.wall_s / STEPS * 1e3 for cost in costs], "wall time"),
    ]


def _entry(number: int, request: Request, sequence: Sequence) -> Completion:
    return Completion(
        id=RequestId(number),
        request=request,
        sequence=sequence,
        max_tokens=1 << 30,
        submitted_s=0.0,
        prompt_len=len(request.token_ids),
    )


def _step(scheduler: Scheduler, random: Random) -> None:
    if scheduler.waiting:
        scheduler.admit(scheduler.waiting[0])
    batch = scheduler.schedule()
    scheduler.manager.device.finish_moves()
    entries = {entry.id: entry for entry in scheduler.running}
    for chunk in batch.chunks:
        entry = entries[chunk.request]
        scheduler.manager.commit(entry.sequence, chunk.end - chunk.start)
        if chunk.samples:
            entry.sequence.token_ids.append(random.randrange(32000))
            entry.num_generated += 1
    scheduler.manager.take_saves()


def _match_rows(num_tokens: int) -> list[Row]:
    manager = _manager(num_tokens // BLOCK_SIZE + 8)
    random = Random(1)
    token_ids = [random.randrange(32000) for _ in range(num_tokens)]
    sequence = manager.open("", token_ids)
    manager.extend(sequence, num_tokens)
    manager.commit(sequence, num_tokens)
    probe = manager.open("", [*token_ids, 1])
    costs = [cost_of(lambda: manager.match(probe)) for _ in range(4 * ROUNDS)]
    assert manager.match(probe).length == num_tokens
    name = f"prefix match of {num_tokens:,} tokens"
    return [
        Row.of(name, "ms", [cost.cpu_s * 1e3 for cost in costs], "under 5, processor time"),
        Row.of(name, "ms", [cost.wall_s * 1e3 for cost in costs], "wall time"),
    ]


def _children_rows(num_children: int) -> list[Row]:
    """A prompt that ends inside a block, behind a parent with many blocks; their first tokens agree."""
    manager = _manager(num_children + 8)
    random = Random(2)
    first = [random.randrange(32000) for _ in range(BLOCK_SIZE + 4)]
    for _ in range(num_children):
        sequence = manager.open("", [*first, *(random.randrange(32000) for _ in range(BLOCK_SIZE - 4))])
        match = manager.match(sequence)
        manager.admit(sequence, match)
        manager.extend(sequence, sequence.num_uncomputed)
        manager.commit(sequence, sequence.num_uncomputed)
        manager.device.finish_moves()
        manager.release(sequence)
        manager.take_saves()
        manager.log.take()
    probe = manager.open("", [*first, *(random.randrange(32000) for _ in range(BLOCK_SIZE))])
    costs = [cost_of(lambda: manager.match(probe)) for _ in range(4 * ROUNDS)]
    assert manager.match(probe).length >= len(first)
    name = f"match inside a block with {num_children:,} siblings"
    return [
        Row.of(name, "ms", [cost.cpu_s * 1e3 for cost in costs], "under 1, processor time"),
        Row.of(name, "ms", [cost.wall_s * 1e3 for cost in costs], "wall time"),
    ]
