"""What is there of a conversation that comes on screen, and where."""

import pytest

from kvchat.chat.service import EditCost
from kvchat.engine.api.ids import GroupId
from kvchat.engine.api.inspection import BlockPlace, InspectedBlock
from kvchat.engine.api.snapshot import Tier
from kvchat.text.format_cost import reach_words

pytestmark = pytest.mark.pure

COST = EditCost(reused_tokens=1203, computed_tokens=1, left_turns=0, left_tokens=0)


def block(*tiers: Tier | None) -> InspectedBlock:
    places = tuple(BlockPlace(group=GroupId(number), tier=tier) for number, tier in enumerate(tiers))
    return InspectedBlock(key="", parent="", start=0, token_ids=(1,) * 64, places=places, unused_s=None)


def test_it_says_which_tier_a_conversation_is_in() -> None:
    device, disk = block(Tier.DEVICE, Tier.DEVICE), block(Tier.DISK, None)
    kept = "1,203 of 1,204 tokens are kept"
    assert reach_words(COST, None) == kept
    assert reach_words(COST, None, [device, device]) == f"{kept} on the device"
    assert reach_words(COST, None, [disk, block(None, None)]) == f"{kept} on disk"
    assert reach_words(COST, None, [disk, device, disk]) == (f"{kept}: 64 on the device, 128 on disk")


def test_a_block_is_where_the_slowest_of_its_groups_has_it_and_what_came_up_is_told() -> None:
    half = block(Tier.DEVICE, Tier.HOST)
    words = reach_words(COST, None, [half], loaded_bytes=3 << 20)
    assert words.endswith("are kept in host memory; 3.0 MiB loaded just now")
