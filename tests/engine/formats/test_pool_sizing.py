"""How bytes become blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.engine.formats.pool_sizing import Lengths, host_places, least_blocks, pool_blocks, window_blocks
from kvchat.engine.formats.spec import Group
from kvchat.errors import PoolExhausted
from tests.engine.cache.caches import Cache, full_group, sliding_group

pytestmark = pytest.mark.pure

BLOCK_SIZE = 4
FULL, SLIDING = full_group(), sliding_group(10)


def blocks(groups: list[Group], limit_bytes: int, context_len: int = 4000, chunk_len: int = 8) -> list[int]:
    lengths = Lengths(context_len=context_len, chunk_len=chunk_len, block_size=BLOCK_SIZE)
    counts = pool_blocks(groups, limit_bytes, lengths)
    return [counts[group.id] for group in groups]


def num_bytes(groups: list[Group], counts: list[int]) -> int:
    return sum(group.block_bytes(BLOCK_SIZE) * n for group, n in zip(groups, counts, strict=True))


def test_one_group_gets_all_bytes() -> None:
    assert blocks([FULL], 10 * FULL.block_bytes(BLOCK_SIZE)) == [10]
    assert blocks([FULL], 11 * FULL.block_bytes(BLOCK_SIZE) - 1) == [10]


def test_full_groups_hold_equally_many_tokens() -> None:
    first, second = blocks([FULL, full_group(1)], 100_000)
    assert first == second


def test_sliding_groups_alone_share_the_bytes_as_full_ones_would() -> None:
    assert blocks([SLIDING], 100 * SLIDING.block_bytes(BLOCK_SIZE)) == [100]


def test_beside_a_full_group_a_sliding_one_gets_a_share() -> None:
    full, sliding = blocks([FULL, SLIDING], 1_000_000)
    assert sliding == full // 4


def test_too_few_bytes_are_refused_with_the_number_that_would_do() -> None:
    with pytest.raises(PoolExhausted, match="needs at least 256 bytes") as refusal:
        blocks([FULL, SLIDING], 255)
    assert "255" in str(refusal.value)
    assert blocks([FULL, SLIDING], 256) == [2, 2]


def test_a_sequence_that_fills_the_full_group_has_its_window_and_a_chunk_in_the_sliding_one() -> None:
    """Otherwise a long conversation would be refused though most of the pool is free."""
    full, sliding = blocks([FULL, sliding_group(40)], 30 * 2 * FULL.block_bytes(BLOCK_SIZE), chunk_len=16)
    assert sliding >= least_blocks(sliding_group(40), full * BLOCK_SIZE, 16, BLOCK_SIZE)


@given(
    limit_bytes=st.integers(300, 20_000),
    window_len=st.integers(1, 80),
    context_len=st.integers(1, 500),
    chunk_len=st.integers(1, 64),
)
def test_pools_never_exceed_their_bytes_and_one_more_block_would(
    limit_bytes: int, window_len: int, context_len: int, chunk_len: int
) -> None:
    groups = [FULL, sliding_group(window_len)]
    full, sliding = blocks(groups, limit_bytes, context_len, chunk_len)
    assert num_bytes(groups, [full, sliding]) <= limit_bytes
    assert num_bytes(groups, [full + 1, sliding + 3]) > limit_bytes
    longest = min(context_len, full * BLOCK_SIZE)
    assert sliding >= least_blocks(groups[1], longest, chunk_len, BLOCK_SIZE)


@given(limit_bytes=st.integers(0, 20_000), window_len=st.integers(1, 80))
def test_places_in_host_memory_never_exceed_their_bytes_and_one_more_of_each_would(
    limit_bytes: int, window_len: int
) -> None:
    """Trap 25: a limit holds from the first moment on."""
    groups = [FULL, sliding_group(window_len)]
    places = list(host_places(groups, limit_bytes, BLOCK_SIZE).values())
    assert num_bytes(groups, places) <= limit_bytes < num_bytes(groups, [count + 1 for count in places])


@pytest.mark.parametrize("chunk_len", [1, 3, 4, 9])
@pytest.mark.parametrize("window_len", [1, 2, 4, 5, 9])
def test_one_sequence_runs_in_the_least_blocks_and_keeps_no_more_than_its_window(
    window_len: int, chunk_len: int
) -> None:
    group = sliding_group(window_len, 0)
    cache = Cache(group, num_blocks=least_blocks(group, 50, chunk_len, BLOCK_SIZE))
    sequence = cache.open(list(range(50)))
    while sequence.num_uncomputed:
        cache.compute(sequence, min(chunk_len, sequence.num_uncomputed), chunk_len)
        held = [block for block in sequence.tables[0] if block is not None]
        assert len(held) <= window_blocks(window_len, BLOCK_SIZE)


def test_a_full_group_needs_the_whole_sequence() -> None:
    assert least_blocks(FULL, 1, 8, BLOCK_SIZE) == 1
    assert least_blocks(FULL, 4, 8, BLOCK_SIZE) == 1
    assert least_blocks(FULL, 5, 8, BLOCK_SIZE) == 2
