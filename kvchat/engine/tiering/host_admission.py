"""Host admission: keeps what the device evicts only where loading beats computing."""

from collections.abc import Sequence

from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.prefix_index import IndexNode
from kvchat.engine.formats.spec import Group
from kvchat.engine.memory.rates import Rates


class HostAdmission:
    """Weighs a block of all groups together, since one computation brings back all of them."""

    def __init__(self, rates: Rates, groups: Sequence[Group], block_size: int) -> None:
        self._rates = rates
        self._num_bytes = sum(group.block_bytes(block_size) for group in groups)

    def in_host(self, node: IndexNode) -> bool:
        """Whether loading a block from host memory takes less time than computing it where it stands."""
        load_s = self._rates.seconds_to_load(Tier.HOST, self._num_bytes)
        return load_s < self._rates.seconds_to_compute(len(node.token_ids), node.start)
