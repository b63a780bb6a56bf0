"""Blocks that are looked at through shadows get host memory too: as much as one conversation needs of it."""

import pytest

from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.groups_in_format import stored_groups
from kvchat.engine.formats.pool_sizing import Lengths, pool_blocks
from kvchat.engine.formats.shadow.memory import (
    beside_bytes,
    divided,
    in_host_memory,
    making_bytes,
    table_bytes,
)
from kvchat.engine.formats.spec import Group, Selection, group_layers
from kvchat.errors import ConfigError
from tests.engine.formats.test_groups_in_format import SLIDING

pytestmark = pytest.mark.pure

P = 64
WIDE = FullSpec(num_kv_heads=8, head_dim_k=64, head_dim_v=64, dtype="BF16")
BLOCK = P * WIDE.token_bytes
CONTEXT = 32_768
LENGTHS = Lengths(context_len=CONTEXT, chunk_len=512, block_size=P)
FORMAT = "shadow:1024"


def groups(*, with_sliding: bool = False) -> tuple[Group, ...]:
    layers = {0: SLIDING, 1: WIDE} if with_sliding else {0: WIDE}
    return stored_groups(group_layers(layers), FORMAT, P)


@pytest.mark.parametrize("with_sliding", [False, True])
@pytest.mark.parametrize("host_blocks", [0, 1, 40, 150, 300, 420, 2000])
def test_no_byte_is_promised_twice_and_what_is_lent_has_its_shadow_beside(
    host_blocks: int, *, with_sliding: bool
) -> None:
    """And one more block would not: either a conversation needs no more, or its shadow is in the way."""
    device, host = 200 * BLOCK, host_blocks * BLOCK
    own = groups(with_sliding=with_sliding)
    found = divided(own, device, host, LENGTHS)
    assert found.block_bytes == device + found.host_bytes
    assert found.host_bytes + found.shadow_bytes == host
    assert found.host_bytes >= 0
    shadowed = next(group for group in own if group.spec.selection is Selection.EACH_STEP)
    num_tokens = min(CONTEXT, pool_blocks(own, found.block_bytes, LENGTHS)[shadowed.id] * P)
    if found.host_bytes:
        assert beside_bytes(own, num_tokens) <= found.shadow_bytes
    if num_tokens < CONTEXT:
        longer = beside_bytes(own, num_tokens + P)
        assert found.host_bytes + BLOCK + longer > host


def test_a_conversation_of_full_length_takes_no_more_than_it_needs() -> None:
    ample = divided(groups(), 200 * BLOCK, 10_000 * BLOCK, LENGTHS)
    assert ample.block_bytes == CONTEXT // P * BLOCK
    assert divided(groups(), 600 * BLOCK, 10_000 * BLOCK, LENGTHS).host_bytes == 0


def test_nothing_is_lent_where_the_shadow_itself_has_no_room() -> None:
    found = divided(groups(), 200 * BLOCK, 20 * BLOCK, LENGTHS)
    assert (found.host_bytes, found.shadow_bytes) == (0, 20 * BLOCK)


# On a GPU


def test_a_gpu_has_the_blocks_in_host_memory_and_shadows_that_are_a_sixth_of_them() -> None:
    """Of a long context in layers of Llama 3 8B's shape, embedding and working sets included."""
    wide = FullSpec(num_kv_heads=8, head_dim_k=128, head_dim_v=128, dtype="BF16")
    own = stored_groups(group_layers(dict.fromkeys(range(32), wide)), "shadow:2048", P)
    (placed,) = in_host_memory(own)
    assert placed.in_host_memory
    assert not own[0].in_host_memory
    assert (placed.layers, placed.block_bytes(P)) == (own[0].layers, own[0].block_bytes(P))
    num_tokens = 124_928
    exact = 32 * num_tokens * wide.token_bytes
    # At most: where no basis holds the keys, they are codes of 8 bits in place of projections.
    assert exact / 4 < beside_bytes([placed], num_tokens) < exact / 2
    assert beside_bytes([placed], num_tokens) > beside_bytes(own, num_tokens)
    assert beside_bytes([placed], 100) == 0
    assert making_bytes([placed], num_tokens) == 3 * num_tokens * wide.token_bytes
    assert making_bytes(own, num_tokens) == 0


def test_the_embeddings_table_is_counted_once_for_all_layers() -> None:
    one, two = (
        in_host_memory(stored_groups(group_layers(dict.fromkeys(range(count), WIDE)), FORMAT, P))
        for count in (1, 2)
    )
    table = table_bytes(64, CONTEXT)
    assert table == CONTEXT * 64 * 4
    assert 2 * (beside_bytes(one, CONTEXT) - table) == beside_bytes(two, CONTEXT) - table


def test_on_a_gpu_layers_without_a_shadow_beside_others_are_refused_and_other_formats_stay() -> None:
    with pytest.raises(ConfigError, match="layers 0 of this model have no shadow as its others do"):
        in_host_memory(groups(with_sliding=True))
    exact = group_layers({0: SLIDING, 1: WIDE})
    assert in_host_memory(exact) == exact


def test_chunks_lie_within_blocks_or_there_is_no_shadow() -> None:
    with pytest.raises(ConfigError, match="8 does not divide a block's 20; choose another block size"):
        stored_groups(group_layers({0: WIDE}), FORMAT, 20)
