"""A growing answer, and the recorder that takes the engine's events of it, whether or not anybody reads them.

Stored first, shown second: text is handed on only after it and its token ids are in the database. A thread
per answer: a reader that is slow, blocked on a full pipe or interrupted keeps no sampled token from it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic

from kvchat.chat.engine_client import RequestHandle
from kvchat.engine.api.events import (
    Event,
    FinishReason,
    LoadPlanned,
    PrefillProgress,
    RequestFinished,
    TokenEmitted,
)
from kvchat.errors import EngineFailed, KvchatError
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.template.text_stream import Piece, TextStream
from kvchat.session.tree import Finish, Stored, Turn

_WRITE_INTERVAL_S = 1 / 30
"""Between two writes; far below the half second in which a sampled token must be stored."""

_FINISH = {
    FinishReason.STOP: Finish.COMPLETE,
    FinishReason.LENGTH: Finish.LENGTH,
    FinishReason.CANCELLED: Finish.INTERRUPTED,
    FinishReason.ERROR: Finish.ERROR,
}

Recorded = LoadPlanned | PrefillProgress | Piece | RequestFinished


class Answer:
    """The answer `turn` (PARTIAL), from the token ids it has already; `stream` is behind them."""

    def __init__(self, store: SessionStore, turn: Turn, stream: TextStream) -> None:
        self.turn = turn
        self.token_ids = list(turn.token_ids or ())
        self._store = store
        self._stream = stream
        self._pending_ids: list[int] = []
        self._pending_pieces: list[Piece] = []
        self._next_write = monotonic()

    @property
    def is_due(self) -> bool:
        """Whether something is pending and the last write is long enough ago."""
        return bool(self._pending_ids) and monotonic() >= self._next_write

    @property
    def wait_s(self) -> float:
        """How long the next event may be waited for."""
        if not self._pending_ids:
            return 0.05
        return max(0.0, self._next_write - monotonic())

    def mark(self, *, model: str, fingerprint: str, exact: bool) -> None:
        """Note who answers, and whether on exact KV; known only once the engine is loaded."""
        self._store.mark_answer(self.turn.id, model=model, fingerprint=fingerprint, exact=exact)

    def take(self, token_id: int) -> None:
        self._pending_ids.append(token_id)
        self.token_ids.append(token_id)
        self._pending_pieces += self._stream.feed(token_id)

    def store_pending(self) -> tuple[Piece, ...]:
        """Write what is pending in one transaction and return the text that may be shown now."""
        pieces = _joined(self._pending_pieces)
        if self._pending_ids or pieces:
            text = "".join(piece.text for piece in pieces if not piece.reasoning)
            reasoning = "".join(piece.text for piece in pieces if piece.reasoning)
            self._store.append_to_answer(self.turn.id, self._pending_ids, text, reasoning)
        self._pending_ids, self._pending_pieces = [], []
        self._next_write = monotonic() + _WRITE_INTERVAL_S
        return pieces

    def store_rest(self) -> tuple[Piece, ...]:
        """Write also the text that was held back, since no token follows."""
        self._pending_pieces += self._stream.finish()
        return self.store_pending()

    def finish(self, outcome: Outcome) -> Turn:
        self.store_rest()
        return self._store.finish_answer(self.turn.id, outcome)

    def finish_or_abandon(self, outcome: Outcome) -> Turn:
        """End the answer, or where that cannot be stored leave what is; it reads as interrupted then."""
        try:
            return self.finish(outcome)
        except KvchatError:
            self._store.abandon_answer(self.turn.id)
            return self._store.turn(self.turn.id)


def outcome_of(finished: RequestFinished, *, closed: bool) -> Outcome:
    """Return how an answer ended. `closed`: the model ended its turn, whatever stopped the engine then."""
    return Outcome(
        finish=Finish.COMPLETE if closed else _FINISH[finished.reason],
        usage=finished.usage,
        loaded=finished.loaded,
        timings=finished.timings,
    )


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


def _joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    runs = groupby(pieces, key=lambda piece: piece.reasoning)
    return tuple(Piece("".join(piece.text for piece in run), reasoning) for reasoning, run in runs)
