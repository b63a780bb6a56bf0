"""Compressed keys of a layer: projections on low-rank bases, and exact keys where no basis holds them.

A segment is a run of chunks on one basis. Keys that the newest basis does not hold any more begin a segment
of their own: it is exact until it is long enough for a basis. What an older basis holds stays as it is.
Dimensions: n tokens, c tokens of a chunk, C chunks, Q queries, H query heads, H_kv key-value heads, G = H /
H_kv, D head size, r rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.copy_on_write_rows import Held, Rows
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import CHUNK_SIZE, CODED_LEN, PIECE_LEN, ShadowSettings
from kvchat.engine.kernels.shadow_kv import reference, restore_keys
from kvchat.engine.kernels.shadow_kv.args import Change, Landmarks, Rotations
from kvchat.engine.kernels.shadow_kv.torch_fallback import products

LEAST_PER_RANK = 4
"""A later segment gets a basis from so many tokens for each direction: fewer would all lie on their own."""


@dataclass(slots=True, kw_only=True)
class Segment:
    """Chunks [first_chunk, first_chunk + len(rows)).

    Args:
        rows: projections [c, r] of each chunk, or its rotated keys [c, H_kv, D] where there is no basis;
            projections of no width where no key is restored.
        directions: the basis, [r] for each number of a token's keys; None: keys are exact, or codes.
        next_try: tokens from which an exact segment tries to find a basis.
        scales: [H_kv] of each chunk, where rows are codes of keys; None: they are no codes.
    """

    first_chunk: int
    rows: Rows
    directions: Rows | None
    next_try: int
    scales: Rows | None = None

    @property
    def parts(self) -> list[Rows]:
        """All that is kept beside the basis."""
        return [self.rows] if self.scales is None else [self.rows, self.scales]

    def append(self, keys: Tensor) -> None:
        """Add keys [C * c, H_kv, D] to others that lie on no basis."""
        chunks = keys.unflatten(0, (-1, CHUNK_SIZE))
        if self.scales is None:
            self.rows.append(chunks)
            return
        pieces = [reference.coded(piece) for piece in chunks.split(PIECE_LEN // CHUNK_SIZE)]
        self.scales.append(torch.cat([scales for _, scales in pieces]))
        self.rows.append(torch.cat([codes for codes, _ in pieces]))

    def stands(self) -> Iterator[Landmarks]:
        """Yield keys that lie on no basis as chunks are weighed by them."""
        rows = self.rows.parts(0, len(self.rows))
        if self.scales is None:
            yield from (Landmarks(rows=part) for part in rows)
            return
        for part, scales in zip(rows, self.scales.parts(0, len(self.rows)), strict=True):
            yield Landmarks(rows=part, scales=scales)

    def fork(self) -> "Segment":
        return replace(
            self,
            rows=self.rows.fork(),
            directions=self.directions.fork() if self.directions else None,
            scales=None if self.scales is None else self.scales.fork(),
        )

    def release(self) -> None:
        for rows in self.parts:
            rows.release()
        if self.directions:
            self.directions.release()


class CompressedKeys:
    """All compressed keys of one layer of one sequence.

    Args:
        heads: (H_kv, D).
        dtype: in which keys and projections are kept.
    """

    def __init__(
        self, settings: ShadowSettings, rotary: Rotary, heads: tuple[int, int], dtype: torch.dtype, held: Held
    ) -> None:
        self._settings = settings
        self.rotary = rotary
        """By which they are turned."""
        self._heads = heads
        self._dtype = dtype
        self._held = held
        self._segments: list[Segment] = []

    @property
    def num_chunks(self) -> int:
        return sum(len(segment.rows) for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def _rank(self) -> int:
        return self._settings.rank_for(self._heads[0] * self._heads[1])

    @property
    def _num_kept(self) -> int:
        """Numbers of a projection that are kept."""
        return self._rank if self._settings.is_remote else 0

    @property
    def are_on_bases(self) -> bool:
        """Whether all of them lie on a basis."""
        return all(segment.directions is not None for segment in self._segments)

    def compress(self, keys: Tensor) -> int:
        """Add rotated keys [C * c, H_kv, D], which follow those that are there.

        Returns:
            The first chunk whose keys are others than before: the first that is added, or one before it
            where keys that were exact came to lie on a basis.
        """
        first = self.num_chunks
        newest = self._segments[-1] if self._segments else None
        if newest is None:
            on_basis = self._on_basis(keys, first)
            self._segments.append(on_basis or self._exact_segment(keys, first, 2 * len(keys)))
        elif newest.directions is None:
            newest.append(keys)
            if self._try_basis(newest):
                return newest.first_chunk
        else:
            self._project_onto(newest, keys, first)
        return first

    def restore(self, change: Change, turns: Rotations, out: Tensor) -> None:
        """Fill the missing slots of `out` [H_kv, k, c, D] with the keys of chunks that lie on a basis.

        Effect: waits for nothing, where a kernel does it.
        """
        for segment in self._segments:
            if segment.directions is None:
                continue
            directions, first = segment.directions.all(), segment.first_chunk
            for part in segment.rows.parts(0, len(segment.rows)):
                restore_keys(part, directions, change, turns, out, first)
                first += len(part)

    def on_no_basis(self, chunks: Tensor) -> Tensor:
        """Return whether each of `chunks` lies on no basis, of bool."""
        found = torch.zeros_like(chunks, dtype=torch.bool)
        for segment in self._segments:
            if segment.directions is None:
                end = segment.first_chunk + len(segment.rows)
                found |= (chunks >= segment.first_chunk) & (chunks < end)
        return found

    def products(self, query: Tensor, landmarks: Rows) -> Tensor:
        """Return what rotated queries [Q, H, D] make of each chunk [Q, H_kv, G, C], float32: their products
        with its landmark, or the highest with its keys where these are exact.

        Args:
            landmarks: [H_kv, D] of each chunk.
        """
        stands = self.stands(landmarks)
        parts = [piece for stand in stands for piece in stand.split(PIECE_LEN // stand.num_keys)]
        return torch.cat([_worth(query, part) for part in parts], dim=-1)

    def stands(self, landmarks: Rows) -> Iterator[Landmarks]:
        """Yield what chunks are weighed by, in order: landmarks on a basis, keys elsewhere.

        Args:
            landmarks: [H_kv, D] of each chunk.
        """
        for segment in self._segments:
            if segment.directions is None:
                yield from segment.stands()
            else:
                means = landmarks.parts(segment.first_chunk, segment.first_chunk + len(segment.rows))
                yield from (Landmarks(rows=part) for part in means)

    def fork(self) -> "CompressedKeys":
        """Return the same keys for another sequence; no byte is copied."""
        other = CompressedKeys(self._settings, self.rotary, self._heads, self._dtype, self._held)
        other._segments = [segment.fork() for segment in self._segments]
        return other

    def release(self) -> None:
        for segment in self._segments:
            segment.release()
        self._segments = []

    def _project_onto(self, newest: Segment, keys: Tensor, first_chunk: int) -> None:
        """Add keys to a segment whose basis holds them, or begin another one."""
        assert newest.directions is not None
        projections, lost = self._projected(keys, newest.directions.all(), first_chunk)
        if lost > 1 - self._settings.energy:
            segment = self._exact_segment(keys, first_chunk, LEAST_PER_RANK * self._rank)
            self._segments.append(segment)
            self._try_basis(segment)
        else:
            newest.rows.append(projections[..., : self._num_kept])

    def _try_basis(self, segment: Segment) -> bool:
        """Put the newest segment on a basis, if it is long enough and one holds it; return whether it is."""
        num_tokens = len(segment.rows) * CHUNK_SIZE
        if num_tokens < segment.next_try:
            return False
        parts = [stand.numbers() for stand in segment.stands()]
        keys = parts[0] if len(parts) == 1 else torch.cat(parts)
        segment.next_try = 2 * num_tokens
        found = self._on_basis(keys, segment.first_chunk)
        if found is None and segment.scales is None and num_tokens >= CODED_LEN:
            found = self._exact_segment(keys, segment.first_chunk, segment.next_try)
        if found is None:
            return False
        segment.release()
        self._segments[-1] = found
        return True

    def _on_basis(self, keys: Tensor, first_chunk: int) -> Segment | None:
        """Return a segment of keys on the best basis for them; None if it does not hold them."""
        if len(keys) < self._rank:
            return None
        basis = reference.basis_of_products(self._products(keys, first_chunk), self._rank)
        if basis.energy < self._settings.energy:
            return None
        projections, _ = self._projected(keys, basis.directions.to(self._dtype), first_chunk)
        directions = Rows((self._rank,), self._dtype, self._held, page_rows=1)
        directions.append(basis.directions)
        rows = Rows((CHUNK_SIZE, self._num_kept), self._dtype, self._held)
        rows.append(projections[..., : self._num_kept])
        return Segment(first_chunk=first_chunk, rows=rows, directions=directions, next_try=0)

    def _products(self, keys: Tensor, first_chunk: int) -> Tensor:
        width = self._heads[0] * self._heads[1]
        products = torch.zeros(width, width, dtype=torch.float64, device=keys.device)
        for before in self._unturned(keys, first_chunk):
            products += (before.T @ before).double()
        return products

    def _projected(self, keys: Tensor, directions: Tensor, first_chunk: int) -> tuple[Tensor, float]:
        """Return projections [C, c, r] as they are kept, and the share of squares they do not restore."""
        parts, total, lost = [], 0.0, 0.0
        wide = directions.float()
        for before in self._unturned(keys, first_chunk):
            part = (before @ wide).to(self._dtype)
            total += float(before.double().square().sum())
            lost += float((before - part.float() @ wide.T).double().square().sum())
            parts.append(part)
        projections = torch.cat(parts).unflatten(0, (-1, CHUNK_SIZE))
        return projections, lost / total if total else 0.0

    def _unturned(self, keys: Tensor, first_chunk: int) -> Iterator[Tensor]:
        """Yield keys before rotation [n, H_kv * D], some thousand tokens at a time."""
        start = first_chunk * CHUNK_SIZE
        for at in range(0, len(keys), PIECE_LEN):
            piece = keys[at : at + PIECE_LEN]
            positions = torch.arange(start + at, start + at + len(piece), device=keys.device)
            yield self.rotary.unturned(piece, positions).flatten(1)

    def _exact_segment(self, keys: Tensor, first_chunk: int, next_try: int) -> Segment:
        """Return a segment of keys on no basis: few as they are, many as codes."""
        shape, is_coded = (CHUNK_SIZE, *self._heads), len(keys) >= CODED_LEN
        segment = Segment(
            first_chunk=first_chunk,
            rows=Rows(shape, torch.int8 if is_coded else self._dtype, self._held),
            directions=None,
            next_try=next_try,
            scales=Rows(self._heads[:1], torch.float32, self._held) if is_coded else None,
        )
        segment.append(keys)
        return segment


def _worth(query: Tensor, stand: Landmarks) -> Tensor:
    """Return the products [Q, H_kv, G, n] of queries with what stands for n chunks, the highest of each."""
    return products(query, stand.numbers()).unflatten(-1, (-1, stand.num_keys)).amax(dim=-1)
