"""What a processor computes of a shadow without copies is what the reference defines."""

import pytest
import torch
from torch import Tensor

from kvchat.engine.formats.shadow.rotary import HALVES, NEIGHBOURS, Rotary
from kvchat.engine.kernels.shadow_kv import exchange, reference, restore_keys
from kvchat.engine.kernels.shadow_kv.args import Change
from kvchat.engine.kernels.shadow_kv.torch_fallback import VisibleChunks, chosen, gathered_attention

pytestmark = pytest.mark.cpu

NUM_KV_HEADS, GROUP, DIM, VALUE_DIM = 2, 3, 16, 12


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_chunks", [0, 1, 7, 30])
def test_the_same_chunks_are_chosen_among_scores_that_are_alike_or_no_numbers(num_chunks: int) -> None:
    """Rounded, so that many are alike; some are no numbers; some are seen anyway."""
    for seed in range(20):
        scores = (randn(NUM_KV_HEADS, 40, seed=seed).abs() * 4).round() / 4
        if seed % 2:
            scores[0, seed] = scores[1, 39 - seed] = float("nan")
        always = randn(NUM_KV_HEADS, 40, seed=seed + 100) > 1.5
        always[:, 30:] &= num_chunks < 30
        room = min(num_chunks, 40 - int(always.sum(dim=1).max()))
        found, wanted = chosen(scores, room, always), reference.chosen(scores, room, always)
        assert torch.equal(found, wanted)
        assert (found & ~always).sum(dim=1).tolist() == [room] * NUM_KV_HEADS


@pytest.mark.parametrize("num_queries", [1, 5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_attention_over_parts_is_that_over_all_of_them(
    num_queries: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Of lengths that no block divides; what a query must not see is what comes behind it."""
    lengths = (24, 64, 43)
    parts = [randn(NUM_KV_HEADS, length, DIM, seed=length).to(dtype) for length in lengths]
    others = [randn(NUM_KV_HEADS, length, VALUE_DIM, seed=length + 1).to(dtype) for length in lengths]
    query = randn(num_queries, NUM_KV_HEADS * GROUP, DIM, seed=3).to(dtype)
    keys, values = VisibleChunks.of(parts), VisibleChunks.of(others)
    assert keys.num_tokens == values.num_tokens == sum(lengths)
    assert torch.equal(keys.blocks[:, : sum(lengths)], torch.cat(parts, dim=1))
    found = gathered_attention(query, keys, values, DIM**-0.5)
    wanted = reference.gathered_attention(query, torch.cat(parts, dim=1), torch.cat(others, dim=1), DIM**-0.5)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), wanted, atol=tolerance, rtol=tolerance)


def test_working_sets_come_to_hold_the_same_chunks_in_the_same_slots() -> None:
    """Step after step, from an empty one on; as many chunks are wanted as there are slots."""
    generator = torch.Generator().manual_seed(5)
    held, num_stayed = torch.full((NUM_KV_HEADS, 9), -1), 0
    for _ in range(20):
        wanted = torch.stack([torch.randperm(25, generator=generator)[:9] for _ in held])
        change, known = exchange(held, wanted, 25), reference.exchange(held, wanted)
        assert torch.equal(change.slots, known.slots)
        assert torch.equal(change.is_missing, known.is_missing)
        num_stayed += int((~change.is_missing).sum())
        held = change.slots
    assert num_stayed > 0


@pytest.mark.parametrize("are_neighbours", [False, True])
@pytest.mark.parametrize("num_turned", [DIM, 6])
def test_keys_of_projections_are_those_that_a_rotary_embedding_turns(
    num_turned: int, *, are_neighbours: bool
) -> None:
    """Chunks 4 to 19 have projections: a missing slot with another one is left as it is."""
    size, rank, first = 8, 5, 4
    frequencies = 100.0 ** (-torch.arange(0, num_turned, 2) / num_turned)

    def both(positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.cat((positions[..., None] * frequencies,) * 2, dim=-1)
        return angles.cos(), angles.sin()

    rotary = Rotary(both, NEIGHBOURS if are_neighbours else HALVES)
    turns = rotary.turns(24 * size, torch.device("cpu"))
    projections, directions = randn(16, size, rank), randn(NUM_KV_HEADS * DIM, rank, seed=1)
    change = Change(
        slots=torch.tensor([[3, 4, 9], [19, 20, 5]]),
        is_missing=torch.tensor([[True, True, False], [True, True, True]]),
    )
    out = torch.full((NUM_KV_HEADS, 3, size, DIM), float("nan"))
    restore_keys(projections, directions, change, turns, out, first)
    filled = {(0, 1): 4, (1, 0): 19, (1, 2): 5}
    for head in range(NUM_KV_HEADS):
        for slot in range(3):
            if (head, slot) not in filled:
                assert out[head, slot].isnan().all()
                continue
            chunk = filled[head, slot]
            before = projections[chunk - first] @ directions.unflatten(0, (NUM_KV_HEADS, DIM))[head].T
            wanted = rotary.turned(before[:, None], torch.arange(chunk * size, (chunk + 1) * size))[:, 0]
            torch.testing.assert_close(out[head, slot], wanted, atol=1e-5, rtol=1e-5)
