"""Compressed keys: on a basis while it holds them, measured whenever some are added, exact where none
does."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvchat.engine.formats.shadow.compressed_keys import LEAST_PER_RANK, CompressedKeys
from kvchat.engine.formats.shadow.copy_on_write_rows import Held, Rows
from kvchat.engine.formats.shadow.settings import CHUNK_SIZE as CHUNK
from kvchat.engine.formats.shadow.settings import CODED_LEN, PIECE_LEN, ShadowSettings
from kvchat.engine.kernels.shadow_kv import reference
from kvchat.engine.kernels.shadow_kv.args import Change
from tests.engine.formats.shadow.contexts import (
    HEAD_DIM,
    NUM_KV_HEADS,
    RANK,
    REMOTE,
    ROTARY,
    SMALL,
    WIDTH,
    distance,
    randn,
)

pytestmark = pytest.mark.cpu


def compressed(settings: ShadowSettings = REMOTE, held: Held | None = None) -> CompressedKeys:
    return CompressedKeys(settings, ROTARY, (NUM_KV_HEADS, HEAD_DIM), torch.float32, held or Held())


def turned(before: Tensor, start: int = 0) -> Tensor:
    return ROTARY.turned(before.view(-1, NUM_KV_HEADS, HEAD_DIM), torch.arange(start, start + len(before)))


def restored(keys: CompressedKeys, chunks: Tensor) -> Tensor:
    """Return the rotated keys [H_kv, m, c, D] of chunks [m]: restored on a basis, as they are on none."""
    slots = chunks.expand(NUM_KV_HEADS, -1)
    out = torch.empty(*slots.shape, CHUNK, HEAD_DIM)
    turns = ROTARY.turns(keys.num_chunks * CHUNK, torch.device("cpu"))
    keys.restore(Change(slots=slots, is_missing=torch.ones_like(slots, dtype=torch.bool)), turns, out)
    for segment in keys.segments:
        here = (chunks >= segment.first_chunk) & (chunks < segment.first_chunk + len(segment.rows))
        if segment.directions is None:
            exact = torch.cat([stand.numbers().unflatten(0, (-1, CHUNK)) for stand in segment.stands()])
            out[:, here] = exact[chunks[here] - segment.first_chunk].permute(2, 0, 1, 3)
    return out


def error(keys: CompressedKeys, wanted: Tensor, start: int = 0) -> float:
    """Return the relative error of the chunks from token `start` on."""
    found = restored(keys, torch.arange(start // CHUNK, keys.num_chunks))
    return distance(found.flatten(1, 2).transpose(0, 1), wanted[start:])


def test_a_basis_of_pieces_is_the_basis_of_all() -> None:
    num_tokens = 2 * PIECE_LEN + 400
    before = randn(num_tokens, RANK) @ randn(RANK, WIDTH, seed=1) + 0.01 * randn(num_tokens, WIDTH, seed=2)
    keys = compressed()
    keys.compress(turned(before))
    basis = reference.basis_of_products(before.flatten(1).T.double() @ before.flatten(1).double(), RANK)
    own = keys.segments[0].directions
    assert own is not None
    projector = own.all() @ own.all().T
    torch.testing.assert_close(projector, basis.directions @ basis.directions.T, atol=1e-4, rtol=1e-4)


def test_keys_that_no_basis_holds_stay_exact() -> None:
    wanted = turned(randn(400, WIDTH))
    keys = compressed()
    keys.compress(wanted)
    assert keys.segments[0].directions is None
    assert error(keys, wanted) == 0


def test_keys_that_leave_the_basis_are_kept_exactly_until_they_have_one_of_their_own() -> None:
    """The loss is measured at every compressing; what the first basis holds stays as it is."""
    num_later = 2 * LEAST_PER_RANK * RANK
    here, there = (randn(RANK, WIDTH, seed=seed) for seed in (1, 2))
    before = torch.cat(
        (randn(400, RANK) @ here, randn(40, RANK, seed=3) @ here, randn(num_later, RANK, seed=4) @ there)
    )
    wanted = turned(before)
    keys = compressed()
    keys.compress(wanted[:400])
    old = restored(keys, torch.arange(50))
    keys.compress(wanted[400:440])
    assert len(keys.segments) == 1
    states = []
    for start in range(440, len(before), CHUNK):
        keys.compress(wanted[start : start + CHUNK])
        states.append(keys.segments[-1].directions is not None)
        assert error(keys, wanted[: start + CHUNK], 440) < 1e-4
    num_exact = LEAST_PER_RANK * RANK // CHUNK - 1
    assert states == [False] * num_exact + [True] * (len(states) - num_exact)
    assert len(keys.segments) == 2
    assert torch.equal(restored(keys, torch.arange(50)), old)
    assert error(keys, wanted) < 1e-4


def test_chunks_of_several_segments_are_taken_in_the_order_that_is_asked_for() -> None:
    wanted = turned(torch.cat([randn(80, RANK, seed=n) @ randn(RANK, WIDTH, seed=n + 9) for n in range(4)]))
    keys = compressed()
    for start in range(0, len(wanted), 40):
        keys.compress(wanted[start : start + 40])
    assert len(keys.segments) == 4
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    chunks = wanted.unflatten(0, (-1, CHUNK))[order, :, 1]
    torch.testing.assert_close(restored(keys, order)[1], chunks, atol=1e-4, rtol=1e-4)


def test_many_keys_that_no_basis_holds_are_weighed_by_codes() -> None:
    """No product is further off than half a scale for each number of the query; landmarks are not needed."""
    rotated = turned(randn(CODED_LEN + 80, WIDTH))
    held = Held()
    few, coded = compressed(SMALL), compressed(SMALL, held)
    few.compress(rotated[: CODED_LEN - CHUNK])
    coded.compress(rotated[:CODED_LEN])
    coded.compress(rotated[CODED_LEN:])
    assert [run.scales is None for run in (few.segments[0], coded.segments[0])] == [True, False]
    assert held.num_bytes < rotated.nbytes / 2
    query, none = (
        randn(3, 2 * NUM_KV_HEADS, HEAD_DIM, seed=4),
        Rows((NUM_KV_HEADS, HEAD_DIM), torch.float32, held),
    )
    exact = reference.highest_products(query, rotated, CHUNK)
    found = coded.products(query, none)
    scales = rotated.unflatten(0, (-1, CHUNK)).abs().amax(dim=(1, 3)).T / 127  # [H_kv, C]
    bound = query.abs().sum(dim=2).unflatten(1, (NUM_KV_HEADS, -1))[..., None] * scales[:, None] / 2
    assert ((found - exact).abs() <= bound + 1e-4).all()
    assert (found != exact).any()


def test_chunks_are_weighed_by_their_keys_where_these_are_exact_and_by_landmarks_on_a_basis() -> None:
    """A segment on a basis, and behind it one that waits for its own, longer than a page."""
    held = randn(PIECE_LEN, RANK, seed=1) @ randn(RANK, WIDTH, seed=2)
    keys = compressed(replace(REMOTE, rank=12))
    rotated = turned(torch.cat((held, randn(CODED_LEN - CHUNK, WIDTH, seed=3))))
    keys.compress(rotated[:PIECE_LEN])
    keys.compress(rotated[PIECE_LEN : PIECE_LEN + 24])
    keys.compress(rotated[PIECE_LEN + 24 :])
    first, second = keys.segments
    assert first.directions is not None
    assert second.directions is None
    query = randn(3, 2 * NUM_KV_HEADS, HEAD_DIM, seed=4)
    means = reference.landmarks(rotated, CHUNK)
    landmarks = Rows((NUM_KV_HEADS, HEAD_DIM), torch.float32, Held())
    for part in means.split(100):
        landmarks.append(part)
    found = keys.products(query, landmarks)
    middle = PIECE_LEN // CHUNK
    torch.testing.assert_close(found[..., :middle], reference.products(query, means[:middle]))
    exact = reference.highest_products(query, rotated[PIECE_LEN:], CHUNK)
    torch.testing.assert_close(found[..., middle:], exact)
    assert not torch.allclose(exact, reference.products(query, means[middle:]), atol=0.1)
