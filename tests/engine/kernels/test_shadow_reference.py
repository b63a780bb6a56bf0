"""The definition of a shadowed context holds against dense attention, algebra, and planted answers."""

import math

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels.shadow_kv import reference as shadow
from kvchat.engine.kernels.shadow_kv.args import Landmarks, Rotations

pytestmark = pytest.mark.cpu

CHUNK, NUM_CHUNKS, NUM_KV_HEADS, GROUP, HEAD_DIM = 8, 24, 2, 3, 16
NUM_TOKENS = CHUNK * NUM_CHUNKS
WIDTH = NUM_KV_HEADS * HEAD_DIM
SCALE = HEAD_DIM**-0.5
NONE = torch.zeros(NUM_KV_HEADS, NUM_CHUNKS, dtype=torch.bool)


def basis_of(keys: Tensor, rank: int) -> shadow.Basis:
    """Return the best basis for keys [n, H_kv, D] before rotation."""
    rows = keys.flatten(1).double()
    return shadow.basis_of_products(rows.T @ rows, rank)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def turned(keys: Tensor) -> Tensor:
    angles = torch.arange(NUM_TOKENS)[:, None, None] * 1e4 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    return shadow.turned(keys, Rotations(cosines=angles.cos(), sines=angles.sin()))


def restored(keys: Tensor, basis: shadow.Basis) -> Tensor:
    """Return keys [n, H_kv, D] before rotation as their projections on a basis say."""
    projections = keys.flatten(1).float() @ basis.directions
    return (projections @ basis.directions.T).unflatten(1, (NUM_KV_HEADS, -1))


def low_rank_keys(rank: int) -> Tensor:
    keys = randn(NUM_TOKENS, rank, seed=1) @ randn(rank, WIDTH, seed=2)
    return keys.view(NUM_TOKENS, NUM_KV_HEADS, HEAD_DIM)


