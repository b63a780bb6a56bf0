"""The random traces of the cache manager once more, over layers whose older blocks are quantised.

What a query sees is exact in its own block and the one before, and quantised in all others; every block is
quantised once, from exact bytes that are right, by the one sequence that holds the place it goes to.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from kvchat.engine.api.ids import BlockId, GroupId
from tests.engine.cache.caches import quantized_group, recent_group
from tests.engine.cache.test_manager_traces import BLOCK_SIZE, FEW, MANY, POLICIES, CacheTraces, Policy

pytestmark = [pytest.mark.pure, pytest.mark.long]


class QuantizedTraces(CacheTraces):
    @initialize(
        num_quantized=st.integers(5, 10),
        num_recent=st.integers(7, 9),
        num_places=st.integers(0, 8),
        policy=POLICIES,
    )
    def build(  # type: ignore[override]
        self, num_quantized: int, num_recent: int, num_places: int, policy: Policy
    ) -> None:
        groups = quantized_group(BLOCK_SIZE), recent_group(BLOCK_SIZE)
        num_blocks = [num_quantized, num_recent]
        self.begin(*groups, num_blocks=num_blocks, num_places=num_places, policy=policy)

    @invariant()
    def pinned_blocks_are_there(self) -> None:
        """The last of them is quantised only later."""
        for keys in self.pinned.values():
            assert all(self.manager.index.block(key, GroupId(0)) is not None for key in keys[:-1])

    @invariant()
    def tables_hold_what_is_old_enough(self) -> None:
        for sequence in self.admitted:
            quantized: list[BlockId | None] = sequence.tables[0]
            assert None not in quantized
            assert len(quantized) == max(0, sequence.computed_len // BLOCK_SIZE - 1)


class TestTraces(QuantizedTraces.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(FEW, max_examples=30)


@pytest.mark.slow
class TestManyTraces(QuantizedTraces.TestCase):  # type: ignore[name-defined,misc]
    settings = MANY
