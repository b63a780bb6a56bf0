"""Inspection requests, inspected blocks, and stored blocks of a path. Values."""

from dataclasses import dataclass

from kvchat.engine.api.ids import BlockKey, GroupId, SequenceId
from kvchat.engine.api.snapshot import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionRequest:
    """Whose blocks to show.

    Args:
        sequence: a live sequence, whose own tokens are looked at; None, or one that is gone: `token_ids` are.
        token_ids: a path. Without it and without a sequence: what is kept on the device for nobody.
        namespace: that of the path.
        most: of what is kept for nobody, at most so many blocks, those used last.
        with_states: also name the recurrent states along a path, each behind the block in which it stands.
    """

    sequence: SequenceId | None = None
    token_ids: tuple[int, ...] = ()
    namespace: str = ""
    most: int = 256
    with_states: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlace:
    """Where one group has a block.

    Args:
        tier: the fastest that has it; None: none has it, since it left the window or was given up.
        is_stored: whether the disk has it (too).
        num_holders: sequences, copies, transfers and pins that hold it on the device.
        is_kept: whether the group keeps what this is: tokens, or a state behind them.
    """

    group: GroupId
    tier: Tier | None
    is_stored: bool = False
    num_holders: int = 0
    is_pinned: bool = False
    is_kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedBlock:
    """A block or tail.

    Args:
        key: its name in hexadecimal. A tail that is still written has one only when its sequence lets go.
        parent: the name of the block before it; of the first block, that of the namespace.
        start: position of its first token.
        places: one for each group of the snapshot, in its order.
        unused_s: how long ago the request began that used it last; 0 while one runs on it, None where only
            the disk has it.
        is_state: it is the recurrent state behind these tokens.
    """

    key: str
    parent: str
    start: int
    token_ids: tuple[int, ...]
    places: tuple[BlockPlace, ...]
    unused_s: float | None
    is_state: bool = False

    @property
    def num_holders(self) -> int:
        return max((place.num_holders for place in self.places), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathBlock:
    """A stored block or tail of a path.

    Args:
        number: of the block on its path.
        native_parent: the name that its parent has, or would have, as a native block.
    """

    number: int
    key: BlockKey
    parent: BlockKey
    native_parent: BlockKey
    token_ids: tuple[int, ...]
    groups: tuple[GroupId, ...]