def dense(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    wide = [side.repeat_interleave(GROUP, dim=1).transpose(0, 1) for side in (keys, values)]
    mask = torch.ones(len(query), NUM_TOKENS).tril(NUM_TOKENS - len(query)).bool()
    out = torch.nn.functional.scaled_dot_product_attention(query.transpose(0, 1), *wide, attn_mask=mask)
    return out.transpose(0, 1)


@pytest.mark.parametrize("num_queries", [1, 5])
def test_with_all_chunks_and_the_full_rank_it_is_dense_attention(num_queries: int) -> None:
    pre = randn(NUM_TOKENS, NUM_KV_HEADS, HEAD_DIM)
    values, query = randn(*pre.shape, seed=3), randn(num_queries, NUM_KV_HEADS * GROUP, HEAD_DIM, seed=4)
    basis = basis_of(pre, WIDTH)
    means = shadow.landmarks(turned(pre), CHUNK)
    scores = shadow.chunk_scores(query, means, NONE, SCALE)
    seen = shadow.chosen(scores, NUM_CHUNKS, torch.zeros_like(scores, dtype=torch.bool))
    keys = turned(restored(pre, basis))
    rows = keys.transpose(0, 1), values.transpose(0, 1)
    found = shadow.gathered_attention(query, *rows, SCALE, seen.repeat_interleave(CHUNK, 1))
    wanted = dense(query, turned(pre), values)
    assert ((found - wanted).norm() / wanted.norm()).item() < 5e-6
    assert basis.energy == pytest.approx(1)


@pytest.mark.parametrize("rank", [1, 7, 20, WIDTH])
def test_what_a_rank_loses_is_what_the_best_basis_must_lose(rank: int) -> None:
    """Eckart and Young; the share of the squares that is held tells the same."""
    keys = randn(NUM_TOKENS, NUM_KV_HEADS, HEAD_DIM, seed=5)
    basis = basis_of(keys, rank)
    error = keys - restored(keys, basis)
    singular = torch.linalg.svdvals(keys.flatten(1).double())
    lost = (singular[rank:] ** 2).sum().item()
    assert error.double().norm().item() == pytest.approx(math.sqrt(lost), rel=1e-4, abs=1e-4)
    assert basis.energy == pytest.approx(1 - lost / (singular**2).sum().item(), abs=1e-6)


def test_keys_have_a_low_rank_before_their_rotation_only() -> None:
    """The control that finds a basis taken on the wrong side."""
    pre = low_rank_keys(12)
    before = basis_of(pre, 12)
    after = basis_of(turned(pre), 12)
    assert before.energy > 0.999999
    assert after.energy < 0.9


def test_the_highest_product_of_a_chunk_is_that_of_its_best_key() -> None:
    """Number by number; it is never less than what its landmark says."""
    keys = randn(NUM_TOKENS, NUM_KV_HEADS, HEAD_DIM, seed=13)
    query = randn(2, NUM_KV_HEADS * GROUP, HEAD_DIM, seed=14)
    found = shadow.highest_products(query, keys, CHUNK)
    for number, head, member, chunk in ((0, 0, 0, 0), (1, 1, 2, 13), (0, 1, 1, NUM_CHUNKS - 1)):
        own = keys[chunk * CHUNK : (chunk + 1) * CHUNK, head]
        wanted = max(math.fsum((query[number, GROUP * head + member] * key).tolist()) for key in own)
        assert found[number, head, member, chunk].item() == pytest.approx(wanted, rel=1e-5)
    assert (found >= shadow.products(query, shadow.landmarks(keys, CHUNK))).all()


def test_codes_of_keys_are_no_further_off_than_half_a_scale() -> None:
    """Each chunk and head has a scale of its own; one without any number but 0 is kept too."""
    chunks = randn(5, CHUNK, NUM_KV_HEADS, HEAD_DIM) * torch.logspace(-6, 6, 5)[:, None, None, None]
    chunks[2, :, 1] = 0
    codes, scales = shadow.coded(chunks)
    assert (codes.dtype, codes.abs().amax()) == (torch.int8, 127)
    read = Landmarks(rows=codes, scales=scales).numbers().view(chunks.shape)
    assert ((read - chunks).abs() <= scales[:, None, :, None] * 0.5001).all()
    assert not read[2, :, 1].any()


def test_a_key_that_its_chunks_mean_hides_is_found_by_the_keys_themselves() -> None:
    """By hand: of two chunks one has the key that is asked for, among seven that cancel it."""
    keys = torch.zeros(2 * CHUNK, 1, 2)
    keys[3, 0, 0], keys[4, 0, 0] = 20, -30
    keys[CHUNK:, 0, 0] = 1
    query, none = torch.eye(2)[:1, None], torch.zeros(1, 2, dtype=torch.bool)
    by_mean = shadow.chunk_scores(query, shadow.landmarks(keys, CHUNK), none, 1.0)
    by_keys = shadow.wanted_scores(shadow.highest_products(query, keys, CHUNK), none, 1.0)
    assert shadow.chosen(by_mean, 1, none).tolist() == [[False, True]]
    assert shadow.chosen(by_keys, 1, none).tolist() == [[True, False]]
    assert by_keys[0].tolist() == pytest.approx([1, 1 / (1 + math.exp(19))], abs=1e-6)


def weights_of(query: Tensor, means: Tensor, left: list[int]) -> list[float]:
    """Return what a query of a head gives to each landmark [C, D] in `left`, of nothing but these."""
    exponents = {chunk: math.exp(SCALE * math.fsum((query * means[chunk]).tolist())) for chunk in left}
    return [exponents.get(chunk, 0.0) / math.fsum(exponents.values()) for chunk in range(len(means))]


@pytest.mark.parametrize("num_queries", [1, 4])
def test_what_is_seen_anyway_is_out_before_chunks_are_weighed(num_queries: int) -> None:
    """Number by number: the highest weight that any query in any head of the group gives to what is left."""
    means = randn(NUM_CHUNKS, NUM_KV_HEADS, HEAD_DIM, seed=11)
    query = randn(num_queries, NUM_KV_HEADS * GROUP, HEAD_DIM, seed=12)
    always = NONE.clone()
    always[0, [0, 3, 17]] = always[1, [0, 5]] = True
    wanted = [
        [
            max(weights)
            for weights in zip(
                *(
                    weights_of(
                        query[number, GROUP * head + member],
                        means[:, head],
                        (~always[head]).nonzero().flatten().tolist(),
                    )
                    for number in range(num_queries)
                    for member in range(GROUP)
                ),
                strict=True,
            )
        ]
        for head in range(NUM_KV_HEADS)
    ]
    found = shadow.chunk_scores(query, means, always, SCALE)
    torch.testing.assert_close(found, torch.tensor(wanted), atol=1e-6, rtol=1e-5)


def test_a_working_set_holds_what_is_wanted_and_moves_nothing_that_stays() -> None:
    """By chance, step after step; the values in the slots are the store's."""
    generator = torch.Generator().manual_seed(8)
    store = randn(40, 4, seed=9)
    held, values = torch.full((1, 10), -1), torch.zeros(1, 10, 4)
    num_fetched = 0
    for _ in range(50):
        wanted = torch.randperm(40, generator=generator)[None, :10]
        change = shadow.exchange(held, wanted)
        values[change.is_missing] = store[change.slots[change.is_missing]]
        assert sorted(change.slots[0].tolist()) == sorted(wanted[0].tolist())
        assert torch.equal(values, store[change.slots])
        assert torch.equal(change.slots[~change.is_missing], held[~change.is_missing])
        assert int(change.is_missing.sum()) == len({*wanted[0].tolist()} - {*held[0].tolist()})
        num_fetched += int(change.is_missing.sum())
        held = change.slots
    assert 0 < num_fetched < 50 * 10
