"""Save policy: decides when computed blocks are written to disk.

Full blocks are queued as soon as they are named, and everything once more when an answer ends and when the
engine closes. A tail is written as a whole block, so while it grows it goes to disk only where a kill would
cost more computing than starting again costs anyway, and every two seconds at most. So a turn writes its
blocks and its tail once, and a killed process loses the KV of a tail at most, and no more than seconds of it;
of quantised layers, whose exact blocks of the moment are not stored again and again, that of the turn.
"""

import logging
from collections.abc import Callable, Iterable

from kvchat.engine.api.snapshot import Tier
from kvchat.engine.cache.block_operations import Save
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.memory.rates import Rates
from kvchat.engine.memory.saver import STEP_BYTES, Saver
from kvchat.engine.sequences.sequence import Sequence

log = logging.getLogger(__name__)

TAIL_INTERVAL_S = 2.0
LEAST_LOSS_S = 5.0
"""What a growing tail must take to compute again before it is saved: a process that was killed takes about as
long to be there again with its model.
"""
CLOSE_TIMEOUT_S = 30.0
DRAIN_TIMEOUT_S = 3.0


class SavePolicy:
    """Tells the saver what to save; without a disk tier it does nothing.

    Args:
        problem: why there is no disk tier although one was wanted.
        rates: how long a tail takes to compute.
        is_gone: whether an owner of sequences is gone, so that nothing is saved for him; None: nobody is.
    """

    def __init__(
        self,
        manager: CacheManager,
        saver: Saver | None,
        clock: Callable[[], float],
        problem: str | None,
        rates: Rates,
        is_gone: Callable[[str], bool] | None = None,
    ) -> None:
        self._manager = manager
        self._saver = saver
        self._clock = clock
        self._tails_saved_s = clock()
        self.problem = problem
        """Why blocks are not saved at the moment; None while all is well."""
        self._is_gone = is_gone or (lambda owner: False)
        self._rates = rates

    @property
    def written_bytes(self) -> int:
        """Bytes of blocks that went to disk since the engine, or other weights, began; 0 without a disk."""
        return self._saver.writer.written_bytes if self._saver is not None else 0

    @property
    def is_behind(self) -> bool:
        """Whether blocks that have not been handed to the disk must stay on the device for it."""
        return self._saver is not None and self._saver.num_waiting > 0

    def after_step(self, most_bytes: int | None = STEP_BYTES, *, has_more: bool = False) -> None:
        """Queue the blocks that the step has filled, and tails if it is time. Never waits for the disk.

        Args:
            most_bytes: of blocks; None: as many as the queue has room for, since no step waits.
            has_more: whether a step follows, so that writing leaves the processor to it.
        """
        saves = self._manager.take_saves()
        if self._saver is None:
            return
        saves = tuple(filter(self._pays, saves))
        self._saver.step_aside(has_more)
        self._saver.save_blocks(saves, most_bytes)
        self._note_problem(self._saver)
        if self._manager.device.has_superseded or self._manager.device.has_states:
            return  # exact blocks that are quantised soon, and states, are stored where turns end
        now_s = self._clock()
        if now_s - self._tails_saved_s >= TAIL_INTERVAL_S:
            self._tails_saved_s = now_s
            for sequence in self._manager.sequences.values():
                if sequence.is_saved and self._loss_s(sequence) >= LEAST_LOSS_S:
                    self._save_tail(self._saver, sequence)

    def save_sequence(self, sequence: Sequence) -> None:
        """Queue everything of a sequence that the store lacks; nothing, where nobody wants it any more."""
        if self._saver is not None and self._is_wanted(self._saver, sequence):
            self._saver.save_missing(self._manager.publisher.block_saves(sequence))
            self._save_tail(self._saver, sequence)

    def save_leaving(self, sequence: Sequence) -> bool:
        """Queue everything of a sequence that leaves the device.

        Returns: False where that takes its time: what waits is read from the device, so the sequence lets
            go of its blocks and they stay.
        """
        self.save_sequence(sequence)
        if self.is_behind:
            self._manager.reset(sequence)
        return not self.is_behind

    def drain(self) -> None:
        """Wait until nothing is on its way to the disk; what it does not take within seconds is dropped."""
        if self._saver is not None:
            self._saver.drain(DRAIN_TIMEOUT_S)

    def close(self, sequences: Iterable[Sequence]) -> None:
        """Save the sequences and wait until everything is durable. Later calls do nothing."""
        saver, self._saver = self._saver, None
        if saver is None:
            return
        live = tuple(sequence for sequence in sequences if self._is_wanted(saver, sequence))
        for sequence in live:
            saver.save_missing(self._manager.publisher.block_saves(sequence))
        for sequence in live:
            saver.flush(CLOSE_TIMEOUT_S)  # a tail does not wait in line: it needs room in the queue
            self._save_tail(saver, sequence)
        saver.close(CLOSE_TIMEOUT_S)

    def use(self, saver: Saver | None, problem: str | None) -> None:
        """Go on with another saver after `close`; `problem`: why there is none although one was wanted."""
        assert self._saver is None
        self._saver = saver
        self.problem = problem

    def _is_wanted(self, saver: Saver, sequence: Sequence) -> bool:
        """Whether a sequence is saved; what waits of one whose owner is gone is dropped."""
        if not sequence.is_saved:
            return False
        if not self._is_gone(sequence.owner):
            return True
        saver.give_up({save.key for save in self._manager.publisher.block_saves(sequence)})
        return False

    def _pays(self, save: Save) -> bool:
        """Whether a state on the way to the end of a prompt is dearer to compute than to write and read."""
        order = self._manager.device.snapshots.get(save.group)
        if order is None or not self._manager.is_resident(save):
            return True
        start, end = order.gap(save.block)
        moved_s = 2 * self._rates.seconds_to_load(Tier.DISK, self._manager.device.block_bytes[save.group])
        return self._rates.seconds_to_compute(end - start, start) > moved_s

    def _note_problem(self, saver: Saver) -> None:
        """Log once when the disk begins to refuse blocks, and once when it takes them again."""
        if saver.writer.problem != self.problem:
            self.problem = saver.writer.problem
            if self.problem is None:
                log.info("blocks are saved again")
            else:
                log.warning("blocks are not saved: %s", self.problem)

    def _loss_s(self, sequence: Sequence) -> float:
        """Return how long what is not saved of a sequence's tail would take to compute."""
        start = max(len(sequence.keys) * self._manager.block_size, sequence.saved_len)
        return self._rates.seconds_to_compute(max(0, sequence.computed_len - start), start)

    def _save_tail(self, saver: Saver, sequence: Sequence) -> None:
        saves = self._manager.tail_saves(sequence)
        if saves and saver.save_tail(saves):
            sequence.saved_tail = saves[0].key
            sequence.saved_len = sequence.computed_len
