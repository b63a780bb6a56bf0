"""New keys and values land in their slots and nowhere else."""

import pytest
import torch

from kvchat.engine.kernels.store_kv import store_kv

pytestmark = pytest.mark.cpu

NUM_TOKENS, NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, DIM_K, DIM_V = 23, 6, 2, 5, 3, 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_token_lands_in_its_slot_and_every_other_slot_keeps_its_bytes(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    key = torch.randn(NUM_TOKENS, NUM_HEADS, DIM_K, generator=generator).to(dtype)
    value = torch.randn(NUM_TOKENS, NUM_HEADS, DIM_V, generator=generator).to(dtype)
    k_pool = torch.randn(NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, DIM_K, generator=generator).to(dtype)
    v_pool = torch.randn(NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, DIM_V, generator=generator).to(dtype)
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE, generator=generator)[:NUM_TOKENS]
    wanted_keys, wanted_values = k_pool.clone(), v_pool.clone()
    for token, slot in enumerate(slots.tolist()):
        for head in range(NUM_HEADS):
            wanted_keys[slot // BLOCK_SIZE, head, slot % BLOCK_SIZE] = key[token, head]
            wanted_values[slot // BLOCK_SIZE, head, slot % BLOCK_SIZE] = value[token, head]
    store_kv(key, value, k_pool, v_pool, slots)
    assert torch.equal(k_pool, wanted_keys)
    assert torch.equal(v_pool, wanted_values)


def test_values_are_cast_to_what_the_pool_stores() -> None:
    key = torch.full((1, 1, 2), 1.0 + 2**-12)
    k_pool, v_pool = (torch.zeros(1, 1, 1, 2, dtype=torch.bfloat16) for _ in range(2))
    store_kv(key, key, k_pool, v_pool, torch.tensor([0]))
    assert torch.equal(k_pool, torch.ones_like(k_pool))
    assert torch.equal(v_pool, torch.ones_like(v_pool))


def test_keys_that_are_views_of_other_tensors_are_stored() -> None:
    key = torch.arange(12.0).view(2, 3, 2).transpose(0, 1)  # [3, 2, 2], heads first in memory
    k_pool, v_pool = torch.zeros(2, 2, 2, 2), torch.zeros(2, 2, 2, 2)
    store_kv(key, key, k_pool, v_pool, torch.tensor([3, 0, 2]))
    stored = k_pool.transpose(1, 2).reshape(4, 2, 2)
    assert torch.equal(stored[torch.tensor([3, 0, 2])], key)
    assert torch.equal(stored[1], torch.zeros(2, 2))
