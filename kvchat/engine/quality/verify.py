"""Holds stored KV to what the model computes: block by block, and by the logits that follow from it.

It is computed behind a given past, in a namespace that nobody else can reach.
"""

import secrets
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf

import torch
from torch import Tensor

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, RequestId
from kvchat.engine.api.inspection import PathBlock
from kvchat.engine.formats.attention_metadata import TORCH_DTYPES, LayerPool
from kvchat.engine.formats.format_table import codec_of
from kvchat.engine.formats.full.codec import Codec, relative
from kvchat.engine.formats.recurrent.spec import computes_whole_steps
from kvchat.engine.formats.spec import CacheSpec, Group
from kvchat.engine.memory.disk.block_file import BlockHeader, Layout
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.sequences.batch_plan import Batch, Chunk
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.startup.parts import EngineParts
from kvchat.errors import ConfigError, PoolExhausted, StorageError

TOLERANCE = {"F32": 1e-3, "F16": 2e-2, "BF16": 1e-1, "U8": 0.2}
"""Largest deviation, relative to the largest number of a layer's part of a block. Sums are taken in another
order where a prompt was computed in other chunks or on another device; forged numbers are far beyond this. In
8-bit records the least deviation can move a number to its next code, an eighth of it."""

_NO_ROOM = (
    "the disk limit has no room for what was computed; give it more with KVCHAT_KV_DISK_BYTES, or look at a"
    " part of it with --sample"
)


@dataclass(slots=True)
class Findings:
    """What has been found so far. A block counts once, whatever the number of its groups."""

    num_blocks: int = 0
    num_exact: int = 0
    """Blocks with the very same bits."""
    worst: float = 0.0
    """The largest relative deviation of a block that passed."""
    different: list[BlockKey] = field(default_factory=list)
    num_logits: int = 0
    worst_logits: float = 0.0
    """The largest relative deviation of logits behind stored KV."""
    wrong_logits: int = 0


ReadPast = Callable[[int, GroupId], bytes | None]
"""Gives the bytes of a block by its number and group; None where they are out of sight."""

_OWNER = "verify"


@dataclass(frozen=True, slots=True)
class ComputedBlock:
    """A block that has just been computed, readable until the next one is asked for."""

    number: int
    read: Callable[[GroupId, int], bytes]
    """(group, number of tokens) -> the block's bytes, zero behind its tokens."""


