"""Runs the kernels of a shadowed context under the Triton interpreter against their references.

A program of its own, as `run_interpreted`; prints one JSON line per case, with the error as a multiple of
what is allowed. What is not to be written is poisoned with NaN and must stay so.
"""

import os
import sys
from collections.abc import Callable
from functools import partial

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from kvchat.engine.kernels.shadow_kv import reference
from kvchat.engine.kernels.shadow_kv import triton as kernels
from kvchat.engine.kernels.shadow_kv.args import Change, Rotations
from tests.engine.kernels.interpreted import tell

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}
SINGLE = torch.float32
HALF = torch.float16


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_gaps(tensor: Tensor) -> Tensor:
    """Return the same tensor as a part of one that is larger in every dimension; what lies between is NaN, or
    a number that nobody may follow.
    """
    room = [size + 2 for size in tensor.shape[:-1]]
    poison = float("nan") if tensor.is_floating_point() else tensor.dtype is torch.bool or 10**12
    wide = torch.full((*room, tensor.shape[-1] + 3), poison, dtype=tensor.dtype)
    part = wide[tuple(slice(1, 1 + size) for size in tensor.shape[:-1])][..., 1 : 1 + tensor.shape[-1]]
    assert not part.is_contiguous()
    return part.copy_(tensor)


def is_written_beside(out: Tensor) -> bool:
    """Whether something stands between the parts of what was NaN before."""
    whole = out if out._base is None else out._base
    return int((~whole.isnan()).sum()) != int((~out.isnan()).sum())


