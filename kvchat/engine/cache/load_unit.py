"""The least that is brought to the device at a time: one block of a prompt, all groups together."""

from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.plan import Fetch
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.platform.values import dataclass


@dataclass(frozen=True, slots=True)
class LoadUnit:
    """What one block lacks on the device.

    Args:
        number: the block's place in the prompt.
        node: its name and ids.
        tier: the slowest tier that one of its groups comes from.
    """

    number: int
    node: IndexNode
    moves: tuple[Fetch, ...]
    num_bytes: int
    tier: Tier
