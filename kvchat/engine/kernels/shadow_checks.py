"""The kernels of a shadowed context against their definitions, before a model relies on them.

Dimensions: H_kv key-value heads, k slots, C chunks, c tokens of a chunk, P tokens of a block, D head size, r
rank.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

import torch
from torch import Tensor

from kvchat.engine.kernels import shadow_kv
from kvchat.engine.kernels.attention_shapes import ShadowSizes
from kvchat.engine.kernels.kernel_checks import KernelCheck, largest_error, random_numbers, worst_error
from kvchat.engine.kernels.shadow_kv import reference
from kvchat.engine.kernels.shadow_kv.args import Change, Rotations

NUM_SLOTS, NUM_CHUNKS = 20, 70
CHUNK, CHUNKS_OF_BLOCK = 8, 8
SHARE_SEEN, SHARE_MISSING = 0.2, 0.4
CPU = torch.device("cpu")


def scores_error(sizes: ShadowSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Single queries and a few together, some chunks seen anyway."""
    always = torch.rand(sizes.num_kv_heads, NUM_CHUNKS, generator=generator(seed)) < SHARE_SEEN
    always[:, 0] = False  # one is left
    means = random_numbers(device, dtype, NUM_CHUNKS, sizes.num_kv_heads, sizes.dim, seed=seed + 1)
    errors = []
    for num_queries in (1, 5):
        query = random_numbers(device, dtype, num_queries, sizes.num_heads, sizes.dim, seed=seed + 2)
        found = shadow_kv.chunk_scores(query, means, always.to(device), sizes.dim**-0.5)
        wanted = reference.chunk_scores(query.cpu(), means.cpu(), always, sizes.dim**-0.5)
        errors.append(largest_error(found, wanted))
    return max(errors)


def exchange_error(sizes: ShadowSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Hits stay where they are, step after step, or everything is wrong; the dtype plays no part."""
    held = torch.full((sizes.num_kv_heads, NUM_SLOTS), -1)
    for step in range(3):
        wanted = random_chunks(sizes, seed + step)
        known = reference.exchange(held, wanted)
        found = shadow_kv.exchange(held.to(device), wanted.to(device), NUM_CHUNKS)
        same = torch.equal(found.slots.cpu(), known.slots)
        if not (same and torch.equal(found.is_missing.cpu(), known.is_missing)):
            return inf
        held = known.slots
    return 0.0


def load_error(sizes: ShadowSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """What is missing is what blocks in pinned host memory hold, to the bit, and nothing else is written."""
    change = random_change(sizes, seed)
    num_blocks = -(-NUM_CHUNKS // CHUNKS_OF_BLOCK)
    shape = num_blocks, sizes.num_kv_heads, CHUNKS_OF_BLOCK * CHUNK, sizes.value_dim
    pool = random_numbers(CPU, dtype, *shape, seed=seed + 1)
    blocks = torch.randperm(num_blocks, generator=generator(seed))
    wanted = torch.full((sizes.num_kv_heads, NUM_SLOTS, CHUNK, sizes.value_dim), 99.0, dtype=dtype)
    out = wanted.to(device, copy=True)
    reference.load_chunks(pool, blocks, change, wanted)
    there = pool.pin_memory() if device.type == "cuda" else pool
    shadow_kv.load_chunks(there, blocks.to(device), on(device, change), out)
    return 0.0 if torch.equal(out.cpu(), wanted) else inf


def keys_error(sizes: ShadowSizes, device: torch.device, dtype: torch.dtype, seed: int) -> float:
    """Keys of what is missing, made from projections and turned; nothing else is written."""
    change, width = random_change(sizes, seed), sizes.num_kv_heads * sizes.dim
    projections = random_numbers(device, dtype, NUM_CHUNKS, CHUNK, sizes.rank, seed=seed + 1)
    directions = random_numbers(device, dtype, width, sizes.rank, seed=seed + 2) * sizes.rank**-0.5
    half = torch.arange(sizes.dim // 2)
    angles = torch.arange(NUM_CHUNKS * CHUNK)[:, None] * 1e4 ** (-half * 2 / sizes.dim)
    known = Rotations(cosines=angles.cos(), sines=angles.sin())
    turns = Rotations(cosines=known.cosines.to(device), sines=known.sines.to(device))
    out = torch.full((sizes.num_kv_heads, NUM_SLOTS, CHUNK, sizes.dim), 99.0, dtype=dtype, device=device)
    shadow_kv.restore_keys(projections, directions, on(device, change), turns, out)
    wanted = torch.full(out.shape, 99.0)
    reference.restore_keys(projections.cpu(), directions.cpu(), change, known, wanted)
    found, is_missing = out.cpu(), change.is_missing
    if not (found[~is_missing] == 99).all():
        return inf
    return largest_error(found[is_missing], wanted[is_missing])


def random_change(sizes: ShadowSizes, seed: int) -> Change:
    """Return slots and what is missing in them."""
    is_missing = torch.rand(sizes.num_kv_heads, NUM_SLOTS, generator=generator(seed)) < SHARE_MISSING
    return Change(slots=random_chunks(sizes, seed), is_missing=is_missing)


def on(device: torch.device, change: Change) -> Change:
    return Change(slots=change.slots.to(device), is_missing=change.is_missing.to(device))


def random_chunks(sizes: ShadowSizes, seed: int) -> Tensor:
    """Return chunks [H_kv, k], each different in its head."""
    source = generator(seed)
    return torch.stack(
        [torch.randperm(NUM_CHUNKS, generator=source)[:NUM_SLOTS] for _ in range(sizes.num_kv_heads)]
    )


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shadow_trials(layers: Sequence[ShadowSizes]) -> dict[str, KernelCheck]:
    """Return what is to be tried for a model that has such layers, each listed once."""
    errors: dict[str, Callable[..., float]] = {
        shadow_kv.SCORES: scores_error,
        shadow_kv.WORKING_SET: exchange_error,
        shadow_kv.LOADS: load_error,
        shadow_kv.KEYS: keys_error,
    }
    return {operation: partial(worst_error, error, layers) for operation, error in errors.items() if layers}
