"""A growing answer: what was sampled, what is stored, what may be shown.

Stored first, shown second: `store_pending` returns text only after it and its token ids are in the database.
"""

from collections.abc import Sequence
from itertools import groupby
from time import monotonic

from kvchat.engine.api.events import FinishReason, RequestFinished
from kvchat.errors import KvchatError
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.template.text_stream import Piece, TextStream
from kvchat.session.tree import Finish, Turn

_WRITE_INTERVAL_S = 1 / 30
"""Between two writes; far below the half second in which a sampled token must be stored."""

_FINISH = {
    FinishReason.STOP: Finish.COMPLETE,
    FinishReason.LENGTH: Finish.LENGTH,
    FinishReason.CANCELLED: Finish.INTERRUPTED,
    FinishReason.ERROR: Finish.ERROR,
}


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


def _joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    runs = groupby(pieces, key=lambda piece: piece.reasoning)
    return tuple(Piece("".join(piece.text for piece in run), reasoning) for reasoning, run in runs)
