"""What a layer keeps, and which layers keep the same."""

import pytest

from kvchat.engine.formats.chunked.spec import ChunkedSpec
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.sliding.spec import SlidingSpec
from kvchat.engine.formats.spec import Group, group_layers

pytestmark = pytest.mark.pure

FULL = FullSpec(num_kv_heads=2, head_dim_k=8, head_dim_v=4, dtype="BF16")
SLIDING = SlidingSpec(num_kv_heads=2, head_dim_k=8, head_dim_v=4, dtype="BF16", window_len=4)
CHUNKED = ChunkedSpec(num_kv_heads=2, head_dim_k=8, head_dim_v=4, dtype="BF16", chunk_len=4)


def test_layers_that_keep_the_same_are_one_group_in_the_order_of_the_first() -> None:
    groups = group_layers({3: FULL, 0: SLIDING, 2: SLIDING, 1: FULL})
    assert groups == (Group(id=0, spec=SLIDING, layers=(0, 2)), Group(id=1, spec=FULL, layers=(1, 3)))


def test_a_block_has_the_bytes_of_keys_and_values_of_all_layers_and_tokens() -> None:
    assert FULL.token_bytes == 2 * (8 + 4) * 2
    assert Group(id=0, spec=FULL, layers=(0, 1, 5)).block_bytes(64) == 48 * 3 * 64


def test_a_sliding_layer_sees_itself_and_the_window_before() -> None:
    """Trap 16: a window of 4 is the token itself and three before it."""
    assert [SLIDING.first_visible(position) for position in (0, 3, 4, 10)] == [0, 0, 1, 7]


def test_a_chunked_layer_sees_its_own_chunk_up_to_itself() -> None:
    assert [CHUNKED.first_visible(position) for position in (0, 3, 4, 7, 8)] == [0, 0, 4, 4, 8]
    assert (CHUNKED.kind, CHUNKED.max_visible) == ("chunked", 4)


def test_a_layer_that_borrows_belongs_to_the_group_of_its_lender_and_adds_no_byte() -> None:
    groups = group_layers({0: SLIDING, 1: FULL}, {3: 1, 2: 0, 4: 1})
    assert [group.borrowers for group in groups] == [((2, 0),), ((3, 1), (4, 1))]
    assert [group.layers for group in groups] == [(0,), (1,)]
    assert groups[1].block_bytes(64) == FULL.token_bytes * 64
