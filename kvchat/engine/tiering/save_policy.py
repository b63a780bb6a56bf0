"""When what a branch has computed goes to disk.

Full blocks are queued as soon as they are named, and everything once more when an answer ends and when the
engine closes. A tail is written as a whole block, so while it grows it goes to disk only where a kill would
cost more computing than starting again costs anyway, and every two seconds at most. So a turn writes its
blocks and its tail once, and a killed process loses the KV of a tail at most, and no more than seconds of it;
of quantised layers, whose exact blocks of the moment are not stored again and again, that of the turn.
"""

import logging
from collections.abc import Callable, Iterable

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
        is_gone: whether an owner of branches is gone, so that nothing is saved for him; None: nobody ever is.
        rates: how long a tail takes to compute.
    """

    def __init__(
        self,
        manager: CacheManager,
        saver: Saver | None,
        clock: Callable[[], float],
        problem: str | None = None,
        is_gone: Callable[[str], bool] | None = None,
        rates: Rates | None = None,
    ) -> None:
        self._manager = manager
        self._saver = saver
        self._clock = clock
        self._tails_saved_s = clock()
        self._problem = problem
        self._is_gone = is_gone or _nobody
        self._rates = rates or Rates()

    @property
    def problem(self) -> str | None:
        """Why blocks are not saved at the moment; None while all is well."""
        return self._problem

    @property
    def written_bytes(self) -> int:
        """Bytes of blocks that went to disk since the engine, or other weights, began; 0 without a disk."""
        return self._saver.written_bytes if self._saver is not None else 0

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
        self._saver.step_aside(has_more)
        self._saver.save_blocks(saves, most_bytes)
        self._note_problem(self._saver)
        if self._manager.device.has_passing:
            return  # exact blocks that are quantised soon are stored where turns end
        now_s = self._clock()
        if now_s - self._tails_saved_s >= TAIL_INTERVAL_S:
            self._tails_saved_s = now_s
            for branch in self._manager.branches.values():
                if branch.is_saved and self._loss_s(branch) >= LEAST_LOSS_S:
                    self._save_tail(self._saver, branch)

    def save_branch(self, branch: Sequence) -> None:
        """Queue everything of a branch that the store lacks; nothing, where nobody wants it any more."""
        if self._saver is None:
            return
        if self._is_wanted(self._saver, branch):
            self._saver.save_missing(self._manager.block_saves(branch))
            self._save_tail(self._saver, branch)

    def save_leaving(self, branch: Sequence) -> bool:
        """Queue everything of a branch that leaves the device.

        Returns: False where that takes its time: what waits is read from the device, so the branch lets go of
            its blocks and they stay.
        """
        self.save_branch(branch)
        if self.is_behind:
            self._manager.reset(branch)
        return not self.is_behind

    def drain(self) -> None:
        """Wait until nothing is on its way to the disk; what it does not take within seconds is dropped."""
        if self._saver is not None:
            self._saver.drain(DRAIN_TIMEOUT_S)

    def close(self, branches: Iterable[Sequence]) -> None:
        """Save the branches and wait until everything is durable. Later calls do nothing."""
        saver, self._saver = self._saver, None
        if saver is None:
            return
        live = tuple(branch for branch in branches if self._is_wanted(saver, branch))
        for branch in live:
            saver.save_missing(self._manager.block_saves(branch))
        for branch in live:
            saver.flush(CLOSE_TIMEOUT_S)  # a tail does not wait in line: it needs room in the queue
            self._save_tail(saver, branch)
        saver.close(CLOSE_TIMEOUT_S)

    def use(self, saver: Saver | None, problem: str | None) -> None:
        """Go on with another saver after `close`; `problem`: why there is none although one was wanted."""
        assert self._saver is None
        self._saver = saver
        self._problem = problem

    def _is_wanted(self, saver: Saver, branch: Sequence) -> bool:
        """Whether a branch is saved; what waits of one whose owner is gone is dropped."""
        if not branch.is_saved:
            return False
        if not self._is_gone(branch.owner):
            return True
        saver.give_up({save.key for save in self._manager.block_saves(branch)})
        return False

    def _note_problem(self, saver: Saver) -> None:
        """Log once when the disk begins to refuse blocks, and once when it takes them again."""
        if saver.problem != self._problem:
            self._problem = saver.problem
            if self._problem is None:
                log.info("blocks are saved again")
            else:
                log.warning("blocks are not saved: %s", self._problem)

    def _loss_s(self, branch: Sequence) -> float:
        """Return how long what is not saved of a branch's tail would take to compute."""
        start = max(len(branch.keys) * self._manager.block_size, branch.saved_len)
        return self._rates.seconds_to_compute(max(0, branch.computed_len - start), start)

    def _save_tail(self, saver: Saver, branch: Sequence) -> None:
        saves = self._manager.tail_saves(branch)
        if saves and saver.save_tail(saves):
            branch.saved_tail = saves[0].key
            branch.saved_len = branch.computed_len


def _nobody(owner: str) -> bool:
    return False
