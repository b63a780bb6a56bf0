"""Admission backoff: when to retry a request that found no capacity.

Matching a long prompt costs more than a decode step, so a refused request is not matched again until
something has happened that can change the answer. What can: more blocks to be had, names that come or go on
the prompt's path, blocks on their way, other requests at work, idle sequences. A tail that only grows cannot:
it is copied, so what it saves in tokens it takes in the block of the copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.sequences.completion_sequence import Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """What there was when a request was refused.

    Args:
        lacking: a group with too few blocks.
        num_available: how many blocks of it could be had.
        others: the rest that must be as it was: see `AdmissionBackoff._others`.
        change_log_lens: of the indexes of device and host memory.
        parents: the root and the prompt's full blocks: names behind them are what a match can find.
    """

    lacking: GroupId
    num_available: int
    others: tuple[object, ...]
    change_log_lens: tuple[int, ...]
    parents: frozenset[BlockKey]


class AdmissionBackoff:
    """The last refusal: nobody behind the first request that is refused is asked in the same step."""

    def __init__(self, manager: CacheManager) -> None:
        self._manager = manager
        self._last: _Refusal | None = None

    def note(self, completion: Completion, running: Sequence[Completion], lacking: GroupId | None) -> None:
        """Note that there was no room.

        Args:
            lacking: a group with too few blocks; None: it is for another reason, which is not remembered.
        """
        self._last = None
        if lacking is None:
            return
        sequence, change_logs = completion.sequence, self._manager.device.change_logs
        self._last = _Refusal(
            lacking=lacking,
            num_available=self._manager.pools[lacking].num_available,
            others=self._others(completion, running, lacking),
            change_log_lens=tuple(change_log.length for change_log in change_logs),
            parents=frozenset((sequence.root, *(key for key, _, _ in sequence.chain.names))),
        )

    def forget(self) -> None:
        """Try again in any case."""
        self._last = None

    def stands(self, completion: Completion, running: Sequence[Completion]) -> bool:
        """Whether trying again can only end as it did before; never if nothing runs. Pure."""
        last = self._last
        if last is None or not running or last.others != self._others(completion, running, last.lacking):
            return False
        if self._manager.pools[last.lacking].num_available > last.num_available:
            return False
        change_logs = zip(self._manager.device.change_logs, last.change_log_lens, strict=True)
        return not any(change_log.has_touched(last.parents, since) for change_log, since in change_logs)

    def _others(
        self, completion: Completion, running: Sequence[Completion], lacking: GroupId
    ) -> tuple[object, ...]:
        """Return what a refusal is of: the request, who runs, and what has become of blocks."""
        return (
            completion.id,
            len(completion.sequence.token_ids),
            (completion.rank, *(other.rank for other in running)),
            self._manager.pools[lacking].num_claimed,
            self._manager.device.num_transfer_changes,
        )
