"""Wording of cache usage: where a conversation lies, and how much more can be said."""

from dataclasses import replace

import pytest

from kvchat.chat.events import EditCost
from kvchat.engine.api.ids import GroupId
from kvchat.engine.api.inspection import BlockPlace, InspectedBlock
from kvchat.engine.api.snapshot import Tier, TierUsage
from kvchat.text.cache_usage import capacity_words, reach_words
from tests.ui.scripted_engine import HeldTokens, scripted_snapshot

pytestmark = pytest.mark.pure

COST = EditCost(reused_tokens=1203, computed_tokens=1, left_turns=0, left_tokens=0)
ONE = (HeldTokens(owner="s", num_tokens=640),)
HOST = TierUsage(tier=Tier.HOST, used_bytes=0, cached_bytes=0, total_bytes=1 << 20, num_blocks=0)


def block(*tiers: Tier | None) -> InspectedBlock:
    places = tuple(BlockPlace(group=GroupId(number), tier=tier) for number, tier in enumerate(tiers))
    return InspectedBlock(key="", parent="", start=0, token_ids=(1,) * 64, places=places, unused_s=None)


def test_it_says_what_of_a_conversation_is_in_slower_tiers() -> None:
    device, disk = block(Tier.DEVICE, Tier.DEVICE), block(Tier.DISK, None)
    ready = "1,203 of 1,204 tokens cached"
    assert reach_words(COST, None) == ready
    assert reach_words(COST, None, [device, device]) == ready
    assert reach_words(COST, None, [disk, block(None, None)]) == f"{ready}, 64 on disk"
    assert reach_words(COST, None, [disk, device, disk]) == f"{ready}, 128 on disk"


def test_a_block_is_where_the_slowest_of_its_groups_has_it_and_what_came_up_is_told() -> None:
    half = block(Tier.DEVICE, Tier.HOST)
    words = reach_words(COST, None, [half], loaded_bytes=3 << 20)
    assert words.endswith(", 64 in host memory, 3.0 MiB loaded")


def test_the_end_of_the_context_comes_first_where_it_is_nearer() -> None:
    snapshot = scripted_snapshot(ONE, total_blocks=1000)
    assert capacity_words(snapshot, 8000) == (192, "before the context is full")
    assert capacity_words(snapshot, 9000) == (0, "before the context is full")


def test_kept_blocks_are_given_up_or_move_where_there_is_host_memory() -> None:
    snapshot = scripted_snapshot(ONE, total_blocks=20, kept_tokens=128)
    assert capacity_words(snapshot, 640) == (512, "before cached blocks are evicted")
    with_host = replace(snapshot, tiers=(*snapshot.tiers, HOST))
    assert capacity_words(with_host, 640) == (512, "before cached blocks go to host memory")


def test_with_nothing_kept_other_branches_are_next_and_then_nothing_is() -> None:
    assert capacity_words(scripted_snapshot(ONE, total_blocks=20), 640) == (640, "before the cache is full")
    two = (*ONE, HeldTokens(owner="t", num_tokens=64))
    words = capacity_words(scripted_snapshot(two, total_blocks=20), 640)
    assert words == (576, "before other branches leave the device")