class Recompute:
    """Runs one engine's model on paths of token ids, outside of its requests.

    Args:
        parts: of an engine that does nothing else meanwhile, without tiers below the device.
        chunk_len: most tokens computed at once.
    """

    def __init__(self, parts: EngineParts, chunk_len: int) -> None:
        self.groups = parts.manager.groups
        self._manager = parts.manager
        self._mover = parts.mover
        self._runner = parts.runner
        self._pool = parts.pool
        self._block_size = parts.info.block_size
        self._chunk_len = max(1, chunk_len // self._block_size) * self._block_size

    def blocks(
        self, token_ids: abc.Sequence[int], start: int, past: ReadPast, ends: Iterable[int] = ()
    ) -> Iterator[ComputedBlock]:
        """Yield the blocks from position `start` on, a multiple of the block size, the tail included.

        Args:
            ends: behind how many tokens recurrent states can be read too.
        """
        assert start % self._block_size == 0
        sequence = self._begin(token_ids, start, past)
        if any(group.is_state for group in self.groups):
            sequence.snapshots_at = tuple(sorted({*ends, len(token_ids)}))
        try:
            while sequence.num_uncomputed:
                first = sequence.computed_len // self._block_size
                num_tokens = min(self._chunk_len, sequence.num_uncomputed)
                self._run(sequence, num_tokens, samples=False)
                last = -(-(sequence.computed_len + num_tokens) // self._block_size)
                for number in range(first, last):
                    yield ComputedBlock(number, self._reader(sequence, number, num_tokens))
                self._commit(sequence, num_tokens)
        finally:
            self._manager.release(sequence)

    def last_logits(self, token_ids: abc.Sequence[int], start: int, past: ReadPast) -> Tensor:
        """Return the logits [V] behind the last token, everything before `start` being given."""
        sequence = self._begin(token_ids, start, past)
        try:
            while True:
                num_tokens = min(self._chunk_len, sequence.num_uncomputed)
                is_last = num_tokens == sequence.num_uncomputed
                logits = self._run(sequence, num_tokens, samples=is_last)
                self._commit(sequence, num_tokens)
                if is_last:
                    return logits[0]
        finally:
            self._manager.release(sequence)

    def _begin(self, token_ids: abc.Sequence[int], start: int, past: ReadPast) -> Sequence:
        """Return a sequence whose first `start` positions hold the given past."""
        sequence = self._manager.open(_OWNER, token_ids, f"verify:{secrets.token_hex(16)}")
        try:
            while sequence.computed_len < start:
                num_tokens = min(self._chunk_len, start - sequence.computed_len)
                self._extend(sequence, num_tokens)
                for group in self.groups:
                    self._fill(sequence, group, sequence.computed_len + num_tokens, past)
                self._commit(sequence, num_tokens)
        except BaseException:
            self._manager.release(sequence)
            raise
        return sequence

    def _fill(self, sequence: Sequence, group: Group, end: int, past: ReadPast) -> None:
        """Write the given past of one group, from the tokens that are computed up to `end`."""
        if group.is_state:  # its last entry stands behind these tokens, if any state was stored there
            state, data = sequence.tables[group.id][-1], past((end - 1) // self._block_size, group.id)
            if state is not None and data is not None:
                self._pool.write_block(group.id, state, bytearray(data))
            return
        first, last = (group.num_blocks(length, self._block_size) for length in (sequence.computed_len, end))
        for number in range(first, last):
            block, data = sequence.tables[group.id][number], past(number, group.id)
            if block is not None and data is not None:
                self._pool.write_block(group.id, block, bytearray(data))

    def _run(self, sequence: Sequence, num_tokens: int, *, samples: bool) -> Tensor:
        self._extend(sequence, num_tokens)
        start = sequence.computed_len
        chunk = Chunk(
            request=RequestId(0),
            sequence=sequence.id,
            start=start,
            token_ids=tuple(sequence.token_ids[start : start + num_tokens]),
            samples=samples,
            snapshots=sequence.snapshots_within(num_tokens),
        )
        changes, dropped = self._manager.log.take()
        return self._runner.run(Batch((chunk,), (), changes, dropped))

    def _extend(self, sequence: Sequence, num_tokens: int) -> None:
        planned = sequence.snapshots_within(num_tokens)
        moves = self._manager.extend(sequence, num_tokens)
        if moves is None or sequence.snapshots_within(num_tokens) != planned:
            raise PoolExhausted(
                f"{len(sequence.token_ids)} tokens do not fit into the cache; "
                "give it more with --kv-device-bytes"
            )
        self._mover.execute(moves)
        self._manager.device.finish_moves()

    def _commit(self, sequence: Sequence, num_tokens: int) -> None:
        self._manager.commit(sequence, num_tokens)
        self._manager.take_saves()  # nobody stores these

    def _reader(self, sequence: Sequence, number: int, num_run: int) -> Callable[[GroupId, int], bytes]:
        groups = {group.id: group for group in self.groups}
        start = sequence.computed_len
        stops = (*sequence.snapshots_within(num_run), start + num_run)

        def read(group: GroupId, num_tokens: int) -> bytes:
            if groups[group].is_state:
                entry = stops.index(number * self._block_size + num_tokens) + bool(start)
                state = sequence.tables[group][entry]
                assert state is not None
                return bytes(self._pool.read_block(group, state, self._block_size))
            source = groups[group].source
            block = sequence.tables[group if source is None else source][number]
            assert block is not None
            if source is None:
                return bytes(self._pool.read_block(group, block, num_tokens))
            return b"".join(_made_of(self._pool.layers[layer], block) for layer in groups[group].layers)

        return read


def _made_of(pool: LayerPool, block: BlockId) -> bytes:
    """Return what the codec of a layer's derived group makes of one of its blocks."""
    assert pool.derived is not None
    keys, values = (part.new_zeros(1, *part.shape[1:]) for part in (pool.derived.keys, pool.derived.values))
    made, at = replace(pool.derived, keys=keys, values=values), torch.tensor([block, 0], device=keys.device)
    codec_of(made.spec).copy_blocks(made, pool, at[:1], at[1:])
    return b"".join(part.cpu().view(torch.uint8).numpy().tobytes() for part in (keys, values))


class Verifier:
    """Compares the stored blocks of one fingerprint with freshly computed ones.

    Args:
        recompute: what computes.
        block_store: the stored blocks; what disagrees is set aside in it.

    Raises:
        ConfigError: the groups are those of a view. Blocks behind what it hides are not what their exact
            names say, and none of them may be written under these. Or a model with states attends by itself.
    """

    def __init__(self, recompute: Recompute, block_store: DiskStore) -> None:
        groups = recompute.groups
        if any(group.spec.selection.has_hidden_blocks for group in groups):
            raise ConfigError(
                "KV is verified in the format in which it is stored, and a view stores it exact; use "
                "--cache-format exact"
            )
        if computes_whole_steps(groups):
            raise ConfigError("states of a model that attends by itself cannot be verified yet")
        self._recompute = recompute
        self._groups = groups
        self._specs = {group.id: group.spec for group in groups}
        self._block_store = block_store
        self._size = block_store.block_size
        self.findings = Findings()
        self._done: set[BlockKey] = set()

    def check_path(self, path: abc.Sequence[int], targets: abc.Sequence[PathBlock]) -> Iterator[PathBlock]:
        """Compute a whole path from nothing, compare its stored blocks, and yield them one by one.

        Effect: stores what was computed under the native names, whether or not the stored blocks agree.

        Raises:
            StorageError: there is no room for it.
        """
        todo = [target for target in targets if target.key not in self._done]
        if not todo:
            return
        ends = [self._end(target) for target in todo]
        states = {group.id for group in self._groups if group.is_state}
        kept = [self._end(target) for target in todo if states & {*target.groups}]
        for block in self._recompute.blocks(path[: max(ends)], 0, _nothing, kept):
            for target in [target for target in todo if target.number == block.number]:
                self._compare(target, block, keep=True)
                yield target
        self._check_logits(path, max(ends), 0, _nothing, targets)

    def check_block(
        self, path: abc.Sequence[int], targets: abc.Sequence[PathBlock], target: PathBlock
    ) -> None:
        """Compute one block behind what is stored before it, and compare it."""
        end = self._end(target)
        past = self._stored_past(targets, target.number * self._size)
        start = target.number * self._size
        if not self._is_seen_in(past, start):
            start = 0
        for block in self._recompute.blocks(path[:end], start, past, [end]):
            if block.number == target.number:
                self._compare(target, block, keep=False)
        self._check_logits(path, end, start, past, [*targets, target])

    def _end(self, target: PathBlock) -> int:
        return target.number * self._size + len(target.token_ids)

    def _is_seen_in(self, past: ReadPast, position: int) -> bool:
        """Whether a past has the blocks that a query sees in each group, or behind which its state stands."""
        last = (position - 1) // self._size
        return all(
            past(number, group.id) is not None
            for group in self._groups
            for number in (
                range(max(0, last), last + 1)
                if group.is_state
                else range(
                    group.spec.first_visible(position) // self._size, group.num_blocks(position, self._size)
                )
            )
        )

    def _stored_past(self, targets: abc.Sequence[PathBlock], end: int) -> ReadPast:
        """Return a reader of what is stored of a path before `end`: the longest at each place, and the state
        that stands there.
        """
        states = {group.id for group in self._groups if group.is_state}
        with_state = [one for one in targets if states & {*one.groups} and self._end(one) == end]
        best: dict[int, PathBlock] = {}
        for target in targets:
            known = best.get(target.number)
            if known is None or len(known.token_ids) < len(target.token_ids):
                best[target.number] = target

        def read(number: int, group: GroupId) -> bytes | None:
            target = next(iter(with_state), None) if group in states else best.get(number)
            if target is None or group not in target.groups:
                return None
            return self._stored(group, target)

        return read

    def _compare(self, target: PathBlock, block: ComputedBlock, *, keep: bool) -> None:
        self._done.add(target.key)
        self.findings.num_blocks += 1
        worst, is_different = 0.0, False
        for group in target.groups:
            computed = block.read(group, len(target.token_ids))
            # What is kept has pushed it out, which says nothing of its bytes.
            if keep and not self._block_store.has(target.key, group):
                raise StorageError(_NO_ROOM)
            stored = self._stored(group, target)
            layout = self._block_store.layouts[group]
            found = inf if stored is None else deviation(stored, computed, layout, self._specs[group])
            worst = max(worst, found)
            if found > tolerance(layout):
                is_different = True
                self._block_store.set_aside(target.key, group)
            if keep:
                self._keep(group, target, computed)
        if is_different:
            self.findings.different.append(target.key)
        else:
            self.findings.num_exact += worst == 0.0
            self.findings.worst = max(self.findings.worst, worst)

    def _stored(self, group: GroupId, target: PathBlock) -> bytes | None:
        return self._block_store.read_if_sound(BlockHeader.of(group, target.parent, target.token_ids))

    def _keep(self, group: GroupId, target: PathBlock, computed: bytes) -> None:
        """Store what was computed under the native name."""
        header = BlockHeader.of(group, target.native_parent, target.token_ids)
        if self._block_store.write([(header, computed)], is_wanted=True):
            return
        if not self._block_store.has(header.key, group):
            raise StorageError(_NO_ROOM)

    def _check_logits(
        self, path: abc.Sequence[int], end: int, start: int, past: ReadPast, targets: abc.Sequence[PathBlock]
    ) -> None:
        """Compare logits at the end of a path's first `end` tokens with those that follow from what is
        stored of it; where layers keep states, those of the next token, which goes on from the stored ones.
        """
        path = path[: end + any(group.is_state for group in self._groups)]
        last = len(path) - 1
        stored = self._stored_past(targets, last)
        if last < 1 or not self._is_seen_in(stored, last):
            return
        computed = self._recompute.last_logits(path, start, past)
        found = relative(self._recompute.last_logits(path, last, stored), computed)
        self.findings.num_logits += 1
        if found > max(tolerance(layout) for layout in self._block_store.layouts.values()):
            self.findings.wrong_logits += 1
        else:
            self.findings.worst_logits = max(self.findings.worst_logits, found)


def deviation(stored: bytes, computed: bytes, layout: Layout, spec: CacheSpec | None = None) -> float:
    """Return the largest relative deviation over the tensors of a block; infinite where one is no number.

    Args:
        spec: what the tensors' bytes are; None: numbers.
    """
    if stored == computed:
        return 0.0
    codec = Codec() if spec is None else codec_of(spec)
    pairs = zip(_regions(stored, layout, codec), _regions(computed, layout, codec), strict=True)
    return max(codec.deviation(left, right) for left, right in pairs)


def tolerance(layout: Layout) -> float:
    return max(TOLERANCE[region.dtype] for region in layout)


def _regions(payload: bytes, layout: Layout, codec: Codec) -> Iterator[Tensor]:
    data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    start = 0
    for region in layout:
        end = start + region.nbytes
        stored = data[start:end].view(TORCH_DTYPES[region.dtype]).view(region.shape)
        yield from codec.numbers(stored, region.name)
        start = end


def _nothing(number: int, group: GroupId) -> bytes | None:
    return None
