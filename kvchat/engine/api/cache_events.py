"""Cache events: what moved in a cache and why. Values, and the bounded log they stand in."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from time import time

from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.api.snapshot import Tier

MOST_EVENTS = 4096
TOGETHER_S = 0.25
"""What is alike and so close behind the last event is counted with it: a prompt fills hundreds of blocks."""


class CacheEventKind(StrEnum):
    HIT = "hit"
    MISS = "miss"
    LOAD = "load"
    EVICT = "evict"
    SAVE = "save"
    COPY = "copy-on-write"
    SEAL = "seal"
    SHARE = "share"
    LEAVE = "leave"


@dataclass(slots=True, kw_only=True)
class CacheEvent:
    """Moves of one kind, for one reason, that came one behind the other.

    Args:
        number: counts up from 1 since the engine started.
        time_s: when the first of them was, in seconds since the epoch.
        owner: whose sequence it was for; empty: nobody's.
        tier: the slower tier that bytes came from or went to; None: there is none.
        num_blocks, num_bytes: of all groups together; a hit or a miss moves no bytes.
        num_tokens: those that a hit, a miss or a load is about, or that a copy begins with.
        key: name of the last block in hexadecimal; empty: it has none.
    """

    number: int
    time_s: float
    kind: CacheEventKind
    reason: str
    owner: str = ""
    tier: Tier | None = None
    num_blocks: int = 0
    num_bytes: int = 0
    num_tokens: int = 0
    key: str = ""


class CacheEventLog:
    """The newest events; the oldest give way. Owned by the engine's thread; noting one is O(1).

    Args:
        block_bytes: of each group.
    """

    def __init__(self, block_bytes: Mapping[GroupId, int], clock: Callable[[], float] = time) -> None:
        self._block_bytes = block_bytes
        self._clock = clock
        self._events: deque[CacheEvent] = deque(maxlen=MOST_EVENTS)
        self._number = 0
        self._noted_s = 0.0

    def note(
        self,
        kind: CacheEventKind,
        reason: str,
        group: GroupId | None = None,
        key: BlockKey | None = None,
        *,
        owner: str = "",
        tier: Tier | None = None,
        num_blocks: int = 1,
        num_tokens: int = 0,
    ) -> None:
        """Add a move of blocks of a group; None: of no single one, and no byte moved."""
        now_s = self._clock()
        last = self._events[-1] if self._events else None
        what = kind, reason, owner, tier
        if (
            last is None
            or now_s - self._noted_s > TOGETHER_S
            or (last.kind, last.reason, last.owner, last.tier) != what
        ):
            self._number += 1
            last = CacheEvent(
                number=self._number, time_s=now_s, kind=kind, reason=reason, owner=owner, tier=tier
            )
            self._events.append(last)
        self._noted_s = now_s
        last.num_blocks += num_blocks
        last.num_bytes += 0 if group is None else num_blocks * self._block_bytes[group]
        last.num_tokens += num_tokens
        last.key = last.key if key is None else key.hex()

    def since(self, number: int = 0) -> tuple[CacheEvent, ...]:
        """Return copies of the events from this number on, oldest first; the last of them may still grow."""
        found = []
        for event in reversed(self._events):
            if event.number < number:
                break
            found.append(replace(event))
        return tuple(reversed(found))
