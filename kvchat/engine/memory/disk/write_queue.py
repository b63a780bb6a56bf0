"""Block writer: writes blocks to disk beside decoding, with a bounded queue and one thread."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from threading import Condition, Thread
from time import thread_time
from typing import Protocol

from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.memory.disk.block_file import BlockHeader
from kvchat.engine.memory.disk.io import Buffer
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import StorageError

FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
REST_PER_WRITE = 80.0
"""How long the thread rests beside computing, per second of a processor's time that writing took."""


class BlockCopy(Protocol):
    """A block's bytes, copied or being copied from the device."""

    def __len__(self) -> int: ...

    def wait(self) -> Buffer:
        """Return the bytes; waits until they are there. May be called again."""
        ...

    def release(self) -> None:
        """Say that nobody reads the bytes any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    header: BlockHeader
    payload: BlockCopy
    replaces: BlockKey | None


class BlockWriteQueue:
    """Makes blocks durable in the order they were submitted. Nothing here raises into the engine.

    While the disk refuses, the oldest block is tried again after growing pauses, and what no longer fits the
    queue is dropped: KV on disk saves time and holds no word of a conversation.

    Writing takes the processor, the thread's own and the system's, from whatever computes on all cores, and
    each core waits for the slowest. So the thread can be told to step aside.
    """

    def __init__(self, store: DiskStore, *, max_bytes: int, first_pause_s: float = FIRST_PAUSE_S) -> None:
        """Start the thread.

        Args:
            max_bytes: most bytes of payload waiting; a single larger block is taken when nothing else waits.
            first_pause_s: until a refused block is tried again; doubles with each refusal, up to 30 s. A
                block for which there is no space is tried again, too; one that the store left out is not.
        """
        self.problem: str | None = None
        """What the disk last refused, or what was left out; None once a block was written after it."""
        self.written_bytes = 0
        self._store = store
        self._max_bytes = max_bytes
        self._first_pause_s = first_pause_s
        self._queue: deque[_Submission] = deque()
        self._queued_bytes = 0
        self._pause_s = 0.0
        self._num_refusals = 0
        self._in_a_hurry = False
        self._num_waiting_for_all = 0
        self._steps_aside = False
        self._write_s = 0.0
        """The processor's time that the last write took, if there was no rest behind it yet."""
        self._is_writing = False
        self._gives_up = False
        """What is being written is not tried again."""
        self._closed = False
        self._changed = Condition()
        self._thread = Thread(target=self._run, name="kvchat-block-writer", daemon=True)
        self._thread.start()

    @property
    def queued_bytes(self) -> int:
        """Bytes of payload that are not durable yet."""
        return self._queued_bytes

    def queued(self) -> set[tuple[BlockKey, GroupId]]:
        """Return which blocks are not durable yet. Pure."""
        with self._changed:
            return {(one.header.key, one.header.group) for one in self._queue}

    def has_room(self, num_bytes: int) -> bool:
        """Whether `submit` would take a block of this size now, if only to drop it. Pure."""
        with self._changed:
            is_full = bool(self._queue) and self._queued_bytes + num_bytes > self._max_bytes
            return not self._closed and (not is_full or self._pause_s > 0)

    def submit(self, header: BlockHeader, payload: BlockCopy, replaces: BlockKey | None = None) -> bool:
        """Take a block to write. Never waits for the disk, nor for the device.

        Args:
            payload: kept until written; must not change once it has arrived. It is released also where it is
                not taken.
            replaces: key of the tail that this one continues; its file goes once this one is durable.

        Returns: False if the queue is full: try again later. True says it was taken, not that it is durable.
        """
        submission = _Submission(header=header, payload=payload, replaces=replaces)
        with self._changed:
            if self._closed:
                payload.release()
                return False
            if self._queue and self._queued_bytes + len(payload) > self._max_bytes:
                payload.release()
                return self._pause_s > 0  # whoever waited for that disk could wait for ever
            self._queue.append(submission)
            self._queued_bytes += len(payload)
            self._changed.notify_all()
            return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was submitted is durable. False after the timeout, or once the disk refuses."""
        with self._changed:
            num_refusals = self._num_refusals
            self._in_a_hurry = True  # ends a pause
            self._num_waiting_for_all += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: not self._queue or self._num_refusals > num_refusals, timeout_s
                )
            finally:
                self._num_waiting_for_all -= 1
            return not self._queue

    def step_aside(self, wanted: bool) -> None:
        """Say whether the thread rests between blocks, `REST_PER_WRITE` times as long as it computes; not
        while somebody waits for all of them.
        """
        with self._changed:
            if wanted != self._steps_aside:
                self._steps_aside = wanted
                self._changed.notify_all()

    def drop(self, keys: Collection[BlockKey] | None = None) -> None:
        """Forget what waits: these blocks, or all. What is being written now comes to its end, and is not
        tried again.
        """
        with self._changed:
            doomed = [keys is None or one.header.key in keys for one in self._queue]
            if self._is_writing:
                self._gives_up = self._gives_up or doomed[0]
                doomed[0] = False
            for one, goes in zip(self._queue, doomed, strict=True):
                if goes:
                    one.payload.release()
            self._queue = deque(one for one, goes in zip(self._queue, doomed, strict=True) if not goes)
            self._queued_bytes = sum(len(one.payload) for one in self._queue)
            self._changed.notify_all()

    def rest(self, timeout_s: float) -> bool:
        """Wait until nothing is being written; False if it took longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_writing, timeout_s)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Write what waits, then end the thread. False if some blocks could not be written in time."""
        is_flushed = self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._changed:
            for one in [*self._queue][int(self._is_writing) :]:
                one.payload.release()
        return is_flushed

    def _run(self) -> None:
        while (submission := self._next()) is not None:
            try:
                is_new = self._write(submission)
            except StorageError as error:
                self._refused(str(error))
            except Exception as error:
                # A bug of ours costs this block, not the thread and every block after it.
                self._finished(submission, is_new=False, problem=f"A block could not be saved: {error!r}")
            else:
                self._finished(submission, is_new=is_new, problem=self._store.left_out)

    def _next(self) -> _Submission | None:
        """Wait for work and for the end of a pause; None once closed."""
        with self._changed:
            while not self._closed:
                self._changed.wait_for(lambda: self._closed or self._queue)
                if self._pause_s:
                    self._changed.wait_for(lambda: self._closed or self._in_a_hurry, self._pause_s)
                self._rest()
                self._in_a_hurry = False
                if self._queue and not self._closed:  # it may have been dropped during the pause
                    self._is_writing = True
                    return self._queue[0]
            return None

    def _rest(self) -> None:
        """Wait for the processor's sake, where that is wanted."""
        rest_s, self._write_s = REST_PER_WRITE * self._write_s, 0.0
        if rest_s:
            self._changed.wait_for(self._is_wanted_now, rest_s)

    def _is_wanted_now(self) -> bool:
        return self._closed or not self._steps_aside or self._num_waiting_for_all > 0

    def _write(self, submission: _Submission) -> bool:
        store, header = self._store, submission.header
        data = submission.payload.wait()
        start_s = thread_time()
        is_new = store.write([(header, data)]) == 1
        self._write_s = thread_time() - start_s
        if store.shortage is not None:
            raise StorageError(store.shortage)
        if submission.replaces not in (None, header.key) and store.left_out is None:
            store.remove(submission.replaces, header.group)
        return is_new

    def _finished(self, submission: _Submission, *, is_new: bool, problem: str | None) -> None:
        with self._changed:
            self._end_attempt()
            self._queue.popleft().payload.release()
            self._queued_bytes -= len(submission.payload)
            self.written_bytes += len(submission.payload) * is_new
            self.problem = problem
            self._pause_s = 0.0
            self._changed.notify_all()

    def _refused(self, problem: str) -> None:
        with self._changed:
            self.problem = problem
            self._num_refusals += 1
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S) or self._first_pause_s
            if self._end_attempt():
                given_up = self._queue.popleft()
                given_up.payload.release()
                self._queued_bytes -= len(given_up.payload)
            self._changed.notify_all()

    def _end_attempt(self) -> bool:
        """Note that nothing is being written; return whether what was is not to be tried again."""
        given_up, self._is_writing, self._gives_up = self._gives_up, False, False
        return given_up
