"""The random traces of the cache manager once more, over layers that keep a recurrent state.

A step reads the state behind all tokens before it, and writes the one behind its own into another block:
whoever is forked, preempted, moved or cut off on the way finds the one that it left.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.spec import Group
from tests.engine.cache.caches import full_group, sliding_group, state_group
from tests.engine.cache.test_manager_traces import FEW, MANY, POLICIES, CacheTraces, Policy

pytestmark = [pytest.mark.pure, pytest.mark.long]


class StateTraces(CacheTraces):
    step_with_a_draft = None  # no state can be taken back to the tokens that were guessed right

    @initialize(
        others=st.sampled_from([(), (full_group(),), (full_group(), sliding_group(5))]),
        piece=st.sampled_from([1, 3, 4, 8]),
        num_states=st.integers(3, 12),
        num_full=st.integers(7, 12),
        num_places=st.integers(0, 8),
        policy=POLICIES,
    )
    def build(  # type: ignore[override]
        self,
        others: tuple[Group, ...],
        piece: int,
        num_states: int,
        num_full: int,
        num_places: int,
        policy: Policy,
    ) -> None:
        groups = *others, state_group(len(others), piece)
        num_blocks = [*(num_full for _ in others), num_states]
        self.begin(*groups, num_blocks=num_blocks, num_places=num_places, policy=policy)

    @precondition(lambda self: self.admitted)
    @rule(which=st.integers(0, 1000))
    def demote(self, which: int) -> None:
        """What is moved makes others go, but what was held goes on where it stopped."""
        sequence = self.admitted[which % len(self.admitted)]
        self.admitted.remove(sequence)
        self.waiting.append(sequence)
        read = sequence.token_ids[: sequence.computed_len]
        self.cache.demote(sequence)
        assert self.cache.matched_len([*read, 0]) >= len(read), "what is demoted is lost"

    @invariant()
    def a_full_groups_blocks_have_their_parents(self) -> None:
        if len(self.manager.groups) > 1:
            super().a_full_groups_blocks_have_their_parents()

    @invariant()
    def pinned_blocks_are_there(self) -> None:
        if len(self.manager.groups) > 1:
            super().pinned_blocks_are_there()

    @invariant()
    def a_sequence_holds_no_more_than_its_window(self) -> None:
        """And one state, between steps."""
        for sequence in self.admitted:
            assert len(sequence.tables[GroupId(len(self.manager.groups) - 1)]) == min(
                1, sequence.computed_len
            )


class TestTraces(StateTraces.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(FEW, max_examples=40)


@pytest.mark.slow
class TestManyTraces(StateTraces.TestCase):  # type: ignore[name-defined,misc]
    settings = MANY
