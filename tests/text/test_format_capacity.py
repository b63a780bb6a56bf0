"""How much more can be said is told with what comes then."""

from dataclasses import replace

import pytest

from kvchat.engine.api.snapshot import Tier, TierUsage
from kvchat.text.format_cost import room_words
from tests.ui.scripted_engine import HeldTokens, scripted_snapshot

pytestmark = pytest.mark.pure

ONE = (HeldTokens(owner="s", num_tokens=640),)
HOST = TierUsage(tier=Tier.HOST, used_bytes=0, cached_bytes=0, total_bytes=1 << 20, num_blocks=0)


def test_the_end_of_the_context_comes_first_where_it_is_nearer() -> None:
    snapshot = scripted_snapshot(ONE, total_blocks=1000)
    assert room_words(snapshot, 8000) == (192, "before the context is full")
    assert room_words(snapshot, 9000) == (0, "before the context is full")


def test_kept_blocks_are_given_up_or_move_where_there_is_host_memory() -> None:
    snapshot = scripted_snapshot(ONE, total_blocks=20, kept_tokens=128)
    assert room_words(snapshot, 640) == (512, "before kept blocks are given up")
    with_host = replace(snapshot, tiers=(*snapshot.tiers, HOST))
    assert room_words(with_host, 640) == (512, "before kept blocks move to host memory")


def test_with_nothing_kept_other_branches_are_next_and_then_nothing_is() -> None:
    assert room_words(scripted_snapshot(ONE, total_blocks=20), 640) == (640, "before the cache is full")
    two = (*ONE, HeldTokens(owner="t", num_tokens=64))
    words = room_words(scripted_snapshot(two, total_blocks=20), 640)
    assert words == (576, "before other branches leave the device")