def score_error(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    share_seen: float = 0.0,
    *,
    are_forgotten: bool = False,
    has_gaps: bool = False,
) -> float:
    """Of (queries, key-value heads, group, head size, chunks).

    Args:
        share_seen: of the chunks, those that are seen anyway.
        are_forgotten: the control does not know them.
    """
    num_queries, num_kv_heads, group, dim, num_chunks = shape
    wide = randn(num_queries, num_kv_heads * group, 2 * dim).to(dtype)
    query = wide[..., :dim]  # not in a row
    means = randn(num_chunks, num_kv_heads, dim, seed=1).to(dtype)
    always = torch.rand(num_kv_heads, num_chunks, generator=torch.Generator().manual_seed(2)) < share_seen
    always[:, num_chunks // 2] = False  # one is left
    seen = torch.zeros_like(always) if are_forgotten else always
    scale = 1.7 * dim**-0.5
    place = with_gaps if has_gaps else torch.Tensor.clone
    found = kernels.chunk_scores(query, place(means), place(seen), scale)
    if not torch.equal(found == 0, seen):
        return float("inf")
    return _error(found, reference.chunk_scores(query, means, always, scale)) / TOLERANCE[dtype]


def exchange_error(num_kv_heads: int, num_slots: int, num_chunks: int, *, has_gaps: bool = False) -> float:
    """From an empty set on, step after step; infinite if a slot differs."""
    generator = torch.Generator().manual_seed(num_slots)
    held = torch.full((num_kv_heads, num_slots), -1)
    for _ in range(6):
        orders = [torch.randperm(num_chunks, generator=generator)[:num_slots] for _ in held]
        wanted = torch.stack(orders)
        if has_gaps:
            held, wanted = with_gaps(held), with_gaps(wanted)
        found, known = kernels.exchange(held, wanted), reference.exchange(held, wanted)
        same = torch.equal(found.slots, known.slots)
        if not (same and torch.equal(found.is_missing, known.is_missing)):
            return float("inf")
        held = found.slots
    return 0.0


def _change(num_kv_heads: int, num_slots: int, num_chunks: int) -> Change:
    generator = torch.Generator().manual_seed(3)
    slots = torch.stack(
        [torch.randperm(num_chunks, generator=generator)[:num_slots] for _ in range(num_kv_heads)]
    )
    is_missing = torch.rand(slots.shape, generator=generator) < 0.4
    is_missing[0] = False  # a head that misses nothing
    return Change(slots=slots, is_missing=is_missing)


def load_error(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    chunks_of_block: int = 2,
    *,
    are_in_order: bool = False,
    has_gaps: bool = False,
) -> float:
    """Of (key-value heads, slots, chunks, tokens of a chunk, head size); to the bit.

    Args:
        are_in_order: the control takes blocks to lie in the order of the sequence.
    """
    num_kv_heads, num_slots, num_chunks, size, dim = shape
    change = _change(num_kv_heads, num_slots, num_chunks)
    num_blocks = -(-num_chunks // chunks_of_block)
    pool = randn(num_blocks + 3, num_kv_heads, chunks_of_block * size, dim).to(dtype)
    blocks = torch.randperm(num_blocks + 3, generator=torch.Generator().manual_seed(4))[:num_blocks]
    out = torch.full((num_kv_heads, num_slots, size, dim), float("nan"), dtype=dtype)
    place = with_gaps if has_gaps else torch.Tensor.clone
    out = place(out)
    own = Change(slots=place(change.slots), is_missing=place(change.is_missing))
    kernels.load_chunks(place(pool), blocks.sort().values if are_in_order else blocks, own, out)
    if is_written_beside(out):
        return float("inf")
    wanted = pool[blocks].transpose(0, 1).flatten(1, 2).unflatten(1, (-1, size))  # [H_kv, C, c, D]
    wanted = torch.stack([side[chunks] for side, chunks in zip(wanted, change.slots, strict=True)])
    wanted[~change.is_missing] = float("nan")
    return 0.0 if torch.equal(out.nan_to_num(99), wanted.nan_to_num(99)) else float("inf")


def restore_error(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    num_turned: int,
    *,
    are_neighbours: bool = False,
    shift: int = 0,
    first_chunk: int = 0,
    has_gaps: bool = False,
) -> float:
    """Of (key-value heads, slots, chunks, head size, rank).

    Args:
        shift: positions that the control is off by.
        first_chunk: from which on there are projections, but for the last three.
    """
    num_kv_heads, num_slots, num_chunks, dim, rank = shape
    change = _change(num_kv_heads, num_slots, num_chunks)
    end = num_chunks - 3 if first_chunk else num_chunks
    projections = randn(end - first_chunk, 8, rank).to(dtype)
    directions = (randn(num_kv_heads * dim, rank, seed=1) / rank**0.5).to(dtype)
    angles = torch.arange(num_chunks * 8)[:, None] * 100.0 ** (-torch.arange(num_turned // 2) / num_turned)
    place = with_gaps if has_gaps else torch.Tensor.clone
    sides = [place(side) for side in ((angles + shift).cos(), (angles + shift).sin())]
    turns = Rotations(cosines=sides[0], sines=sides[1], are_neighbours=are_neighbours)
    out = place(torch.full((num_kv_heads, num_slots, 8, dim), float("nan"), dtype=dtype))
    own = Change(slots=place(change.slots), is_missing=place(change.is_missing))
    kernels.restore_keys(place(projections), place(directions), own, turns, out, first_chunk)
    wanted = torch.full(out.shape, float("nan"))
    known = Rotations(cosines=angles.cos(), sines=angles.sin(), are_neighbours=are_neighbours)
    reference.restore_keys(projections, directions, change, known, wanted, first_chunk)
    there = (change.slots >= first_chunk) & (change.slots < end) & change.is_missing
    is_filled = there[..., None, None].expand(out.shape)
    if is_written_beside(out) or not torch.equal(out.isnan(), ~is_filled):
        return float("inf")
    return _error(out[there], wanted[there]) / TOLERANCE[dtype]


def _error(got: Tensor, wanted: Tensor) -> float:
    return float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())


CASES: dict[str, Callable[[], float]] = {
    "scores, one query": partial(score_error, (1, 2, 4, 128, 200), SINGLE),
    "scores, one query, 16 bits": partial(score_error, (1, 2, 4, 128, 200), HALF),
    "scores, a block of queries": partial(score_error, (19, 2, 3, 40, 65), SINGLE),
    "scores, no group, one chunk": partial(score_error, (1, 3, 1, 16, 1), SINGLE),
    "scores, a large group": partial(score_error, (2, 1, 71, 64, 63), SINGLE),
    "scores, some seen anyway": partial(score_error, (5, 3, 4, 40, 200), SINGLE, 0.3),
    "scores, some seen anyway, 16 bits": partial(score_error, (1, 2, 4, 128, 130), HALF, 0.3),
    "scores, all but one seen anyway": partial(score_error, (3, 2, 2, 16, 70), SINGLE, 1.0),
    "exchange, few": partial(exchange_error, 3, 1, 4),
    "exchange, awkward": partial(exchange_error, 2, 37, 90),
    "exchange, all": partial(exchange_error, 2, 32, 32),
    "values": partial(load_error, (3, 9, 40, 8, 128), HALF, 8),
    "values, awkward": partial(load_error, (2, 5, 11, 8, 12), SINGLE),
    "values, a chunk of a block": partial(load_error, (2, 5, 11, 8, 12), SINGLE, 1),
    "keys": partial(restore_error, (3, 9, 40, 128, 160), SINGLE, 128),
    "keys, 16 bits": partial(restore_error, (3, 9, 40, 128, 160), HALF, 128),
    "keys, awkward": partial(restore_error, (2, 5, 11, 20, 7), SINGLE, 20),
    "keys, partial": partial(restore_error, (2, 5, 11, 40, 33), SINGLE, 12),
    "keys, of some chunks": partial(restore_error, (2, 9, 20, 20, 7), SINGLE, 20, first_chunk=4),
    "keys, neighbours": partial(restore_error, (2, 6, 11, 32, 33), SINGLE, 32, are_neighbours=True),
    "keys, partial neighbours": partial(restore_error, (2, 6, 11, 96, 33), SINGLE, 64, are_neighbours=True),
    "scores, with gaps": partial(score_error, (3, 3, 4, 40, 70), SINGLE, 0.3, has_gaps=True),
    "exchange, with gaps": partial(exchange_error, 2, 9, 20, has_gaps=True),
    "values, with gaps": partial(load_error, (2, 5, 11, 8, 12), SINGLE, has_gaps=True),
    "keys, with gaps": partial(restore_error, (2, 5, 11, 40, 33), SINGLE, 12, has_gaps=True),
    "control, seen chunks weighed": partial(score_error, (5, 3, 4, 40, 200), SINGLE, 0.3, are_forgotten=True),
    "control, blocks in order": partial(load_error, (2, 5, 11, 8, 12), SINGLE, are_in_order=True),
    "control, other positions": partial(restore_error, (2, 5, 11, 20, 7), SINGLE, 20, shift=1),
}


if __name__ == "__main__":
    tell(sys.argv[1:] or CASES, lambda name: CASES[name]())
