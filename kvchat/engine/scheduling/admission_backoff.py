"""Admission backoff: when to retry a request that found no capacity.

Matching a long prompt costs more than a decode step, so a refused request is not matched again until
something has happened that can change the answer. What can: more blocks to be had, names that come or go on
the prompt's path, blocks on their way, other requests at work, idle sequences. A tail that only grows cannot:
it is copied, so what it saves in tokens it takes in the block of the copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvchat.engine.api.ids import BlockKey, GroupId, RequestId
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.sequences.completion_sequence import Completion

Rank = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """What there was when a request was refused.

    Args:
        lacking: a group with too few blocks.
        num_available: how many blocks of it could be had.
        parents: the root and the prompt's full blocks: names behind them are what a match can find.
    """

    request: RequestId
    num_tokens: int
    ranks: tuple[Rank, ...]
    lacking: GroupId
    num_available: int
    num_claimed: int
    num_transfer_changes: int
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
        pool, sequence = self._manager.pools[lacking], completion.sequence
        self._last = _Refusal(
            request=completion.id,
            num_tokens=len(sequence.token_ids),
            ranks=_ranks(completion, running),
            lacking=lacking,
            num_available=pool.num_available,
            num_claimed=pool.num_claimed,
            num_transfer_changes=self._manager.device.num_transfer_changes,
            change_log_lens=tuple(change_log.length for change_log in self._manager.device.change_logs),
            parents=frozenset((sequence.root, *sequence.chain.keys)),
        )

    def forget(self) -> None:
        """Try again in any case."""
        self._last = None

    def stands(self, completion: Completion, running: Sequence[Completion]) -> bool:
        """Whether trying again can only end as it did before; never if nothing runs. Pure."""
        last = self._last
        if last is None or last.request != completion.id or not running:
            return False
        pool, device = self._manager.pools[last.lacking], self._manager.device
        return (
            pool.num_available <= last.num_available
            and pool.num_claimed == last.num_claimed
            and device.num_transfer_changes == last.num_transfer_changes
            and len(completion.sequence.token_ids) == last.num_tokens
            and _ranks(completion, running) == last.ranks
            and not any(
                change_log.has_touched(last.parents, since)
                for change_log, since in zip(device.change_logs, last.change_log_lens, strict=True)
            )
        )


def _ranks(completion: Completion, running: Sequence[Completion]) -> tuple[Rank, ...]:
    return (completion.rank, *(other.rank for other in running))
