"""Cached prefix of a conversation on screen: what the device has of it while no live branch holds it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import CacheSnapshot, SequenceUsage, Tier
from kvchat.session.kv.provenance import namespace_of
from kvchat.session.tree import path_token_ids

if TYPE_CHECKING:
    from kvchat.chat.conversation import Conversation

_NOT_LIVE = SequenceId(0)
"""Live sequences are numbered from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnScreen:
    """What the device has of the conversation on screen while no live branch holds it.

    Args:
        request: its path.
        usage: what a branch would hold.
        cached_per_group: those of its blocks that nobody holds.
    """

    request: InspectionRequest
    usage: SequenceUsage
    cached_per_group: tuple[int, ...]

    def counted(self, snapshot: CacheSnapshot) -> CacheSnapshot:
        """Return a snapshot that counts these blocks as used, not as cached for nobody. Pure."""
        of_layers = snapshot.layer_bytes(self.cached_per_group)
        layers, tiers = [], []
        for layer in snapshot.layers:
            num_bytes = min(of_layers.get(layer.layer, 0), layer.cached_bytes)
            used, cached = layer.used_bytes + num_bytes, layer.cached_bytes - num_bytes
            layers.append(replace(layer, used_bytes=used, cached_bytes=cached))
        for tier in snapshot.tiers:
            num_bytes = min(sum(of_layers.values()), tier.cached_bytes) if tier.tier is Tier.DEVICE else 0
            used, cached = tier.used_bytes + num_bytes, tier.cached_bytes - num_bytes
            tiers.append(replace(tier, used_bytes=used, cached_bytes=cached))
        return replace(snapshot, layers=tuple(layers), tiers=tuple(tiers))


def path_request(conversation: "Conversation") -> InspectionRequest:
    """Return the wish to see a conversation's blocks, whether or not a live branch holds them.

    Of its last token nothing is computed, and a tail is named by the tokens that are.
    """
    return InspectionRequest(
        sequence=conversation.engine_sequence,
        token_ids=tuple((path_token_ids(conversation.turns) or ())[:-1]),
        namespace=namespace_of(conversation.session, conversation.turns),
    )


def on_screen(
    request: InspectionRequest, owner: str, blocks: Sequence[InspectedBlock], snapshot: CacheSnapshot
) -> OnScreen:
    """Return what the device has of a path, from its blocks. Pure."""
    has_others = any(any(branch.blocks_per_group) for branch in snapshot.sequences)
    held, shared, cached = [], [], []
    for of_group in zip(*(block.places for block in blocks), strict=True):
        places = [place for place in of_group if place.tier is Tier.DEVICE]
        held.append(len(places))
        # What is on its way is held by its transfer.
        shared.append(sum(place.num_holders > 0 for place in places) if has_others else 0)
        cached.append(sum(not place.num_holders for place in places))
    usage = cached_usage(owner, held, snapshot, shared)
    # A window lets go of blocks that are of use all the same.
    whole = {group.group for group in snapshot.groups if group.window is None}
    num_tokens = 0
    for block in blocks:
        tiers = {place.tier for place in block.places if place.group in whole or not whole}
        num_tokens += len(block.token_ids) if tiers == {Tier.DEVICE} else 0
    usage = replace(usage, num_tokens=num_tokens)
    return OnScreen(request=request, usage=usage, cached_per_group=tuple(cached))


def cached_usage(
    owner: str, held: Sequence[int], snapshot: CacheSnapshot, shared: Sequence[int] = ()
) -> SequenceUsage:
    """Return what blocks amount to that no live branch holds.

    Args:
        held, shared: for each group, how many there are, and those that somebody else holds.
    """
    shared_bytes = sum(snapshot.layer_bytes(shared).values())
    return SequenceUsage(
        sequence=_NOT_LIVE,
        owner=owner,
        num_tokens=0,
        running=False,
        own_bytes=sum(snapshot.layer_bytes(held).values()) - shared_bytes,
        shared_bytes=shared_bytes,
        blocks_per_group=tuple(held),
        shared_per_group=tuple(shared),
    )
