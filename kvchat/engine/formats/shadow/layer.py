"""The shadow of one layer of one sequence: little on the device, values in host memory, nothing lost.

On the device: keys as projections on a basis (`CompressedKeys`), a landmark for each compressed chunk, keys
and values of the compressed chunks that every step sees (the first, and each head's outliers), the working
set, and the tail: the last full chunks and all that was generated since, exact. In host memory: the values of
all compressed chunks. "Device" and "host" are budgets; without a GPU both are the same memory.
Dimensions: n tokens, Q queries, H query heads, H_kv key-value heads, D and D_v head sizes, c tokens of a
chunk, C compressed chunks, a chunks that are always seen, m chunks that are chosen.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.compressed_keys import Segment
from kvchat.engine.formats.shadow.copy_on_write_rows import Rows
from kvchat.engine.formats.shadow.gpu_resources import GpuResources
from kvchat.engine.formats.shadow.layer_store import Budgets, LayerStore
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import CHUNK_SIZE, PIECE_LEN, ShadowSettings
from kvchat.engine.formats.shadow.working_set import EMPTY
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.shadow_kv import chosen_attention, chunk_scores, load_chunks, reference
from kvchat.engine.kernels.shadow_kv.args import Change, ChunkChoice
from kvchat.engine.kernels.shadow_kv.torch_fallback import VisibleChunks, chosen, gathered_attention, picked
from kvchat.errors import OutOfMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStep:
    """What one block of queries was answered from.

    Args:
        out: [Q, H, D_v], in the type of the queries.
        attended_len: tokens that its last query attended to.
        num_wanted, num_fetched: chosen chunks over all heads, and those of them that came from host memory;
            a device's number, which nobody has waited for yet, is a tensor [].
    """

    out: Tensor
    attended_len: int
    num_wanted: int
    num_fetched: int | Tensor


class BlockChunks:
    """Keys and values of chunks as they lie in the blocks of a sequence.

    Args:
        pools: keys [N, H_kv, P, D] and values [N, H_kv, P, D_v].
        blocks: all of the sequence, in order, int64.
    """

    def __init__(self, pools: KVPair, blocks: Tensor) -> None:
        self.pools = pools
        self.blocks = blocks

    @staticmethod
    def takes(pools: KVPair) -> bool:
        """Whether every chunk of a head lies in a row. Pure."""
        return pools.keys.shape[2] % CHUNK_SIZE == 0 and all(pool.is_contiguous() for pool in pools)

    def take(self, heads: Tensor, chunks: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys [M, c, D] and values [M, c, D_v] of one chunk [M] for each of `heads` [M]."""
        _, num_heads, block_size, _ = self.pools.keys.shape
        per_block = block_size // CHUNK_SIZE
        rows = (self.blocks[chunks // per_block] * num_heads + heads) * per_block + chunks % per_block
        # A chunk of a head is a row: rows are copied as they lie.
        keys, values = (
            pool.view(-1, CHUNK_SIZE * pool.shape[3]).index_select(0, rows).view(len(rows), CHUNK_SIZE, -1)
            for pool in self.pools
        )
        return keys, values


class ShadowLayer:
    """Keeps a context of one layer of one sequence, and attends to it. Made by `of_prompt`."""

    def __init__(
        self,
        settings: ShadowSettings,
        stock: LayerStore,
        num_tokens: int,
        num_compressed: int,
        remote: GpuResources | None = None,
    ) -> None:
        assert (remote is not None) is settings.is_remote
        self.settings = settings
        self.stock = stock
        self.remote = remote
        self.num_tokens = num_tokens
        self.num_compressed = num_compressed
        self._source: BlockChunks | None = None
        self._chosen_before: Tensor | None = None

    @classmethod
    def of_prompt(
        cls,
        settings: ShadowSettings,
        rotary: Rotary,
        keys: Tensor,
        values: Tensor,
        budgets: Budgets,
        remote: GpuResources | None = None,
    ) -> "ShadowLayer":
        """Return the shadow of a prompt that was computed exactly.

        Args:
            rotary: the model's own embedding.
            keys: [n, H_kv, D], rotated; at least as many as `least_len`.
            values: [n, H_kv, D_v].
            remote: given if, and only if, the settings say so.

        Raises:
            OutOfMemory: a budget does not hold it; nothing is kept.
        """
        assert len(keys) >= settings.least_len
        layer = cls(settings, LayerStore.empty_for(settings, rotary, keys, values, budgets), 0, 0, remote)
        try:
            layer._take_over(keys, values)
        except BaseException:  # a device may fail too, and nobody else can give the bytes back
            layer.release()
            raise
        return layer

    @property
    def tail_len(self) -> int:
        """Tokens that are exact since they are the last ones."""
        return self.num_tokens - self.num_compressed * self.settings.chunk_size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The runs of compressed chunks with a basis each."""
        return self.stock.compressed_keys.segments

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        softmax_scale: float,
        source: BlockChunks | None = None,
    ) -> tuple[Tensor, list[ShadowStep]]:
        """Add tokens and return what their queries see [Q, H, D_v], with what each block of them saw.

        Queries are divided where positions are multiples of the block of queries, and where tokens are
        compressed: a prompt gives the same wherever it was cut between two blocks.

        Args:
            query: [Q, H, D], rotated.
            keys: [Q, H_kv, D], rotated.
            values: [Q, H_kv, D_v].
            source: has all compressed keys and values as they were; given if, and only if, the settings say
                so.

        Raises:
            OutOfMemory: a budget does not hold it; tokens of earlier blocks stay, those of this one do not.
        """
        assert (source is not None) is self.settings.is_sourced
        self._source = source
        steps = [self._attend_block(query[part], softmax_scale) for part in self._added(keys, values)]
        return torch.cat([step.out for step in steps]), steps

    def extend(self, keys: Tensor, values: Tensor) -> None:
        """Add tokens whose queries have been answered: all is afterwards as if they had been answered here.

        Raises:
            OutOfMemory: as in `attend`.
        """
        for _ in self._added(keys, values):
            pass

    def compress_full(self) -> None:
        """Compress generated tokens, if there are as many as may stay exact; the local chunks stay.

        Raises:
            OutOfMemory: a budget has no room; all tokens stay exact.
        """
        num_tokens = self._num_full() * self.settings.chunk_size
        if num_tokens < self.settings.exact_len:
            return
        old = self.stock.tail_keys, self.stock.tail_values
        sides = [rows.all() for rows in old]
        rest = [rows.emptied() for rows in old]
        try:
            for new, side in zip(rest, sides, strict=True):
                new.append(side[num_tokens:])
            self._compress(sides[0][:num_tokens], sides[1][:num_tokens])
        except OutOfMemory:
            _release(rest)
            raise
        _release(old)
        self.stock.tail_keys, self.stock.tail_values = rest

    def fork(self) -> "ShadowLayer":
        """Return the same context for another sequence; both go on independently.

        Raises:
            OutOfMemory: the device's budget does not hold a second working set.
        """
        stock = self.stock.fork()
        return ShadowLayer(self.settings, stock, self.num_tokens, self.num_compressed, self.remote)

    def release(self) -> None:
        """Give all bytes back to the budgets; the layer serves nobody afterwards."""
        self.stock.release()

    def _take_over(self, keys: Tensor, values: Tensor) -> None:
        size = self.settings.chunk_size
        end = (len(keys) // size - self.settings.num_local) * size
        self._append(keys[end:], values[end:])
        self.num_tokens = len(keys)
        self._keep_always(keys[:end], values[:end])
        self._compress(keys[:end], values[:end])

    def _added(self, keys: Tensor, values: Tensor) -> Iterator[slice]:
        """Add tokens up to one cut after the other, and yield which ones."""
        start = 0
        while start < len(keys):
            self.compress_full()
            end = min(len(keys), start + self._next_cut())
            self._append(keys[start:end], values[start:end])
            yield slice(start, end)
            start = end

    def _num_full(self) -> int:
        """Return how many chunks of the tail are full and not local."""
        return self.tail_len // self.settings.chunk_size - self.settings.num_local

    def _next_cut(self) -> int:
        """Return how many tokens lie before the next place where a prompt is divided."""
        compressed_at = self.settings.exact_len + self.settings.num_local * self.settings.chunk_size
        block = self.settings.query_block
        return min(block - self.num_tokens % block, compressed_at - self.tail_len)

    def _append(self, keys: Tensor, values: Tensor) -> None:
        before = len(self.stock.tail_keys)
        self.stock.tail_keys.append(keys)
        try:
            self.stock.tail_values.append(values)
        except OutOfMemory:
            self.stock.tail_keys.truncate(before)
            raise
        self.num_tokens += len(keys)

    def _keep_always(self, keys: Tensor, values: Tensor) -> None:
        """Keep the first chunk, and those that their landmarks speak for least, as they are."""
        size, stock = self.settings.chunk_size, self.stock
        likeness = torch.cat([reference.likeness(piece, size) for piece in keys[size:].split(PIECE_LEN)])
        others = reference.least_alike(likeness, self.settings.num_outliers) + 1
        stock.always = torch.cat((others.new_zeros(len(others), 1), others), dim=1)
        heads = torch.arange(len(others), device=keys.device)[:, None]
        for rows, side in ((stock.always_keys, keys), (stock.always_values, values)):
            chunks = side.unflatten(0, (-1, size)).transpose(1, 2)  # [C, H_kv, c, D]
            rows.append(chunks[stock.always, heads].flatten(0, 1))

    def _compress(self, keys: Tensor, values: Tensor) -> None:
        """Give tokens [C * c, H_kv, *] away, which follow those that are compressed already."""
        size, stock = self.settings.chunk_size, self.stock
        chunks = values.unflatten(0, (-1, size)).transpose(1, 2)  # [C, H_kv, c, D_v]
        before = len(stock.values), len(stock.landmarks)
        try:
            stock.values.append(
                chunks.flatten(0, 1)[..., :0] if self.settings.is_sourced else chunks.flatten(0, 1)
            )
            means = [reference.landmarks(piece, size).to(keys.dtype) for piece in keys.split(PIECE_LEN)]
            stock.landmarks.append(torch.cat(means))
            first_changed = stock.compressed_keys.compress(keys)
        except OutOfMemory:
            stock.values.truncate(before[0])
            stock.landmarks.truncate(before[1])
            raise
        # What is seen of a chunk must not depend on when it was chosen first.
        stock.working.forget_from(first_changed)
        self.num_compressed += len(chunks)

    def _attend_block(self, query: Tensor, softmax_scale: float) -> ShadowStep:
        if self._source is not None and self.remote is not None:
            return self._read_beside(query, softmax_scale, self._source, self.remote)
        if self._source is not None:
            step = self._read_in_blocks(query, softmax_scale, self._source)
            if step is not None:
                return step
        stock, num_chosen = self.stock, self._num_chosen
        wanted = self._wanted(query, softmax_scale)
        if self._source is None:
            num_fetched = stock.working.hold(wanted, self._fetch)
            assert not (stock.working.slots[:, :num_chosen] == EMPTY).any()
            found = [side[:, :num_chosen] for side in (stock.working.keys, stock.working.values)]
        else:
            num_fetched = self._num_new(wanted)
            sides = self._source.take(*wanted.nonzero(as_tuple=True))
            found = [side.unflatten(0, (-1, num_chosen)) for side in sides]
        return self._answered(query, softmax_scale, (found[0], found[1]), num_fetched)

    def _answered(
        self, query: Tensor, softmax_scale: float, found: tuple[Tensor, Tensor], num_fetched: int | Tensor
    ) -> ShadowStep:
        """Return what a block of queries sees beside keys and values of chosen chunks [H_kv, m, c, *]."""
        stock, num_chosen = self.stock, found[0].shape[1]
        keys = VisibleChunks.of(_parts(stock.always_keys, found[0], stock.tail_keys))
        values = VisibleChunks.of(_parts(stock.always_values, found[1], stock.tail_values))
        self._check_sight(keys.num_tokens, num_chosen)
        return ShadowStep(
            out=gathered_attention(query, keys, values, softmax_scale),
            attended_len=keys.num_tokens,
            num_wanted=len(stock.always) * num_chosen,
            num_fetched=num_fetched,
        )

    def _read_beside(
        self, query: Tensor, softmax_scale: float, source: BlockChunks, remote: GpuResources
    ) -> ShadowStep:
        """Return what a block of queries is answered from, where a GPU reads missing chunks in host memory
        while it makes their keys; nothing waits for it.
        """
        stock, num_chosen = self.stock, self._num_chosen
        compressed, turns = stock.compressed_keys, None
        if any(segment.directions is not None for segment in compressed.segments):
            turns = remote.turns.of(compressed.rotary, self.num_tokens, query.device)

        def load(change: Change, keys: Tensor, values: Tensor) -> None:
            load_chunks(source.pools.values, source.blocks, change, values)
            if not compressed.are_on_bases:
                is_missing = change.is_missing & compressed.on_no_basis(change.slots)
                exact = Change(slots=change.slots, is_missing=is_missing)
                load_chunks(source.pools.keys, source.blocks, exact, keys)

        def restore(change: Change, keys: Tensor, values: Tensor) -> None:
            if turns is not None:
                compressed.restore(change, turns, keys)

        wanted = picked(self._wanted(query, softmax_scale), num_chosen)
        num_fetched = stock.working.bring(wanted, self.num_compressed, (load, restore), remote.streams)
        held = stock.working.keys[:, :num_chosen], stock.working.values[:, :num_chosen]
        return self._answered(query, softmax_scale, held, num_fetched)

    def _read_in_blocks(self, query: Tensor, softmax_scale: float, source: BlockChunks) -> ShadowStep | None:
        """Return what a block of queries is answered from, by a kernel that reads all of it in the sequence's
        blocks; None: there is none for it.
        """
        stock = self.stock
        choice = ChunkChoice(
            blocks=source.blocks,
            stands=tuple(stock.compressed_keys.stands(stock.landmarks)),
            always=stock.always,
            num_chosen=self._num_chosen,
            chunk_size=self.settings.chunk_size,
            num_tokens=self.num_tokens,
            softmax_scale=softmax_scale,
            before=self._chosen_before,
        )
        seen = chosen_attention(query, source.pools, choice)
        if seen is None:
            return None
        self._chosen_before = seen.chosen
        num_chunks = self.settings.num_always + choice.num_chosen
        attended_len = num_chunks * self.settings.chunk_size + self.tail_len
        self._check_sight(attended_len, choice.num_chosen)
        return ShadowStep(
            out=seen.out, attended_len=attended_len, num_wanted=seen.chosen.numel(), num_fetched=seen.num_new
        )

    @property
    def _num_chosen(self) -> int:
        return min(self.settings.num_chosen, self.num_compressed - self.settings.num_always)

    def _wanted(self, query: Tensor, softmax_scale: float) -> Tensor:
        """Return which chunks a block of queries chooses besides those it sees anyway [H_kv, C], of bool."""
        stock = self.stock
        always = torch.zeros(len(stock.always), self.num_compressed, dtype=torch.bool, device=query.device)
        always.scatter_(1, stock.always, value=True)
        if self.remote is not None and stock.compressed_keys.are_on_bases:
            scores = chunk_scores(query, stock.landmarks.all(), always, softmax_scale)
        else:
            products = stock.compressed_keys.products(query, stock.landmarks)
            scores = reference.wanted_scores(products, always, softmax_scale)
        return chosen(scores, self._num_chosen, always) & ~always

    def _num_new(self, wanted: Tensor) -> int:
        """Return how many of the wanted chunks the step before did not want; nothing is kept but which."""
        before = torch.zeros_like(wanted)
        if self._chosen_before is not None:
            before.scatter_(1, self._chosen_before, value=True)
        self._chosen_before = wanted.nonzero()[:, 1].view(len(wanted), -1)
        return int((wanted & ~before).sum())

    def _fetch(self, heads: Tensor, chunks: Tensor) -> tuple[Tensor, Tensor]:
        values = self.stock.values.take(chunks * len(self.stock.always) + heads)
        return self.stock.compressed_keys.take_each(heads, chunks), values

    def _check_sight(self, attended_len: int, num_chosen: int) -> None:
        """Hold that nothing was dropped: every token is compressed or in the tail."""
        stock = self.stock
        assert len(stock.tail_keys) == len(stock.tail_values) == self.tail_len
        assert len(stock.landmarks) == stock.compressed_keys.num_chunks == self.num_compressed
        num_chunks = self.settings.num_always + num_chosen
        assert attended_len == num_chunks * self.settings.chunk_size + self.tail_len


def _parts(always: Rows, working: Tensor, tail: Rows) -> tuple[Tensor, ...]:
    """Return keys or values of all that a step sees, [H_kv, n, D] each, the tail last."""
    fixed = always.all().unflatten(0, (len(working), -1)).flatten(1, 2)
    return fixed, working.flatten(1, 2), tail.all().transpose(0, 1)


def _release(sides: Iterable[Rows]) -> None:
    for side in sides:
        side.release()
