"""Names of the blocks on the device."""

import pytest

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, block_key
from kvchat.engine.cache.prefix_index import IndexNode, PrefixIndex
from tests.engine.cache.caches import ROOT

pytestmark = pytest.mark.pure

FIRST, SECOND = GroupId(0), GroupId(1)


def node(parent: BlockKey, *token_ids: int) -> IndexNode:
    return IndexNode(block_key(parent, token_ids), parent, token_ids, 0)


def test_a_node_is_found_by_its_key_and_its_ids_together() -> None:
    """Trap 4: never by the hash alone."""
    index = PrefixIndex()
    added = node(ROOT, 1, 2)
    index.add(added, FIRST, BlockId(7))
    assert index.find(added.key, (1, 2)) is added
    assert index.find(added.key, (1, 3)) is None
    assert index.find(block_key(ROOT, (1, 3)), (1, 3)) is None


def test_a_node_goes_with_its_last_block_and_its_children_stay() -> None:
    index = PrefixIndex()
    parent = node(ROOT, 1, 2)
    child = node(parent.key, 3, 4)
    index.add(parent, FIRST, BlockId(0))
    index.add(parent, SECOND, BlockId(0))
    index.add(child, FIRST, BlockId(1))
    index.remove(parent.key, FIRST)
    assert index.nearest(ROOT, (), 9) == [parent]
    index.remove(parent.key, SECOND)
    assert index.nearest(ROOT, (), 9) == []
    assert index.nearest(parent.key, (), 9) == [child]
    assert [known.key for known in index] == [child.key]


def test_a_key_that_is_claimed_for_other_ids_is_a_bug() -> None:
    index = PrefixIndex()
    index.add(node(ROOT, 1, 2), FIRST, BlockId(0))
    with pytest.raises(AssertionError):
        index.add(IndexNode(block_key(ROOT, (1, 2)), ROOT, (1, 3), 0), SECOND, BlockId(0))
