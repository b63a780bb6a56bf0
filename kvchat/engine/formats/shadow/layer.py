"""The shadow of one layer of one sequence: what a step chooses by, and what it sees without a choice.

A landmark for each compressed chunk, keys that lie on no basis (`CompressedKeys`), keys and values of the
compressed chunks that every step sees (the first, and each head's outliers), and the tail: the last full
chunks and all that was generated since, exact. Chosen chunks are read in the sequence's blocks. Where these
lie in host memory, a GPU restores keys from their projections on a basis, and has a working set.
Dimensions: n tokens, Q queries, H query heads, H_kv key-value heads, D and D_v head sizes, c tokens of a
chunk, C compressed chunks, a chunks that are always seen, m chunks that are chosen.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.copy_on_write_rows import Held, Rows
from kvchat.engine.formats.shadow.gpu_resources import GpuResources
from kvchat.engine.formats.shadow.layer_store import LayerStore
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import CHUNK_SIZE, NUM_LOCAL, PIECE_LEN, ShadowSettings
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.shadow_kv import chosen_attention, chunk_scores, load_chunks, reference
from kvchat.engine.kernels.shadow_kv.args import Change, ChunkChoice
from kvchat.engine.kernels.shadow_kv.torch_fallback import VisibleChunks, chosen, gathered_attention, picked


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStep:
    """What one block of queries was answered from.

    Args:
        out: [Q, H, D_v], in the type of the queries.
        attended_len: tokens that its last query attended to.
        num_wanted, num_fetched: chosen chunks over all heads, and those of them that the step before had not
            chosen; a device's number, which nobody has waited for yet, is a tensor [].
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
        self, settings: ShadowSettings, stock: LayerStore, remote: GpuResources | None = None
    ) -> None:
        assert (remote is not None) is settings.is_remote
        self.settings = settings
        self.stock = stock
        self.remote = remote
        self._chosen_before: Tensor | None = None

    @classmethod
    def of_prompt(
        cls,
        settings: ShadowSettings,
        rotary: Rotary,
        keys: Tensor,
        values: Tensor,
        held: Held,
        remote: GpuResources | None = None,
    ) -> "ShadowLayer":
        """Return the shadow of a prompt that was computed exactly.

        Args:
            rotary: the model's own embedding.
            keys: [n, H_kv, D], rotated; at least as many as `least_len`.
            values: [n, H_kv, D_v].
            remote: given if, and only if, the settings say so.
        """
        assert len(keys) >= settings.least_len
        layer = cls(settings, LayerStore.empty_for(settings, rotary, keys, values, held), remote)
        end = (len(keys) // CHUNK_SIZE - NUM_LOCAL) * CHUNK_SIZE
        layer._append(keys[end:], values[end:])
        layer._keep_always(keys[:end], values[:end])
        layer._compress(keys[:end])
        return layer

    @property
    def num_compressed(self) -> int:
        """Chunks that are compressed."""
        return len(self.stock.landmarks)

    @property
    def tail_len(self) -> int:
        """Tokens that are exact since they are the last ones."""
        return len(self.stock.tail_keys)

    @property
    def num_tokens(self) -> int:
        return self.num_compressed * CHUNK_SIZE + self.tail_len

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, softmax_scale: float, source: BlockChunks
    ) -> tuple[Tensor, list[ShadowStep]]:
        """Add tokens and return what their queries see [Q, H, D_v], with what each block of them saw.

        Queries are divided where positions are multiples of the block of queries, and where tokens are
        compressed: a prompt gives the same wherever it was cut between two blocks.

        Args:
            query: [Q, H, D], rotated.
            keys: [Q, H_kv, D], rotated.
            values: [Q, H_kv, D_v].
            source: has all keys and values, these tokens' too.
        """
        steps = [self._attend_block(query[part], softmax_scale, source) for part in self._added(keys, values)]
        return torch.cat([step.out for step in steps]), steps

    def extend(self, keys: Tensor, values: Tensor) -> None:
        """Add tokens whose queries have been answered: all is then as if they had been answered here."""
        for _ in self._added(keys, values):
            pass

    def compress_full(self) -> None:
        """Compress generated tokens, if there are as many as may stay exact; the local chunks stay."""
        num_tokens = (self.tail_len // CHUNK_SIZE - NUM_LOCAL) * CHUNK_SIZE
        if num_tokens < self.settings.exact_len:
            return
        old = self.stock.tail_keys, self.stock.tail_values
        self._compress(old[0].all()[:num_tokens])
        rest = [rows.emptied() for rows in old]
        for new, rows in zip(rest, old, strict=True):
            new.append(rows.all()[num_tokens:])
            rows.release()
        self.stock.tail_keys, self.stock.tail_values = rest

    def fork(self) -> "ShadowLayer":
        """Return the same context for another sequence; both go on independently."""
        return ShadowLayer(self.settings, self.stock.fork(), self.remote)

    def release(self) -> None:
        """Give all bytes back; the layer serves nobody afterwards."""
        self.stock.release()

    def _added(self, keys: Tensor, values: Tensor) -> Iterator[slice]:
        """Add tokens up to one cut after the other, and yield which ones."""
        start = 0
        while start < len(keys):
            self.compress_full()
            end = min(len(keys), start + self._next_cut())
            self._append(keys[start:end], values[start:end])
            yield slice(start, end)
            start = end

    def _next_cut(self) -> int:
        """Return how many tokens lie before the next place where a prompt is divided."""
        compressed_at = self.settings.exact_len + NUM_LOCAL * CHUNK_SIZE
        block = self.settings.query_block
        return min(block - self.num_tokens % block, compressed_at - self.tail_len)

    def _append(self, keys: Tensor, values: Tensor) -> None:
        self.stock.tail_keys.append(keys)
        self.stock.tail_values.append(values)

    def _keep_always(self, keys: Tensor, values: Tensor) -> None:
        """Keep the first chunk, and those that their landmarks speak for least, as they are."""
        stock = self.stock
        pieces = keys[CHUNK_SIZE:].split(PIECE_LEN)
        likeness = torch.cat([reference.likeness(piece, CHUNK_SIZE) for piece in pieces])
        others = reference.least_alike(likeness, self.settings.num_outliers) + 1
        stock.always = torch.cat((others.new_zeros(len(others), 1), others), dim=1)
        heads = torch.arange(len(others), device=keys.device)[:, None]
        for rows, side in ((stock.always_keys, keys), (stock.always_values, values)):
            chunks = side.unflatten(0, (-1, CHUNK_SIZE)).transpose(1, 2)  # [C, H_kv, c, D]
            rows.append(chunks[stock.always, heads].flatten(0, 1))

    def _compress(self, keys: Tensor) -> None:
        """Give tokens with keys [C * c, H_kv, D] away, which follow those that are compressed already."""
        stock = self.stock
        means = [reference.landmarks(piece, CHUNK_SIZE).to(keys.dtype) for piece in keys.split(PIECE_LEN)]
        stock.landmarks.append(torch.cat(means))
        # What is seen of a chunk must not depend on when it was chosen first.
        stock.working.forget_from(stock.compressed_keys.compress(keys))

    def _attend_block(self, query: Tensor, softmax_scale: float, source: BlockChunks) -> ShadowStep:
        if self.remote is not None:
            return self._read_beside(query, softmax_scale, source, self.remote)
        step = self._read_in_blocks(query, softmax_scale, source)
        if step is not None:
            return step
        wanted = self._wanted(query, softmax_scale)
        keys, values = source.take(*wanted.nonzero(as_tuple=True))
        found = keys.unflatten(0, (-1, self._num_chosen)), values.unflatten(0, (-1, self._num_chosen))
        return self._answered(query, softmax_scale, found, self._num_new(wanted))

    def _answered(
        self, query: Tensor, softmax_scale: float, found: tuple[Tensor, Tensor], num_fetched: int | Tensor
    ) -> ShadowStep:
        """Return what a block of queries sees beside keys and values of chosen chunks [H_kv, m, c, *]."""
        stock, num_chosen = self.stock, found[0].shape[1]
        keys = VisibleChunks.of(_parts(stock.always_keys, found[0], stock.tail_keys))
        values = VisibleChunks.of(_parts(stock.always_values, found[1], stock.tail_values))
        assert keys.num_tokens == values.num_tokens == self._attended_len(num_chosen)
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
            turns = remote.table(compressed.rotary, self.num_tokens, query.device)

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
            chunk_size=CHUNK_SIZE,
            num_tokens=self.num_tokens,
            softmax_scale=softmax_scale,
            before=self._chosen_before,
        )
        seen = chosen_attention(query, source.pools, choice)
        if seen is None:
            return None
        self._chosen_before = seen.chosen
        return ShadowStep(
            out=seen.out,
            attended_len=self._attended_len(choice.num_chosen),
            num_wanted=seen.chosen.numel(),
            num_fetched=seen.num_new,
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

    def _attended_len(self, num_chosen: int) -> int:
        """Return how many tokens a step sees: nothing is dropped that is not compressed."""
        return (self.settings.num_always + num_chosen) * CHUNK_SIZE + self.tail_len


def _parts(always: Rows, working: Tensor, tail: Rows) -> tuple[Tensor, ...]:
    """Return keys or values of all that a step sees, [H_kv, n, D] each, the tail last."""
    fixed = always.all().unflatten(0, (len(working), -1)).flatten(1, 2)
    return fixed, working.flatten(1, 2), tail.all().transpose(0, 1)
