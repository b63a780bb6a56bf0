"""The state of the cache at one moment, from the pools' own accounting. Immutable and JSON-serialisable."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from kvchat.engine.api.config import Capacity
from kvchat.engine.api.ids import GroupId, SequenceId

STATE_KIND = "recurrent"
"""Of groups and layers whose blocks are states."""


class Tier(StrEnum):
    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUsage:
    """Bytes of one tier.

    used: held by a sequence; cached: kept for reuse, may be evicted; total: None = no limit.
    """

    tier: Tier
    used_bytes: int
    cached_bytes: int
    total_bytes: int | None
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    """Blocks of one group in the device pool; free + cached + used = total."""

    group: GroupId
    kind: str
    """`full`, `sliding`, `chunked`, `latent` or `latent fp8`."""
    window: int | None
    layers: tuple[int, ...]
    block_bytes: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    shared_blocks: int
    """Used blocks that have more than one holder: sequences, copies, transfers, pins."""
    pinned_blocks: int = 0
    """Used blocks that stay whoever needs room."""
    borrowers: tuple[int, ...] = ()
    """Layers that attend to what another layer of the group keeps, and keep nothing themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowUsage:
    """The shadows through which sequences look at one layer, beside its blocks."""

    device_bytes: int
    seen_tokens: int
    """That the last step looked at; 0: there was none yet."""
    wanted_chunks: int
    """Chosen by steps since the engine started, over all heads."""
    fetched_chunks: int
    """Those of them that the step before had not chosen too."""
    made_tokens: int = 0
    """Of prompts of which a shadow was made since the engine started; where one was at hand none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerUsage:
    """One layer's part of its group's pool, in bytes; free = total - cached - used."""

    layer: int
    group: GroupId
    kind: str
    """That of its group, or `borrowed`."""
    window: int | None
    used_bytes: int = 0
    shared_bytes: int = 0
    cached_bytes: int = 0
    total_bytes: int = 0
    lender: int | None = None
    """The layer whose keys and values this one reads; then it has no bytes."""
    shadow: ShadowUsage | None = None
    """None: all queries see its blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceUsage:
    """What one live sequence holds on the device."""

    sequence: SequenceId
    owner: str
    num_tokens: int
    running: bool
    own_bytes: int
    shared_bytes: int
    blocks_per_group: tuple[int, ...]
    shared_per_group: tuple[int, ...] = ()
    """Those of them that have another holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerUsage:
    """What the live sequences of one owner, such as a session, hold on the device together."""

    owner: str
    num_sequences: int
    freed_bytes: int
    """In blocks that no other owner's sequence holds: closing all of the owner's sequences lets go of them.
    They stay cached until their place is needed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBytes:
    """Bytes that went between the device and a slower tier, since the engine started."""

    to_host: int = 0
    from_host: int = 0
    to_disk: int = 0
    from_disk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSnapshot:
    model: str
    fingerprint: str
    block_size: int
    max_context: int
    tiers: tuple[TierUsage, ...]
    groups: tuple[GroupUsage, ...]
    layers: tuple[LayerUsage, ...]
    sequences: tuple[SequenceUsage, ...]
    num_running: int
    num_waiting: int
    reused_tokens: int
    """Prompt tokens that were found instead of computed, since the engine started."""
    computed_tokens: int
    """Prompt tokens that were computed, since the engine started; those read ahead count once."""
    room_tokens: int
    """Tokens one more sequence can hold before a cached block must be evicted."""
    capacity: Capacity | None = None
    weights: str = ""
    """What the weights are kept in; empty: it is not known."""
    cache_format: str = "exact"
    is_exact: bool = True
    sampled_tokens: int = 0
    """Tokens of all answers, since the engine started."""
    owners: tuple[OwnerUsage, ...] = ()
    moved: MovedBytes = field(default_factory=MovedBytes)
    problem: str | None = None
    """Why blocks are not saved to disk at the moment, and what to do; None while all is well."""

    def tier(self, tier: Tier) -> TierUsage:
        return next(usage for usage in self.tiers if usage.tier is tier)

    def layer_bytes(self, blocks_per_group: Sequence[int]) -> Mapping[int, int]:
        """Return the bytes of each layer in so many blocks of each group. Pure."""
        num_bytes: Counter[int] = Counter()
        for group, num_blocks in zip(self.groups, blocks_per_group, strict=False):
            for layer in group.layers:
                num_bytes[layer] += num_blocks * (group.block_bytes // len(group.layers))
        return num_bytes

    def to_json(self) -> str:
        return json.dumps(asdict(self))
