"""Turn reader: rows to turns, with the pieces of those that are unfinished."""

import sqlite3
from collections.abc import Iterable
from dataclasses import replace

from kvchat.engine.api.ids import from_u32le
from kvchat.errors import SessionNotFound
from kvchat.platform.writer_liveness import Writers
from kvchat.session.database import rows, silent_damage
from kvchat.session.tree import Finish, MessagePart, SessionId, Turn, TurnId


class TurnReader:
    """Reads turns for one store; `writing` are the turns that this store is writing."""

    def __init__(self, writers: Writers) -> None:
        self.writing: set[TurnId] = set()
        self._writers = writers

    def turn(self, connection: sqlite3.Connection, turn_id: TurnId) -> Turn:
        """Return a turn by its id.

        Raises:
            SessionNotFound: there is none.
        """
        turns = self.turns(connection, connection.execute("SELECT * FROM turns WHERE id = ?", (turn_id,)))
        if not turns:
            silent_damage.refuse_hidden(connection, "turns", "id", turn_id)
            raise SessionNotFound(f"there is no message {turn_id!r}; it may have been deleted")
        return turns[0]

    def turns(self, connection: sqlite3.Connection, found: Iterable[sqlite3.Row]) -> tuple[Turn, ...]:
        """Return rows of `turns` as turns."""
        turns = []
        for row in found:
            turn = rows.turn_of(row)
            if turn.finish is Finish.PARTIAL:
                turn = self._with_pieces(connection, turn, row)
            turns.append(turn)
        if any(MessagePart.FACTS in turn.broken for turn in turns):
            silent_damage.refuse_damage(connection)  # then more than this row may be
        return tuple(turns)

    def left_unfinished(self, connection: sqlite3.Connection, session_id: SessionId) -> list[Turn]:
        """Return the answers of a session whose writers died."""
        found = connection.execute(
            "SELECT * FROM turns WHERE session_id = ? AND finish = 'partial'", (session_id,)
        )
        turns = self.turns(connection, found.fetchall())
        return [turn for turn in turns if turn.finish is not Finish.PARTIAL]

    def _with_pieces(self, connection: sqlite3.Connection, turn: Turn, row: sqlite3.Row) -> Turn:
        pieces = connection.execute(
            "SELECT * FROM pieces WHERE turn_num = ? ORDER BY num", (row["num"],)
        ).fetchall()
        is_own = self._writers.is_own(row["writer"])
        is_growing = turn.id in self.writing if is_own else self._writers.is_alive(row["writer"])
        if not is_growing:
            silent_damage.refuse_hidden(connection, "pieces", "turn_num", row["num"], len(pieces))
        ids = b"".join(piece["token_ids"] for piece in pieces)
        broken = turn.broken | rows.broken_in_pieces(pieces, turn.id)
        return replace(
            turn,
            text=turn.text + "".join(piece["text"] for piece in pieces),
            reasoning=turn.reasoning + "".join(piece["reasoning"] for piece in pieces),
            token_ids=None if turn.backend else (turn.token_ids or ()) + tuple(from_u32le(ids)),
            finish=Finish.PARTIAL if is_growing else Finish.INTERRUPTED,
            damaged=bool(broken),
            broken=broken,
        )
