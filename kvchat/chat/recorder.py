"""Recorder: takes the engine's events of one request and stores them, whether or not anybody reads them.

A thread per answer: a reader that is slow, blocked on a full pipe or interrupted keeps no sampled token from
the database.
"""

from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Lock, Thread

from kvchat.chat.engine_client import RequestHandle
from kvchat.engine.api.events import Event, LoadPlanned, PrefillProgress, RequestFinished, TokenEmitted
from kvchat.errors import EngineFailed
from kvchat.session.growing_answer import Answer
from kvchat.session.template.text_stream import Piece
from kvchat.session.tree import Stored

Recorded = LoadPlanned | PrefillProgress | Piece | RequestFinished


class AnswerRecorder:
    """One request on its way into the store.

    Args:
        handle: the request; from now on only the recorder takes its events.
        answer: what grows; the recorder's alone until `stop` has returned or `recorded` has ended.
    """

    def __init__(self, handle: RequestHandle, answer: Answer) -> None:
        self.finished: RequestFinished | None = None
        """The request's last event, once everything before it is stored."""
        self.stored = Stored.NOTHING
        """What becomes of the part of the prompt that lay on a slower tier."""
        self._handle = handle
        self._answer = answer
        self._queue: SimpleQueue[Recorded | BaseException] = SimpleQueue()
        self._turn = Lock()
        self._stopped = False
        self._thread = Thread(target=self._run, name="kvchat-recorder", daemon=True)
        self._thread.start()

    def recorded(self) -> Iterator[Recorded]:
        """Yield what has been stored, in order, RequestFinished last.

        Raises:
            EngineFailed: the engine died; what came before has been yielded.
            StorageError: the store took no more; the request is cancelled.
        """
        while True:
            item = self._queue.get()
            if isinstance(item, BaseException):
                raise item
            yield item
            if isinstance(item, RequestFinished):
                return

    def stop(self, timeout_s: float) -> None:
        """Cancel the request and store what it had sampled; after `timeout_s` leave the answer as it is."""
        self._handle.cancel()
        self._thread.join(timeout_s)
        with self._turn:
            self._stopped = True

    def _run(self) -> None:
        try:
            while self.finished is None and not self._stopped:
                self._record_next()
        except BaseException as error:
            # Whatever it is belongs to the reader, who waits for it; the model must not go on for nobody.
            self._queue.put(error)
            self._handle.cancel()

    def _record_next(self) -> None:
        try:
            events = self._handle.take_events(self._answer.wait_s)
        except EngineFailed:
            with self._turn:
                self._put(self._answer.store_rest())
            raise
        with self._turn:
            if not self._stopped:
                self._record(events)

    def _record(self, events: Sequence[Event]) -> None:
        finished = None
        for event in events:
            if isinstance(event, TokenEmitted):
                self._answer.take(event.token_id)
            elif isinstance(event, LoadPlanned | PrefillProgress):
                if isinstance(event, LoadPlanned):
                    self.stored = Stored(event.estimate.choice.value)
                self._queue.put(event)
            else:
                finished = event
        if finished is not None:
            self._put(self._answer.store_rest())
            self.finished = finished
            self._queue.put(finished)
        elif self._answer.is_due:
            self._put(self._answer.store_pending())

    def _put(self, pieces: tuple[Piece, ...]) -> None:
        for piece in pieces:
            self._queue.put(piece)
