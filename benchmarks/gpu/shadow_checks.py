"""The kernels of a shadowed context against their definitions, on numbers that no run had before.

No engine uses them on a GPU yet, so there is nobody else who tries them. Dimensions: H_kv key-value heads, k
slots, C chunks, c tokens of a chunk, D head size, r rank.
"""

from math import inf

import torch
from torch import Tensor

from kvchat.engine.kernels.device import is_interpreted
from kvchat.engine.kernels.shadow_kv import reference
from kvchat.engine.kernels.trials import Trial, largest_error, random_numbers

NUM_HEADS, NUM_KV_HEADS, NUM_SLOTS, NUM_CHUNKS = 8, 2, 20, 70
CHUNK, DIM, RANK = 8, 128, 96
SHARE_SEEN, SHARE_MISSING = 0.2, 0.4


def runs_here(device: torch.device) -> bool:
    """Whether kernels run where the tensors lie; nothing stands in for these."""
    return device.type == "cuda" or is_interpreted()


def scores_error(device: torch.device, dtype: torch.dtype, *, seed: int = 0) -> float:
    """Single queries and a few together, some chunks seen anyway."""
    from kvchat.engine.kernels.shadow_kv import triton

    always = torch.rand(NUM_KV_HEADS, NUM_CHUNKS, generator=generator(seed)) < SHARE_SEEN
    always[:, 0] = False  # one is left
    means = random_numbers(device, dtype, NUM_CHUNKS, NUM_KV_HEADS, DIM, seed=seed + 1)
    errors = []
    for num_queries in (1, 5):
        query = random_numbers(device, dtype, num_queries, NUM_HEADS, DIM, seed=seed + 2)
        found = triton.chunk_scores(query, means, always.to(device), DIM**-0.5)
        wanted = reference.chunk_scores(query.cpu(), means.cpu(), always, DIM**-0.5)
        errors.append(largest_error(found, wanted))
    return max(errors)


def exchange_error(device: torch.device, dtype: torch.dtype, *, seed: int = 0) -> float:
    """Hits stay where they are, step after step, or everything is wrong; the dtype plays no part."""
    from kvchat.engine.kernels.shadow_kv import triton

    held = torch.full((NUM_KV_HEADS, NUM_SLOTS), -1)
    for step in range(3):
        wanted = random_chunks(seed + step)
        slots, is_missing = (side.cpu() for side in triton.exchange(held.to(device), wanted.to(device)))
        for head in range(NUM_KV_HEADS):
            change = reference.exchange(held[head], wanted[head])
            same = torch.equal(slots[head], change.slots)
            if not (same and torch.equal(is_missing[head], change.is_missing)):
                return inf
        held = slots
    return 0.0


def values_error(device: torch.device, dtype: torch.dtype, *, seed: int = 0) -> float:
    """What is missing is the store's to the bit, and nothing else is written."""
    from kvchat.engine.kernels.shadow_kv import triton

    slots, is_missing = random_change(seed)
    store = random_numbers(device, dtype, NUM_CHUNKS * NUM_KV_HEADS, CHUNK, DIM, seed=seed + 1)
    out = torch.full((NUM_KV_HEADS, NUM_SLOTS, CHUNK, DIM), 99.0, dtype=dtype, device=device)
    triton.load_values(store, slots.to(device), is_missing.to(device), out)
    by_head = store.cpu().unflatten(0, (NUM_CHUNKS, NUM_KV_HEADS)).transpose(0, 1)
    wanted = torch.stack([own[chunks] for own, chunks in zip(by_head, slots, strict=True)])
    wanted[~is_missing] = 99.0
    return 0.0 if torch.equal(out.cpu(), wanted) else inf


def keys_error(device: torch.device, dtype: torch.dtype, *, seed: int = 0) -> float:
    """Keys of what is missing, made from projections and turned; nothing else is written."""
    from kvchat.engine.kernels.shadow_kv import triton

    slots, is_missing = random_change(seed)
    projections = random_numbers(device, dtype, NUM_CHUNKS, CHUNK, RANK, seed=seed + 1)
    directions = random_numbers(device, dtype, NUM_KV_HEADS * DIM, RANK, seed=seed + 2) * RANK**-0.5
    angles = torch.arange(NUM_CHUNKS * CHUNK)[:, None] * 1e4 ** (-torch.arange(DIM // 2) * 2 / DIM)
    cosines, sines = angles.cos(), angles.sin()
    out = torch.full((NUM_KV_HEADS, NUM_SLOTS, CHUNK, DIM), 99.0, dtype=dtype, device=device)
    turns = triton.Turns(cosines=cosines.to(device), sines=sines.to(device))
    triton.restore_keys(projections, directions, (slots.to(device), is_missing.to(device)), turns, out)
    both = [torch.cat((side, side), dim=1) for side in (cosines, sines)]
    wanted = reference.restored_chunks(projections.cpu(), directions.cpu(), slots, both[0], both[1])
    found = out.cpu()
    if not (found[~is_missing] == 99).all():
        return inf
    return largest_error(found[is_missing], wanted[is_missing])


def random_change(seed: int) -> tuple[Tensor, Tensor]:
    """Return slots and what is missing in them [H_kv, k]."""
    is_missing = torch.rand(NUM_KV_HEADS, NUM_SLOTS, generator=generator(seed)) < SHARE_MISSING
    return random_chunks(seed), is_missing


def random_chunks(seed: int) -> Tensor:
    """Return chunks [H_kv, k], each different in its head."""
    source = generator(seed)
    return torch.stack(
        [torch.randperm(NUM_CHUNKS, generator=source)[:NUM_SLOTS] for _ in range(NUM_KV_HEADS)]
    )


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SHADOW_TRIALS: dict[str, Trial] = {
    "shadow: scores of chunks": scores_error,
    "shadow: working set": exchange_error,
    "shadow: values": values_error,
    "shadow: keys": keys_error,
}
