"""An engine that the interface looks at, and whose state and snapshot a test sets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from kvchat.engine.api.cache_events import CacheEvent
from kvchat.engine.api.engine_phase import EnginePhase, EngineStatus
from kvchat.engine.api.ids import GroupId, SequenceId
from kvchat.engine.api.inspection import InspectedBlock, InspectionRequest
from kvchat.engine.api.snapshot import (
    CacheSnapshot,
    GroupUsage,
    LayerUsage,
    MovedBytes,
    OwnerUsage,
    SequenceUsage,
    Tier,
    TierUsage,
)
from kvchat.errors import EngineFailed

BLOCK_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """A layer of the scripted model."""

    window: int | None
    block_bytes: int = 64 * 1024


FULL = LayerKind(window=None)
SLIDING = LayerKind(window=256)
INTERLEAVED = (SLIDING, FULL) * 3


@dataclass(frozen=True, kw_only=True)
class HeldTokens:
    """What one branch of the script holds; the first `num_shared` of its tokens are another branch's too."""

    owner: str
    num_tokens: int
    num_shared: int = 0
    running: bool = False


def scripted_snapshot(
    branches: Sequence[HeldTokens],
    *,
    layers: Sequence[LayerKind] = INTERLEAVED,
    total_blocks: int = 256,
    kept_tokens: int = 0,
    disk_bytes: int | None = 0,
    reused: int = 0,
    computed: int = 0,
) -> CacheSnapshot:
    """Return a snapshot whose figures add up, as the pools' own accounting would."""
    kinds = list(dict.fromkeys(layers))
    groups = tuple(
        _group(GroupId(number), kind, layers, branches, total_blocks=total_blocks, kept_tokens=kept_tokens)
        for number, kind in enumerate(kinds)
    )
    layer_usage = tuple(_layer(index, groups[kinds.index(kind)]) for index, kind in enumerate(layers))
    used_bytes = sum(layer.used_bytes for layer in layer_usage)
    cached_bytes = sum(layer.cached_bytes for layer in layer_usage)
    device = TierUsage(
        tier=Tier.DEVICE,
        used_bytes=used_bytes,
        cached_bytes=cached_bytes,
        total_bytes=sum(layer.total_bytes for layer in layer_usage),
        num_blocks=sum(group.used_blocks + group.cached_blocks for group in groups),
    )
    disk = TierUsage(
        tier=Tier.DISK, used_bytes=0, cached_bytes=disk_bytes or 0, total_bytes=None, num_blocks=0
    )
    held = sum(branch.num_tokens - branch.num_shared for branch in branches)
    return CacheSnapshot(
        model="scripted",
        fingerprint="00" * 32,
        block_size=BLOCK_SIZE,
        max_context=8192,
        tiers=(device, disk) if disk_bytes is not None else (device,),
        groups=groups,
        layers=layer_usage,
        sequences=tuple(_branch(number, branch, layers) for number, branch in enumerate(branches)),
        num_running=sum(branch.running for branch in branches),
        num_waiting=0,
        reused_tokens=reused,
        computed_tokens=computed,
        owners=tuple(_owner(branch, layers) for branch in branches),
        room_tokens=max(0, total_blocks * BLOCK_SIZE - held - kept_tokens),
    )


def _blocks(kind: LayerKind, num_tokens: int) -> int:
    blocks = ceil(num_tokens / BLOCK_SIZE)
    return blocks if kind.window is None else min(blocks, ceil(kind.window / BLOCK_SIZE) + 1)


def _group(
    group: GroupId,
    kind: LayerKind,
    layers: Sequence[LayerKind],
    branches: Sequence[HeldTokens],
    *,
    total_blocks: int,
    kept_tokens: int,
) -> GroupUsage:
    members = tuple(index for index, layer in enumerate(layers) if layer == kind)
    shared = max((_blocks(kind, branch.num_shared) for branch in branches), default=0)
    own = sum(_blocks(kind, branch.num_tokens) - _blocks(kind, branch.num_shared) for branch in branches)
    kept = _blocks(kind, kept_tokens)
    return GroupUsage(
        group=group,
        kind="full" if kind.window is None else "sliding",
        window=kind.window,
        layers=members,
        block_bytes=kind.block_bytes * len(members),
        total_blocks=total_blocks,
        free_blocks=total_blocks - shared - own - kept,
        cached_blocks=kept,
        used_blocks=shared + own,
        shared_blocks=shared,
    )


def _layer(index: int, group: GroupUsage) -> LayerUsage:
    block_bytes = group.block_bytes // len(group.layers)
    return LayerUsage(
        layer=index,
        group=group.group,
        kind=group.kind,
        window=group.window,
        used_bytes=group.used_blocks * block_bytes,
        shared_bytes=group.shared_blocks * block_bytes,
        cached_bytes=group.cached_blocks * block_bytes,
        total_bytes=group.total_blocks * block_bytes,
    )


def _branch(number: int, branch: HeldTokens, layers: Sequence[LayerKind]) -> SequenceUsage:
    shared = sum(_blocks(kind, branch.num_shared) * kind.block_bytes for kind in layers)
    held = sum(_blocks(kind, branch.num_tokens) * kind.block_bytes for kind in layers)
    return SequenceUsage(
        sequence=SequenceId(number),
        owner=branch.owner,
        num_tokens=branch.num_tokens,
        running=branch.running,
        own_bytes=held - shared,
        shared_bytes=shared,
        blocks_per_group=tuple(_blocks(kind, branch.num_tokens) for kind in dict.fromkeys(layers)),
    )


def _owner(branch: HeldTokens, layers: Sequence[LayerKind]) -> OwnerUsage:
    """Return the usage of a session with this one branch."""
    return OwnerUsage(owner=branch.owner, num_sequences=1, freed_bytes=_branch(0, branch, layers).own_bytes)


@dataclass
class ScriptedEngine:
    """An engine whose state a test sets. It is loaded unless the test says otherwise."""

    phase: EnginePhase = EnginePhase.READY
    layers: Sequence[LayerKind] = INTERLEAVED
    held: dict[str, HeldTokens] = field(default_factory=dict)
    detail: str = ""
    kept_tokens: int = 0
    disk_bytes: int | None = 0
    reused: int = 0
    computed: int = 0
    moved: MovedBytes = field(default_factory=MovedBytes)
    problem: str | None = None
    blocks: dict[InspectionRequest, tuple[InspectedBlock, ...]] = field(default_factory=dict)
    """What is inspected; nothing by default."""
    events: list[CacheEvent] = field(default_factory=list)

    def cache_events(self, since: int = 0) -> tuple[CacheEvent, ...]:
        return tuple(event for event in self.events if event.number >= since)

    def inspect(self, request: InspectionRequest) -> tuple[InspectedBlock, ...]:
        return self.blocks.get(replace(request, with_states=False), ())

    def status(self) -> EngineStatus:
        error = EngineFailed("the model file is damaged") if self.phase is EnginePhase.FAILED else None
        return EngineStatus(phase=self.phase, detail=self.detail, error=error)

    def snapshot(self) -> CacheSnapshot | None:
        if self.phase is not EnginePhase.READY:
            return None
        snapshot = scripted_snapshot(
            tuple(self.held.values()),
            layers=self.layers,
            kept_tokens=self.kept_tokens,
            disk_bytes=self.disk_bytes,
            reused=self.reused,
            computed=self.computed,
        )
        return replace(snapshot, moved=self.moved, problem=self.problem)
