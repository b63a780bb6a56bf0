"""Recomputation of KV behind a given past, in a namespace that nobody else can reach."""

import secrets
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvchat.engine.api.ids import BlockId, GroupId, RequestId
from kvchat.engine.formats.attention_metadata import LayerPool
from kvchat.engine.formats.format_table import codec_of
from kvchat.engine.formats.spec import Group
from kvchat.engine.sequences.batch_plan import Batch, Chunk
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.startup.parts import EngineParts
from kvchat.errors import PoolExhausted

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
        if any(group.is_state for group in self._manager.groups):
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
                for group in self._manager.groups:
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
        groups = {group.id: group for group in self._manager.groups}
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
